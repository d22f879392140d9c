/*
 * catalog.c
 *		Where the extension's own objects are.
 *
 * The claim path opens a partition and an index by OID instead of asking the
 * parser for a name each time.  The OIDs are found through pg_extension, so
 * that neither the search path nor a schema of the same name can mislead us.
 *
 * Each fact is looked up with the lock that keeps it true, and remembered until
 * an invalidation of its relation arrives.  Which partitions there are is a fact
 * of user_coupon; which indexes, columns and triggers a partition has is one
 * of the partition.  Opening a relation accepts invalidations, so what was
 * known before it is asked again after.  With a relation locked, an index that
 * was valid then stays complete until the lock is let go: REINDEX and DROP
 * INDEX CONCURRENTLY wait for all who have the table locked.
 *
 * Lock order: user_coupon before its partitions, as DDL does.  So nothing
 * here, CatalogGet included, is called with a partition locked that has not
 * been locked through its parent.
 *
 * debug_discard_caches makes every fact be forgotten at every lock; all loops
 * here end nevertheless, since what was found under a lock is believed.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/catalog.h"
#include "base/errors.h"
#include "base/installed.h"

#define INT4_NOT_EQUAL 518		/* the operator <> of int4 */

/* What is known of a partition, until it changes. */
typedef struct LeafFacts
{
	bool		found_known;
	CatalogLeaf found;			/* but for rel */
	bool		direct_known;
	bool		direct;			/* nothing on it needs the executor at insert */
} LeafFacts;

static Catalog catalog;
static bool catalog_valid = false;
static uint64 catalog_version = 0;

/*
 * Messages so far.  What was looked up is remembered only if none has arrived
 * meanwhile: of the objects of "catalog" any message counts, since those that
 * are just being looked up may be others than before.
 */
static uint64 messages = 0;
static uint64 changes = 0;		/* of those that concerned "catalog" */

static LeafFacts leaf_facts[COUPON_PARTITIONS];

static bool parent_direct_known = false;
static bool parent_direct;		/* the same of user_coupon itself */

static bool template_pkey_known = false;
static Oid	template_pkey;

static void
ForgetEverything(void)
{
	changes++;
	catalog_valid = parent_direct_known = template_pkey_known = false;
	for (int i = 0; i < COUPON_PARTITIONS; i++)
		leaf_facts[i].found_known = leaf_facts[i].direct_known = false;
}

/* Registered once in CatalogInit; must not do any look-up itself. */
static void
RelationChanged(Datum arg, Oid relid)
{
	messages++;
	if (relid == InvalidOid || relid == catalog.coupon_table ||
		relid == catalog.template_table || relid == catalog.stock_table ||
		relid == catalog.role_table)
	{
		ForgetEverything();
		return;
	}
	for (int i = 0; i < COUPON_PARTITIONS; i++)
	{
		if (relid != catalog.leaf[i])
			continue;
		changes++;
		leaf_facts[i].found_known = leaf_facts[i].direct_known = false;
	}
}

/* ALTER SCHEMA RENAME changes the name that saved statements contain. */
static void
SyscacheChanged(Datum arg, int cacheid, uint32 hashvalue)
{
	messages++;
	ForgetEverything();
}

/*
 * CatalogInit registers the invalidation callbacks; called from _PG_init.
 */
void
CatalogInit(void)
{
	CacheRegisterRelcacheCallback(RelationChanged, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, SyscacheChanged, (Datum) 0);
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
 * Whether an index has all rows, or, where a column is given, all but those that are
 * imported or without a holder: WHERE holder <> 3.  The predicate is read as it is
 * stored: what the relation cache makes of it has been evaluated.
 */
static bool
HasAllRows(Relation index, AttrNumber holder)
{
	bool		isnull;
	Datum		stored = SysCacheGetAttr(INDEXRELID, index->rd_indextuple,
										 Anum_pg_index_indpred, &isnull);
	OpExpr	   *differs;

	if (isnull)
		return true;
	differs = stringToNode(TextDatumGetCString(stored));
	if (IsA(differs, List) && list_length((List *) differs) == 1)
		differs = linitial((List *) differs);
	return holder != InvalidAttrNumber && IsA(differs, OpExpr) && differs->opno == INT4_NOT_EQUAL &&
		IsA(linitial(differs->args), Var) &&
		((Var *) linitial(differs->args))->varattno == holder &&
		IsA(lsecond(differs->args), Const) &&
		DatumGetInt32(((Const *) lsecond(differs->args))->constvalue) == HOLDER_IMPORTED;
}

/*
 * FindIndex returns the valid index of a relation whose key columns are
 * exactly the named ones, in that order.  holder: see HasAllRows.
 */
static Oid
FindIndex(Relation rel, bool unique, int nkeys, const char *const *keys, AttrNumber holder)
{
	Oid			found = InvalidOid;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Oid			indexoid = lfirst_oid(lc);
		Relation	index = index_open(indexoid, AccessShareLock);
		Form_pg_index form = index->rd_index;
		bool		match = form->indnkeyatts == nkeys && form->indisvalid &&
			(form->indisunique || !unique) &&
			HasAllRows(index, holder) &&
			index->rd_rel->relam == BTREE_AM_OID;

		for (int i = 0; match && i < nkeys; i++)
		{
			AttrNumber	att = form->indkey.values[i];

			match = att > 0 && index->rd_indoption[i] == 0 &&
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
FindInLeaf(Relation rel, CatalogLeaf *found)
{
	static const char *const user_keys[] = {"template_id", "user_id", "receive_seq"};
	static const char *const id_keys[] = {"id"};

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("partition \"%s\" of user_coupon is not an ordinary table",
						RelationGetRelationName(rel)),
				 errhint("Attach one that is.")));
	InstalledFindCoupon(rel, found->column);
	found->user_index = FindIndex(rel, true, lengthof(user_keys), user_keys,
									InvalidAttrNumber);
	found->id_index = FindIndex(rel, false, lengthof(id_keys), id_keys,
								  found->column[COUPON_HOLDER]);
}

/* Of somebody's with an expression or a predicate: both are evaluated. */
static bool
IsEvaluated(Relation index, AttrNumber holder)
{
	return !heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) ||
		!HasAllRows(index, holder);
}

