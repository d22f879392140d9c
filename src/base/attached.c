/*
 * attached.c
 *		Whose functions and types hang on our tables.
 *
 * A shop may have triggers, CHECKs, defaults, generated columns and indexes of its
 * own on our tables.  When a statement of ours writes such a table, or is planned, they
 * are evaluated as the owner of the extension, a superuser.  Functions are switched to the
 * caller (caller.c), but an expression is more than the functions that it calls:
 * default arguments are put into it, a domain adds its CHECK and default, a foreign
 * key the cast of a type, and the body of an SQL function may stand in place of its
 * call.  And in a background worker there is no caller to switch to.  Whoever owns
 * such a function or type can change it at any time.
 *
 * So all that is used there, directly or by something that is used, has to belong
 * to a superuser or to the owner of the extension: functions, types, operators,
 * sequences, tables that foreign keys join with ours, child tables.  There are no rules,
 * foreign keys join columns of one built-in type, and SQL functions have their body
 * parsed (BEGIN ATOMIC), or a SET clause.  Else our statements refuse the table.
 * PostgreSQL's own record of what depends on what tells what is used
 * (coupon_attached_objects).
 *
 * A verdict is remembered per session and table until the table changes; where
 * anything that is neither built in nor ours is used, until any such object, or any role,
 * changes.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "common/hashfn.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "parser/parsetree.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/attached.h"
#include "base/caller.h"
#include "base/errors.h"
#include "base/owner_query.h"

/* A table that may be used. */
typedef struct Verdict
{
	Oid			relation;		/* key */
	bool		plain;			/* nothing is used but what is built in, or ours */
	uint64		tree;			/* its partitions were judged, too, when "forgotten" was this */
} Verdict;

/* An object as messages of invalidation name it. */
typedef struct UsedObject
{
	Oid			catalog;		/* pg_proc, pg_type, pg_operator or pg_class */
	uint32		hash;			/* as in its syscache; of a relation, the OID */
} UsedObject;

#define CHANGE_BITS 8192

static HTAB *verdicts = NULL;
static HTAB *used = NULL;		/* by tables that are not plain */
static uint64 forgotten = 1;	/* verdicts, so far */

/*
 * What has changed since a judgement began: a Bloom filter with one hash function, so that
 * the changes of others, however many, do not make it worthless.
 */
static uint64 changes[CHANGE_BITS / 64];
static bool all_changed = false;

static post_parse_analyze_hook_type previous_analyze = NULL;
static planner_hook_type previous_planner = NULL;
static ExecutorStart_hook_type previous_start = NULL;

/* For each table what is attached, a null if nothing is. */
static OwnerQuery attached_objects = {
	"SELECT t, x.catalog, x.id, x.object, x.problem FROM pg_catalog.unnest($1) t"
	" LEFT JOIN LATERAL %1$s.coupon_attached_objects(t) x ON true",
	1, {REGCLASSARRAYOID}
};

static void
Forget(Oid relation)
{
	if (hash_search(verdicts, &relation, HASH_REMOVE, NULL) != NULL)
		forgotten++;
}

static void
ForgetMany(bool also_plain)
{
	HASH_SEQ_STATUS all;
	Verdict    *verdict;

	hash_seq_init(&all, verdicts);
	while ((verdict = hash_seq_search(&all)) != NULL)
	{
		if (also_plain || !verdict->plain)
			Forget(verdict->relation);
	}
	all_changed = true;
}

static uint64 *
ChangeWord(const UsedObject *object, uint64 *bit)
{
	uint32		n = hash_combine(murmurhash32(object->catalog), object->hash) % CHANGE_BITS;

	*bit = UINT64CONST(1) << (n % 64);
	return &changes[n / 64];
}

static bool
HasChanged(const UsedObject *object)
{
	uint64		bit;

	return all_changed || (*ChangeWord(object, &bit) & bit) != 0;
}

static void
NoteChange(Oid catalog, uint32 hash)
{
	UsedObject	object = {catalog, hash};
	uint64		bit;

	*ChangeWord(&object, &bit) |= bit;
	if (hash_search(used, &object, HASH_FIND, NULL) != NULL)
		ForgetMany(false);
}

