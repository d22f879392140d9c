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
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "miscadmin.h"
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
#include "installed.h"

/* The row triggers that tell of every row of a table, as they are installed. */
#define GUARD_ROW_TRIGGERS 2
#define LEAF_GUARD "user_coupon_guard"

typedef struct GuardTriggers
{
	const char *function;
	int16		type[GUARD_ROW_TRIGGERS];
	int			columns[GUARD_ROW_TRIGGERS];	/* how many after UPDATE OF */
} GuardTriggers;

#define ROW_BEFORE (TRIGGER_TYPE_ROW | TRIGGER_TYPE_BEFORE)

static const GuardTriggers leaf_guard = {LEAF_GUARD,
	{ROW_BEFORE | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_DELETE,
	ROW_BEFORE | TRIGGER_TYPE_UPDATE}, {0, 5}
};

static const GuardTriggers template_guard = {"coupon_template_guard",
	{TRIGGER_TYPE_ROW | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE,
	ROW_BEFORE | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE}, {0, 0}
};

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
	/* pg_trigger when it is rewritten: its rows are elsewhere then. */
	if (relid == InvalidOid || catalog_building || relid == TriggerRelationId ||
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
SyscacheChanged(Datum arg, int cacheid, uint32 hashvalue)
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
	CacheRegisterSyscacheCallback(NAMESPACEOID, SyscacheChanged, (Datum) 0);
	CacheRegisterSyscacheCallback(DATABASEOID, SyscacheChanged, (Datum) 0);
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
FindColumns(Catalog *cat)
{
	Oid			rel = cat->coupon_table;

	cat->att_id = get_attnum(rel, "id");
	cat->att_user_id = get_attnum(rel, "user_id");
	cat->att_template_id = get_attnum(rel, "template_id");
	cat->att_received_at = get_attnum(rel, "received_at");
	cat->att_use_start = get_attnum(rel, "use_start");
	cat->att_use_end = get_attnum(rel, "use_end");
	cat->att_receive_seq = get_attnum(rel, "receive_seq");
	cat->att_holder = get_attnum(rel, "holder");
	cat->att_status = get_attnum(rel, "status");
	cat->att_source = get_attnum(rel, "source");
	cat->att_request_id = get_attnum(rel, "request_id");
}

static bool
IsOurGuard(Oid function, Oid schema, const char *guard)
{
	char	   *name = get_func_name(function);

	return name != NULL && strcmp(name, guard) == 0 &&
		get_func_namespace(function) == schema;
}

/* Whether an insert would fire a trigger that is not ours. */
static bool
HasForeignInsertTrigger(Relation rel, Oid schema)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (TRIGGER_FOR_INSERT(trigger->tgtype) &&
			!IsOurGuard(trigger->tgfoid, schema, LEAF_GUARD))
			return true;
	}
	return false;
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

		special |= !form->indimmediate || form->indisexclusion;
		index_close(index, AccessShareLock);
	}
	return special;
}

/* The columns of user_coupon as they are installed, in order. */
static const struct
{
	const char *name;
	Oid			type;
	bool		not_null;
	bool		given;			/* by insert.c, so that a default is not used */
}			installed_columns[COUPON_COLUMNS] =
{
	{"id", INT8OID, true, true},
	{"user_id", INT8OID, true, true},
	{"template_id", INT8OID, true, true},
	{"received_at", TIMESTAMPTZOID, true, true},
	{"use_start", TIMESTAMPTZOID, true, true},
	{"use_end", TIMESTAMPTZOID, true, true},
	{"receive_seq", INT4OID, true, true},
	{"holder", INT4OID, false, true},
	{"status", INT2OID, true, true},
	{"source", TEXTOID, true, true},
	{"order_id", INT8OID, false, false},
	{"locked_until", TIMESTAMPTZOID, false, false},
	{"used_at", TIMESTAMPTZOID, false, false},
	{"discount", NUMERICOID, false, false},
	{"request_id", TEXTOID, false, true},
};

static bool
HasInstalledColumns(TupleDesc desc)
{
	if (desc->natts != COUPON_COLUMNS)
		return false;
	for (int i = 0; i < COUPON_COLUMNS; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped ||
			strcmp(NameStr(att->attname), installed_columns[i].name) != 0 ||
			att->atttypid != installed_columns[i].type ||
			att->attnotnull != installed_columns[i].not_null ||
			(att->atthasdef && !installed_columns[i].given))
			return false;
	}
	return true;
}

/*
 * Whether rows can be put into a partition as insert.c does: it and its parent
 * have the columns, no CHECK and no triggers but those that they were installed
 * with, and nothing else that an INSERT would have to heed.
 */
static bool
CanInsertDirectly(Relation parent, Relation leaf, Oid schema)
{
	TupleDesc	desc = RelationGetDescr(leaf);
	TupleConstr *constr = desc->constr;

	if (!HasInstalledColumns(desc) ||
		!HasInstalledColumns(RelationGetDescr(parent)))
		return false;
	if (constr == NULL || constr->has_generated_stored ||
		!InstalledChecksOnly(leaf, "user_coupon"))
		return false;
	return leaf->rd_rel->relkind == RELKIND_RELATION &&
		leaf->rd_rel->relam == HEAP_TABLE_AM_OID &&
		leaf->rd_rules == NULL && parent->rd_rules == NULL &&
		!leaf->rd_rel->relforcerowsecurity &&
		!parent->rd_rel->relforcerowsecurity &&
		!HasForeignInsertTrigger(leaf, schema) &&
		!HasForeignInsertTrigger(parent, schema) && !HasSpecialIndex(leaf);
}

