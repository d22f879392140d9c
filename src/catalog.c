/*
 * catalog.c
 *		Where the extension's own objects are.
 *
 * The claim path opens a partition and an index by OID instead of asking the
 * parser for a name each time.  The OIDs are found through pg_extension, so
 * that neither the search path nor a schema of the same name can mislead us,
 * and are dropped at any relation cache or namespace invalidation that may
 * concern them: REINDEX CONCURRENTLY gives an index a new OID, DROP and CREATE
 * EXTENSION give everything one, ALTER SCHEMA RENAME changes the name that
 * saved statements contain.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_extension.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "errors.h"

static Catalog catalog;
static bool catalog_valid = false;
static bool catalog_building = false;
static uint64 catalog_epoch = 0;

/* Registered once in CatalogInit; must not do any look-up itself. */
static void
RelationChanged(Datum arg, Oid relid)
{
	if (!catalog_valid)
		return;
	if (relid == InvalidOid || catalog_building ||
		relid == catalog.template_table || relid == catalog.coupon_table ||
		relid == catalog.stock_table || relid == catalog.role_table)
	{
		catalog_valid = false;
		return;
	}
	for (int i = 0; i < COUPON_PARTITIONS; i++)
	{
		if (relid == catalog.leaf[i].relation)
		{
			catalog_valid = false;
			return;
		}
	}
}

static void
NamespaceChanged(Datum arg, int cacheid, uint32 hashvalue)
{
	catalog_valid = false;
}

/*
 * CatalogInit registers the invalidation callbacks; called from _PG_init.
 */
void
CatalogInit(void)
{
	CacheRegisterRelcacheCallback(RelationChanged, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, NamespaceChanged, (Datum) 0);
}

static Oid
FindTable(Oid schema, const char *name)
{
	Oid			relid = get_relname_relid(name, schema);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("table \"%s\" of extension \"coupon\" is missing", name),
				 errhint("Restore it, or drop and create the extension.")));
	return relid;
}

/*
 * FindIndex returns the valid index of a relation whose key columns are
 * exactly the named ones, in that order.
 */
static Oid
FindIndex(Relation rel, int nkeys, const char *const *keys)
{
	Oid			found = InvalidOid;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Oid			indexoid = lfirst_oid(lc);
		Relation	index = index_open(indexoid, AccessShareLock);
		Form_pg_index form = index->rd_index;
		bool		match = form->indnkeyatts == nkeys && form->indisvalid &&
			RelationGetIndexPredicate(index) == NIL &&
			index->rd_rel->relam == BTREE_AM_OID;

		for (int i = 0; match && i < nkeys; i++)
		{
			AttrNumber	att = form->indkey.values[i];

			match = att > 0 &&
				strcmp(NameStr(TupleDescAttr(RelationGetDescr(rel),
											 att - 1)->attname), keys[i]) == 0;
		}
		index_close(index, AccessShareLock);
		if (match)
		{
			found = indexoid;
			break;
		}
	}
	if (!OidIsValid(found))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("table \"%s\" lacks its index on \"%s\"",
						RelationGetRelationName(rel), keys[0]),
				 errhint("Create the index again as the documentation lists it.")));
	return found;
}

static void
FindLeaves(Catalog *cat)
{
	static const char *const user_keys[] = {"template_id", "user_id", "receive_seq"};
	static const char *const id_keys[] = {"id"};
	Relation	parent = table_open(cat->coupon_table, AccessShareLock);
	PartitionDesc desc = RelationGetPartitionDesc(parent, false);

	if (desc->nparts != COUPON_PARTITIONS || desc->boundinfo == NULL ||
		desc->boundinfo->nindexes != COUPON_PARTITIONS)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("table \"user_coupon\" does not have its %d hash partitions",
						COUPON_PARTITIONS)));

	for (int i = 0; i < COUPON_PARTITIONS; i++)
	{
		Relation	leaf = table_open(desc->oids[desc->boundinfo->indexes[i]],
									  AccessShareLock);

		cat->leaf[i].relation = RelationGetRelid(leaf);
		cat->leaf[i].user_index = FindIndex(leaf, 3, user_keys);
		cat->leaf[i].id_index = FindIndex(leaf, 1, id_keys);
		table_close(leaf, AccessShareLock);
	}
	table_close(parent, AccessShareLock);
}

static Oid
FindExtensionSchema(void)
{
	Oid			schema = InvalidOid;
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum("coupon"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (!OidIsValid(schema))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("extension \"coupon\" is not installed in this database"),
				 errhint("Run CREATE EXTENSION coupon.")));
	return schema;
}

/*
 * CatalogGet returns the look-up result, made anew if anything changed.
 *
 * The pointer stays good; its contents may change at the next call.  Raises
 * VC009 where the extension or a part of it is missing.
 */
const Catalog *
CatalogGet(void)
{
	Catalog		fresh;
	Oid			schema;
	Relation	template;
	static const char *const pkey[] = {"id"};

	if (likely(catalog_valid))
		return &catalog;

	memset(&fresh, 0, sizeof(fresh));
	/*
	 * Any invalidation that arrives during the look-up may concern what it
	 * has read already, so that the next call looks again.
	 */
	catalog_valid = catalog_building = true;
	PG_TRY();
	{
		schema = FindExtensionSchema();
		strlcpy(fresh.schema, get_namespace_name(schema), NAMEDATALEN);
		fresh.template_table = FindTable(schema, "coupon_template");
		fresh.coupon_table = FindTable(schema, "user_coupon");
		fresh.stock_table = FindTable(schema, "coupon_stock");
		fresh.role_table = FindTable(schema, "coupon_role");

		template = table_open(fresh.template_table, AccessShareLock);
		fresh.owner = template->rd_rel->relowner;
		fresh.template_pkey = FindIndex(template, 1, pkey);
		table_close(template, AccessShareLock);

		FindLeaves(&fresh);
		fresh.att_id = get_attnum(fresh.coupon_table, "id");
		fresh.att_template_id = get_attnum(fresh.coupon_table, "template_id");
		fresh.att_receive_seq = get_attnum(fresh.coupon_table, "receive_seq");
		fresh.att_use_end = get_attnum(fresh.coupon_table, "use_end");
		fresh.att_holder = get_attnum(fresh.coupon_table, "holder");
		fresh.att_request_id = get_attnum(fresh.coupon_table, "request_id");
	}
	PG_CATCH();
	{
		catalog_valid = catalog_building = false;
		PG_RE_THROW();
	}
	PG_END_TRY();

	catalog_building = false;
	if (memcmp(&fresh, &catalog, sizeof(fresh)) != 0)
		catalog_epoch++;
	catalog = fresh;
	return &catalog;
}

/*
 * CatalogEpoch changes whenever CatalogGet's answer does: what was prepared
 * under another epoch may name objects that are gone.
 */
uint64
CatalogEpoch(void)
{
	return catalog_epoch;
}

/*
 * CatalogLeafOfUser returns the partition that holds a user's coupons.
 */
const CatalogLeaf *
CatalogLeafOfUser(int64 user_id)
{
	static FmgrInfo hash;
	const Catalog *cat = CatalogGet();
	Oid			collation = InvalidOid;
	Datum		value = Int64GetDatum(user_id);
	bool		isnull = false;
	uint64		h;

	if (hash.fn_oid == InvalidOid)
		fmgr_info_cxt(F_HASHINT8EXTENDED, &hash, TopMemoryContext);
	h = compute_partition_hash_value(1, &hash, &collation, &value, &isnull);
	return &cat->leaf[h % COUPON_PARTITIONS];
}