/* Callbacks: no look-up in here. */
static void
RelationChanged(Datum arg, Oid relation)
{
	if (!OidIsValid(relation))
		ForgetMany(true);
	else
	{
		Forget(relation);
		NoteChange(RelationRelationId, relation);
	}
}

/* arg: the catalog that the cache is of; invalid: any change matters. */
static void
ObjectChanged(Datum arg, int cacheid, uint32 hash)
{
	if (hash == 0 || !OidIsValid(DatumGetObjectId(arg)))
		ForgetMany(false);
	else
		NoteChange(DatumGetObjectId(arg), hash);
}

static UsedObject
MakeUsed(Oid catalog, Oid id)
{
	UsedObject	object = {catalog, id};

	if (catalog == ProcedureRelationId)
		object.hash = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(id));
	else if (catalog == TypeRelationId)
		object.hash = GetSysCacheHashValue1(TYPEOID, ObjectIdGetDatum(id));
	else if (catalog == OperatorRelationId)
		object.hash = GetSysCacheHashValue1(OPEROID, ObjectIdGetDatum(id));
	return object;
}

static void
Refuse(int row, Oid relation)
{
	bool		isnull;
	char	   *object = TextDatumGetCString(QueryText(row, 4, &isnull));
	char	   *problem = TextDatumGetCString(QueryText(row, 5, &isnull));

	ereport(ERROR,
			(errcode(ERRCODE_COUPON_ATTACHED),
			 errmsg("table \"%s\" cannot be used: %s %s", get_rel_name(relation), object, problem),
			 errdetail("Triggers, CHECKs, defaults, generated columns, indexes and foreign keys of the table are evaluated as the owner of the extension; whoever can change them could become that."),
			 errhint("Give the object to a superuser with ALTER … OWNER TO, give the function a SET clause, or drop what uses it.")));
}

/* A row of attached_objects: a table, and what it uses. */
typedef struct AttachedRow
{
	Oid			table;
	bool		plain;			/* nothing */
	UsedObject	object;
} AttachedRow;

/* Remember what was judged, unless something of it has changed meanwhile. */
static void
Remember(const AttachedRow *rows, uint64 nrows)
{
	for (uint64 i = 0; i < nrows; i++)
	{
		UsedObject	table = {RelationRelationId, rows[i].table};

		if (HasChanged(&table) || (!rows[i].plain && HasChanged(&rows[i].object)))
			return;
	}
	for (uint64 i = 0; i < nrows; i++)
	{
		Verdict    *verdict = hash_search(verdicts, &rows[i].table, HASH_ENTER, NULL);

		verdict->plain = rows[i].plain; /* all rows of a table say the same */
		verdict->tree = 0;
		if (!rows[i].plain)
			(void) hash_search(used, &rows[i].object, HASH_ENTER, NULL);
	}
}

/* Judge tables; raises VC016 for one that cannot be used. */
static void
Judge(Datum *tables, int ntables)
{
	Datum		argument = PointerGetDatum(construct_array(tables, ntables, REGCLASSOID,
														   sizeof(Oid), true, TYPALIGN_INT));
	AttachedRow *rows;
	uint64		nrows;
	QueryScope	scope;

	memset(changes, 0, sizeof(changes));
	all_changed = false;
	QueryBegin(&scope);
	QueryPlanByIndex();
	nrows = QueryRunLatest(&attached_objects, &argument, NULL);
	rows = palloc0(nrows * sizeof(AttachedRow));
	for (uint64 i = 0; i < nrows; i++)
	{
		bool		isnull;
		bool		good;
		Oid			catalog = DatumGetObjectId(QueryValue(i, 2, &rows[i].plain));

		rows[i].table = DatumGetObjectId(QueryValue(i, 1, &isnull));
		if (!rows[i].plain)
			rows[i].object = MakeUsed(catalog, DatumGetObjectId(QueryValue(i, 3, &isnull)));
		(void) QueryValue(i, 5, &good);
		if (!good)
			Refuse(i, rows[i].table);
	}
	Remember(rows, nrows);
	QueryEnd(&scope);
}

/*
 * AttachedCheck raises VC016 where something hangs on tables, a list of OIDs, with
 * which they must not be read or written as the owner.
 */