static bool
HasSpecialIndex(Relation rel)
{
	bool		special = false;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;

		special |= !form->indimmediate || form->indisexclusion || IsEvaluated(index, COUPON_HOLDER);
		index_close(index, AccessShareLock);
	}
	return special;
}

/*
 * Whether an insert would fire a trigger that is not ours.  No look-up in
 * here: it would accept invalidations, and these free trigdesc.
 */
static bool
HasForeignInsertTrigger(Relation rel)
{
	const TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (TRIGGER_FOR_INSERT(triggers->triggers[i].tgtype) &&
			triggers->triggers[i].tgfoid != catalog.coupon_guard)
			return true;
	}
	return false;
}

/* Whether nothing on the parent, or on a leaf, has to be heeded by an insert. */
static bool
IsPlain(Relation rel)
{
	return InstalledIsCoupon(rel, catalog.coupon_sane) &&
		rel->rd_rules == NULL && !rel->rd_rel->relforcerowsecurity &&
		!HasForeignInsertTrigger(rel);
}

/*
 * Whether rows can be put into a partition as insert.c does: it has the
 * columns, no CHECK and no triggers but those that it was installed with, and
 * nothing else that an INSERT would have to heed.
 */
static bool
IsPlainLeaf(Relation leaf)
{
	TupleConstr *constr = RelationGetDescr(leaf)->constr;

	return IsPlain(leaf) && constr != NULL && !constr->has_generated_stored &&
		leaf->rd_rel->relkind == RELKIND_RELATION &&
		leaf->rd_rel->relam == HEAP_TABLE_AM_OID && !HasSpecialIndex(leaf);
}

static void
FindLeaves(Catalog *cat)
{
	Relation	parent = table_open(cat->coupon_table, AccessShareLock);
	PartitionDesc desc = RelationGetPartitionDesc(parent, false);

	if (desc->nparts != COUPON_PARTITIONS || desc->detached_exist ||
		desc->boundinfo == NULL || desc->boundinfo->nindexes != COUPON_PARTITIONS)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("table \"user_coupon\" does not have its %d hash partitions",
						COUPON_PARTITIONS)));
	for (int i = 0; i < COUPON_PARTITIONS; i++)
		cat->leaf[i] = desc->oids[desc->boundinfo->indexes[i]];
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

static Oid
FindOwner(Oid relation)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relation);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

static void
FindObjects(Catalog *cat)
{
	static const Oid sane_types[] = {
		INT8OID, INT8OID, INT4OID, INT2OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
		INT4OID, TEXTOID, NUMERICOID, TIMESTAMPTZOID, TIMESTAMPTZOID, NUMERICOID
	};
	Oid			schema = FindExtensionSchema();
	char	   *name = get_namespace_name(schema);

	strlcpy(cat->schema, name ? name : "", NAMEDATALEN);
	cat->template_table = FindTable(schema, "coupon_template");
	cat->coupon_table = FindTable(schema, "user_coupon");
	cat->stock_table = FindTable(schema, "coupon_stock");
	cat->watermark_table = FindTable(schema, "coupon_watermark");
	cat->role_table = FindTable(schema, "coupon_role");
	cat->queue_table = FindTable(schema, "coupon_notification");
	cat->history_table = FindTable(schema, "coupon_notification_history");
	cat->remind_table = FindTable(schema, "coupon_remind");
	cat->owner = FindOwner(cat->template_table);
	cat->coupon_guard = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										CStringGetDatum("user_coupon_guard"),
										PointerGetDatum(buildoidvector(NULL, 0)),
										ObjectIdGetDatum(schema));
	cat->coupon_sane = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
									   CStringGetDatum("user_coupon_sane"),
									   PointerGetDatum(buildoidvector(sane_types, lengthof(sane_types))),
									   ObjectIdGetDatum(schema));
	FindLeaves(cat);
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
	uint64		seen = messages;

	if (likely(catalog_valid))
		return &catalog;

	memset(&fresh, 0, sizeof(fresh));
	FindObjects(&fresh);
	catalog_valid = seen == messages;
	if (memcmp(&fresh, &catalog, sizeof(fresh)) != 0)
	{
		bool		valid = catalog_valid;

		ForgetEverything();
		catalog = fresh;
		catalog_valid = valid;
		catalog_version++;
	}
	return &catalog;
}