static void
FindLeaves(Catalog *cat, Oid schema)
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
		cat->leaf[i].direct = CanInsertDirectly(parent, leaf, schema);
		table_close(leaf, AccessShareLock);
	}
	table_close(parent, AccessShareLock);
}

/* Which of the triggers it is, as a bit, where it fires always and for each row. */
static int
FiringGuard(Relation triggers, HeapTuple tuple, const GuardTriggers *guard)
{
	Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);

	if (form->tgenabled != TRIGGER_FIRES_ALWAYS ||
		!heap_attisnull(tuple, Anum_pg_trigger_tgqual, RelationGetDescr(triggers)))
		return 0;
	for (int i = 0; i < GUARD_ROW_TRIGGERS; i++)
	{
		if (form->tgtype == guard->type[i] && form->tgattr.dim1 == guard->columns[i])
			return 1 << i;
	}
	return 0;
}

/*
 * A number for the row triggers on a table that tell of inserted and updated
 * rows.  It contains who wrote them in pg_trigger and where, so that it changes
 * when one is switched off, and again when it is switched on.  0: not all are there
 * and fire always.
 */
static uint64
GuardOfTable(Relation triggers, Oid table, Oid schema, const GuardTriggers *ours)
{
	uint64		guard = 1;
	int			firing = 0;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(table));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL, 1,
							  &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);

		if (!TRIGGER_FOR_ROW(form->tgtype) || !IsOurGuard(form->tgfoid, schema, ours->function))
			continue;
		firing |= FiringGuard(triggers, tuple, ours);
		guard = hash_combine64(guard, form->oid);
		guard = hash_combine64(guard, HeapTupleHeaderGetRawXmin(tuple->t_data));
		guard = hash_combine64(guard, ItemPointerGetBlockNumber(&tuple->t_self));
		guard = hash_combine64(guard, ItemPointerGetOffsetNumber(&tuple->t_self));
	}
	systable_endscan(scan);
	return firing == (1 << GUARD_ROW_TRIGGERS) - 1 ? guard : 0;
}

/* The transaction that wrote a row of a system catalog. */
static uint64
Writer(HeapTuple tuple)
{
	uint64		xid;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for what a number is made of");
	xid = HeapTupleHeaderGetRawXmin(tuple->t_data);
	ReleaseSysCache(tuple);
	return xid;
}

/*
 * What the triggers of coupon_template do not see changes its number too: the
 * file, by a rewrite; the column, renamed; the database, when there was another
 * one with its OID.
 */
static uint64
GuardOfTemplates(Relation triggers, Oid table, Oid schema, Oid file)
{
	uint64		guard = GuardOfTable(triggers, table, schema, &template_guard);

	if (guard == 0)
		return 0;
	guard = hash_combine64(guard, file);
	guard = hash_combine64(guard, Writer(SearchSysCacheAttName(table, "id")));
	guard = hash_combine64(guard, Writer(SearchSysCache1(DATABASEOID,
														 ObjectIdGetDatum(MyDatabaseId))));
	return guard | 1;
}

static void
FindGuards(Catalog *cat, Oid schema, Oid template_file)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);

	cat->guard = 1;
	for (int i = 0; i < COUPON_PARTITIONS && cat->guard != 0; i++)
	{
		uint64		guard = GuardOfTable(triggers, cat->leaf[i].relation, schema,
										 &leaf_guard);

		cat->guard = guard == 0 ? 0 : hash_combine64(cat->guard, guard) | 1;
	}

	cat->template_guard = GuardOfTemplates(triggers, cat->template_table, schema,
										   template_file);
	table_close(triggers, AccessShareLock);
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
	char	   *name;
	Relation	template;
	Oid			template_file;
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
		name = get_namespace_name(schema);
		strlcpy(fresh.schema, name ? name : "", NAMEDATALEN);
		fresh.template_table = FindTable(schema, "coupon_template");
		fresh.coupon_table = FindTable(schema, "user_coupon");
		fresh.stock_table = FindTable(schema, "coupon_stock");
		fresh.role_table = FindTable(schema, "coupon_role");
		fresh.queue_table = FindTable(schema, "coupon_notification");
		fresh.history_table = FindTable(schema, "coupon_notification_history");
		fresh.remind_table = FindTable(schema, "coupon_remind");

		template = table_open(fresh.template_table, AccessShareLock);
		fresh.owner = template->rd_rel->relowner;
		template_file = template->rd_rel->relfilenode;
		fresh.template_pkey = FindIndex(template, 1, pkey);
		table_close(template, AccessShareLock);

		FindLeaves(&fresh, schema);
		FindGuards(&fresh, schema, template_file);
		FindColumns(&fresh);
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
 * CatalogIsCurrent tells whether CatalogGet would answer without looking: it
 * locks user_coupon to look, which one who holds a partition must not.
 */
bool
CatalogIsCurrent(void)
{
	return catalog_valid;
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