void
AttachedCheck(const List *relations)
{
	Datum	   *unknown = palloc(list_length(relations) * sizeof(Datum));
	int			n = 0;
	const ListCell *lc;

	foreach(lc, relations)
	{
		if (hash_search(verdicts, &lfirst_oid(lc), HASH_FIND, NULL) == NULL)
			unknown[n++] = ObjectIdGetDatum(lfirst_oid(lc));
	}
	if (n > 0)
		Judge(unknown, n);
	pfree(unknown);
}

/* A table that a statement of ours reads or writes, with its partitions and children. */
static void
CheckTree(Oid relation)
{
	Verdict    *verdict = hash_search(verdicts, &relation, HASH_FIND, NULL);
	List	   *tree;
	ListCell   *lc;
	bool		known = true;

	if (relation < FirstNormalObjectId ||
		likely(verdict != NULL && verdict->tree == forgotten))
		return;
	tree = find_all_inheritors(relation, NoLock, NULL);
	AttachedCheck(tree);
	foreach(lc, tree)
		known &= hash_search(verdicts, &lfirst_oid(lc), HASH_FIND, NULL) != NULL;
	verdict = hash_search(verdicts, &relation, HASH_FIND, NULL);
	if (known && verdict != NULL)
		verdict->tree = forgotten;
}

static bool
CheckQuery(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *entry = (RangeTblEntry *) node;

		if (entry->rtekind == RTE_RELATION && entry->relkind != RELKIND_VIEW)
			CheckTree(entry->relid);
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, CheckQuery, context, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, CheckQuery, context);
}

/*
 * Before a statement is planned: the planner evaluates what is constant in the
 * predicates of indexes and in extended statistics, of tables that are only read, too.
 */
static PlannedStmt *
PlanStatement(Query *query, const char *text, int options, ParamListInfo params)
{
	if (CallerSqlIsOurs())
		(void) CheckQuery((Node *) query, NULL);
	return previous_planner ? previous_planner(query, text, options, params) :
		standard_planner(query, text, options, params);
}

/* Before the statement is rewritten: rules would be planned otherwise. */
static void
AnalyzeStatement(ParseState *state, Query *query, JumbleState *jumble)
{
	if (previous_analyze)
		previous_analyze(state, query, jumble);
	if (query->resultRelation > 0 && CallerSqlIsOurs())
		CheckTree(rt_fetch(query->resultRelation, query->rtable)->relid);
}

static void
StartStatement(QueryDesc *query, int flags)
{
	const PlannedStmt *statement = query->plannedstmt;
	ListCell   *lc;

	if (statement->resultRelations != NIL && CallerSqlIsOurs())
	{
		foreach(lc, statement->resultRelations)
			CheckTree(rt_fetch(lfirst_int(lc), statement->rtable)->relid);
	}
	if (previous_start)
		previous_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

/*
 * AttachedInit sets the hooks and registers the callbacks; called once, from
 * _PG_init.
 */
void
AttachedInit(void)
{
	static const struct
	{
		int			cacheid;
		Oid			catalog;	/* invalid: any change of it matters */
	}			caches[] = {
		{PROCOID, ProcedureRelationId}, {TYPEOID, TypeRelationId},
		{OPEROID, OperatorRelationId}, {AUTHOID, InvalidOid}, {CASTSOURCETARGET, InvalidOid},
		{CLAOID, InvalidOid}, {AMPROCNUM, InvalidOid}, {AMOPSTRATEGY, InvalidOid},
	};
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Verdict)};
	HASHCTL		used_control = {.keysize = sizeof(UsedObject), .entrysize = sizeof(UsedObject)};

	verdicts = hash_create("coupon attached", 64, &control, HASH_ELEM | HASH_BLOBS);
	used = hash_create("coupon used objects", 64, &used_control, HASH_ELEM | HASH_BLOBS);
	CacheRegisterRelcacheCallback(RelationChanged, (Datum) 0);
	for (int i = 0; i < lengthof(caches); i++)
		CacheRegisterSyscacheCallback(caches[i].cacheid, ObjectChanged,
									  ObjectIdGetDatum(caches[i].catalog));
	previous_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = AnalyzeStatement;
	previous_planner = planner_hook;
	planner_hook = PlanStatement;
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = StartStatement;
}
