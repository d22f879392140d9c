/*
 * expressions.c
 *		Whose functions and types stand in the expressions of our tables.
 *
 * A shop may add a CHECK, a default, a generated column, an index or a trigger
 * with a WHEN to our tables.  When a statement of ours writes such a table, what is
 * evaluated there is evaluated as the owner of the extension, a superuser.
 * Functions are switched to the caller (caller.c), but an expression is more than
 * the functions that it calls: default arguments are put into it, a domain adds
 * its CHECK and default, a foreign key the cast of a type.  Whoever owns such a
 * function or type can change these at any time, and name built-in functions in
 * them, which run as the owner.  So all that is used there, directly or by
 * something that is used, has to belong to a superuser or to the owner of the
 * table; else our statements refuse to write the table.
 *
 * Trigger functions may be anybody's: they are called without arguments, and
 * switched.  PostgreSQL's own record of what depends on what, pg_depend, says what
 * is used (coupon_used_by_expressions).
 *
 * A verdict is remembered per session and table until the table changes; where
 * anything that is neither built in nor ours is used, until any function, type or role
 * changes.
 */
#include "postgres.h"

#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "parser/parsetree.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/caller.h"
#include "base/errors.h"
#include "base/expressions.h"
#include "base/owner_query.h"

/* A table that may be written. */
typedef struct Verdict
{
	Oid			relation;		/* key */
	bool		plain;			/* nothing is used but what is built in, or ours */
} Verdict;

static HTAB *verdicts = NULL;
static uint64 messages = 0;		/* of invalidation, so far */

static ExecutorStart_hook_type previous_start = NULL;

/* For each table what is not trusted, else what is neither built in nor ours, if anything. */
static OwnerQuery used_by_expressions = {
	"SELECT t, u.object, u.role, u.trusted FROM pg_catalog.unnest($1) t LEFT JOIN LATERAL ("
	" SELECT x.object, x.role, x.trusted FROM %1$s.coupon_used_by_expressions(t) x"
	" ORDER BY x.trusted LIMIT 1) u ON true",
	1, {REGCLASSARRAYOID}
};

/* Callbacks: no look-up in here. */
static void
RelationChanged(Datum arg, Oid relation)
{
	messages++;
	if (OidIsValid(relation))
		(void) hash_search(verdicts, &relation, HASH_REMOVE, NULL);
	else
	{
		HASH_SEQ_STATUS all;
		Verdict    *verdict;

		hash_seq_init(&all, verdicts);
		while ((verdict = hash_seq_search(&all)) != NULL)
			(void) hash_search(verdicts, &verdict->relation, HASH_REMOVE, NULL);
	}
}

static void
ObjectChanged(Datum arg, int cacheid, uint32 hashvalue)
{
	HASH_SEQ_STATUS all;
	Verdict    *verdict;

	messages++;
	hash_seq_init(&all, verdicts);
	while ((verdict = hash_seq_search(&all)) != NULL)
	{
		if (!verdict->plain)
			(void) hash_search(verdicts, &verdict->relation, HASH_REMOVE, NULL);
	}
}

static void
Refuse(int row, Oid relation)
{
	bool		isnull;
	char	   *object = TextDatumGetCString(QueryText(row, 2, &isnull));
	char	   *role = TextDatumGetCString(QueryText(row, 3, &isnull));

	ereport(ERROR,
			(errcode(ERRCODE_COUPON_DISTRUSTED),
			 errmsg("%s, which belongs to role \"%s\", stands in an expression of table \"%s\"",
					object, role, get_rel_name(relation)),
			 errdetail("CHECKs, defaults, generated columns, indexes, foreign keys and WHEN of the table are evaluated as the owner of the extension; whoever owns a function or type in them could become that."),
			 errhint("Give it to a superuser with ALTER … OWNER TO, or drop the constraint, default, index or trigger.")));
}

/* Judge tables, and remember it unless something has changed meanwhile. */
static void
Judge(Datum *relations, int nrelations)
{
	Datum		argument = PointerGetDatum(construct_array(relations, nrelations, REGCLASSOID,
														   sizeof(Oid), true, TYPALIGN_INT));
	uint64		seen = messages;
	uint64		rows;
	QueryScope	scope;
	bool	   *plain;
	bool		isnull;

	plain = palloc(nrelations * sizeof(bool));
	QueryBegin(&scope);
	QueryPlanByIndex();
	rows = QueryRunLatest(&used_by_expressions, &argument, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		bool		trusted = DatumGetBool(QueryValue(i, 4, &plain[i]));

		relations[i] = QueryValue(i, 1, &isnull);	/* whatever their order */
		if (!plain[i] && !trusted)
			Refuse(i, DatumGetObjectId(relations[i]));
	}
	QueryEnd(&scope);
	for (int i = 0; i < nrelations && seen == messages; i++)
		((Verdict *) hash_search(verdicts, &relations[i], HASH_ENTER, NULL))->plain = plain[i];
}

/*
 * ExpressionsCheck raises VC016 where something that belongs to less than a
 * superuser or the owner of the table stands in an expression of tables, a list of
 * OIDs, that are about to be written as the owner.
 */
void
ExpressionsCheck(const List *relations)
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

/* A statement of ours that writes tables; their locks are taken. */
static void
CheckStatement(const PlannedStmt *statement)
{
	List	   *relations = NIL;
	ListCell   *lc;

	foreach(lc, statement->resultRelations)
	{
		Oid			relation = rt_fetch(lfirst_int(lc), statement->rtable)->relid;

		if (get_rel_relkind(relation) == RELKIND_PARTITIONED_TABLE)
			relations = list_concat_unique_oid(relations, find_all_inheritors(relation, NoLock, NULL));
		else
			relations = list_append_unique_oid(relations, relation);
	}
	ExpressionsCheck(relations);
}

static void
StartStatement(QueryDesc *query, int flags)
{
	if (query->plannedstmt->resultRelations != NIL && CallerSqlIsOurs() &&
		(flags & EXEC_FLAG_EXPLAIN_ONLY) == 0)
		CheckStatement(query->plannedstmt);
	if (previous_start)
		previous_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

/*
 * ExpressionsInit sets the hook and registers the callbacks; called once, from
 * _PG_init.
 */
void
ExpressionsInit(void)
{
	static const int caches[] = {PROCOID, TYPEOID, CONSTROID, AUTHOID};
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Verdict)};

	verdicts = hash_create("coupon expressions", 64, &control, HASH_ELEM | HASH_BLOBS);
	CacheRegisterRelcacheCallback(RelationChanged, (Datum) 0);
	for (int i = 0; i < lengthof(caches); i++)
		CacheRegisterSyscacheCallback(caches[i], ObjectChanged, (Datum) 0);
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = StartStatement;
}