/*
 * CatalogVersion changes whenever CatalogGet's answer does: what was prepared
 * under another version may name objects that are gone.
 */
uint64
CatalogVersion(void)
{
	return catalog_version;
}

/*
 * Lock user_coupon, and return what is so while it is locked: which partitions
 * it has.
 */
static const Catalog *
LockParent(LOCKMODE mode)
{
	for (;;)
	{
		Oid			parent = CatalogGet()->coupon_table;

		LockRelationOid(parent, mode);
		if (CatalogGet()->coupon_table == parent)
			return &catalog;
		UnlockRelationOid(parent, mode);	/* dropped, and created again */
	}
}

/*
 * Open a partition.  As a rule its parent need not be locked for that: it has
 * surely not changed if no invalidation has arrived once the partition is
 * locked.
 */
static Relation
OpenLeafRelation(int number)
{
	Relation	rel = try_table_open(CatalogGet()->leaf[number], AccessShareLock);
	Oid			parent;

	if (likely(rel != NULL && catalog_valid))
		return rel;
	if (rel != NULL)
		table_close(rel, AccessShareLock);

	parent = LockParent(AccessShareLock)->coupon_table;
	rel = table_open(catalog.leaf[number], AccessShareLock);
	UnlockRelationOid(parent, AccessShareLock);
	return rel;
}

/*
 * CatalogOpenLeaf opens a partition, locked in AccessShareLock mode, and tells
 * where its columns and indexes are, which stays so until it is closed.
 *
 * Raises VC009 where it lacks one of them.
 */
void
CatalogOpenLeaf(int number, CatalogLeaf *leaf)
{
	LeafFacts  *facts = &leaf_facts[number];
	Relation	rel = OpenLeafRelation(number);

	if (unlikely(!facts->found_known))
	{
		uint64		seen = changes;

		FindInLeaf(rel, &facts->found);
		facts->found_known = seen == changes;
	}
	*leaf = facts->found;
	leaf->rel = rel;
}

/*
 * CatalogOpenTemplates opens coupon_template in AccessShareLock mode, and
 * tells which index is the one on (id).
 */
Relation
CatalogOpenTemplates(Oid *primary_key)
{
	static const char *const keys[] = {"id"};
	Relation	rel = table_open(CatalogGet()->template_table, AccessShareLock);

	if (unlikely(!template_pkey_known))
	{
		uint64		seen = changes;

		template_pkey = FindIndex(rel, true, lengthof(keys), keys, InvalidAttrNumber);
		template_pkey_known = seen == changes;
	}
	*primary_key = template_pkey;
	return rel;
}

/* Both user_coupon and the partition are locked. */
static bool
IsDirect(int number)
{
	LeafFacts  *facts = &leaf_facts[number];
	Relation	rel;

	if (!facts->direct_known)
	{
		uint64		seen = changes;

		rel = table_open(catalog.leaf[number], NoLock);
		facts->direct = IsPlainLeaf(rel);
		facts->direct_known = seen == changes;
		table_close(rel, NoLock);
	}
	return facts->direct;
}

static bool
IsParentDirect(void)
{
	Relation	rel;

	if (!parent_direct_known)
	{
		uint64		seen = changes;

		rel = table_open(catalog.coupon_table, NoLock);
		parent_direct = IsPlain(rel);
		parent_direct_known = seen == changes;
		table_close(rel, NoLock);
	}
	return parent_direct;
}

/*
 * CatalogLockForInsert takes the locks that an INSERT into the wanted
 * partitions takes, to the end of the transaction, and tells whether rows may
 * be put into them past the executor (insert.c).
 */
bool
CatalogLockForInsert(const bool *wanted)
{
	bool		direct;

	(void) LockParent(RowExclusiveLock);
	direct = IsParentDirect();
	for (int i = 0; i < COUPON_PARTITIONS; i++)
	{
		if (!wanted[i])
			continue;
		LockRelationOid(catalog.leaf[i], RowExclusiveLock);
		direct = direct && IsDirect(i);
	}
	return direct;
}

/*
 * CatalogLeafNumber returns which partition holds a user's coupons, as index
 * of "leaf".
 */
int
CatalogLeafNumber(int64 user_id)
{
	static FmgrInfo hash;
	Oid			collation = InvalidOid;
	Datum		value = Int64GetDatum(user_id);
	bool		isnull = false;
	uint64		h;

	if (hash.fn_oid == InvalidOid)
		fmgr_info_cxt(F_HASHINT8EXTENDED, &hash, TopMemoryContext);
	h = compute_partition_hash_value(1, &hash, &collation, &value, &isnull);
	return (int) (h % COUPON_PARTITIONS);
}
