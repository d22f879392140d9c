/*
 * stage.c
 *		The stage table of a task: the lines of its file.
 *
 * Each task has a table of its own, coupon_stage_<task>, so that loading one
 * locks nobody else and dropping it costs nothing.  user_id is text: a bad line
 * must not fail the COPY.  "line" numbers the lines in the order in which they
 * came, with gaps where a COPY failed.
 *
 * Sealing divides the lines into sections, each a range of "line" with the
 * number of its first record; so a record's number is that plus its place in
 * the section, whatever gaps there are.  Sections are divided into batches
 * (coupon_task_batch): see section.c.  A BRIN index on "line" finds a section:
 * the lines lie in this order, or nearly so, and building it costs one read of
 * the table.  Nothing depends on where rows lie: a dump and
 * restore, or a VACUUM FULL, may come in between.
 *
 * A statement that writes to the stage has its table locked, then locks the task for
 * share and looks at its state; sealing locks the table, then the task for update.  So
 * sealing waits for those who are loading, and whoever comes late waits for the seal, and
 * is told: nothing enters a file that is sealed.
 *
 * The stage belongs to the extension as a table, not as a member: members are
 * not dumped with their rows.  DROP EXTENSION drops it.
 *
 * All functions run between QueryBegin and QueryEnd, as the owner.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/catalog.h"
#include "base/errors.h"
#include "base/locks.h"
#include "base/owner_query.h"
#include "base/subxact.h"
#include "task/input_rows.h"
#include "task/stage.h"

PG_FUNCTION_INFO_V1(coupon_stage_guard);

#define STAGE_PREFIX "coupon_stage_"
#define SECTION_LINES 160000	/* the same, unless a batch has more */
#define READ_AT_A_TIME 4096
#define DROP_TIMEOUT "100ms"	/* for each lock on what was made of a stage */

static OwnerQuery state_of_task = {
	"SELECT state FROM %1$s.coupon_task WHERE id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

/* "schema.coupon_stage_42", quoted. */
static char *
StageName(int64 task_id)
{
	return psprintf("%s." STAGE_PREFIX INT64_FORMAT,
					quote_identifier(CatalogGet()->schema), task_id);
}

static void
Execute(const char *command, int expected)
{
	int			rc = SPI_execute(command, false, 0);

	if (rc != expected)
		elog(ERROR, "command \"%s\" failed: %s", command,
			 SPI_result_code_string(rc));
}

static void
Set(const char *setting, const char *value)
{
	(void) set_config_option(setting, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * A level of settings in which tables and indexes of the owner lie where the
 * database has them, not where the caller's settings say.
 */
static int
BeginDdl(void)
{
	int			nestlevel = NewGUCNestLevel();

	Set("default_tablespace", "");
	Set("default_table_access_method", "heap");
	return nestlevel;
}

/* Registered with RangeVarGetRelidExtended: called before each try to lock. */
static void
CheckStage(const RangeVar *name, Oid relation, Oid before, void *arg)
{
	Oid			owner = CatalogGet()->owner;
	HeapTuple	tuple;
	Form_pg_class form;
	bool		ours;

	if (!OidIsValid(relation))
		return;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	if (!HeapTupleIsValid(tuple))
		return;					/* dropped just now: it is looked for again */
	form = (Form_pg_class) GETSTRUCT(tuple);
	ours = form->relkind == RELKIND_RELATION && form->relowner == owner;
	ReleaseSysCache(tuple);
	if (!ours)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("\"%s\" is not the stage that was made for its task", name->relname),
				 errdetail("A stage is an ordinary table that belongs to the owner of the extension."),
				 errhint("Remove what has taken its place, and create another task.")));
}

/*
 * Lock the stage table of a task, so that its name means this table until the
 * end of the transaction; InvalidOid where it has none, or, with RVR_SKIP_LOCKED,
 * where somebody else has it locked.  Raises VC014 for anything else that bears
 * its name: what we read and drop runs with the rights of the owner.
 */
static Oid
LockStage(int64 task_id, LOCKMODE mode, uint32 flags)
{
	RangeVar   *name = makeRangeVar(pstrdup(CatalogGet()->schema),
									psprintf(STAGE_PREFIX INT64_FORMAT, task_id), -1);

	return RangeVarGetRelidExtended(name, mode, flags | RVR_MISSING_OK, CheckStage, NULL);
}

static void
RequireStage(int64 task_id, LOCKMODE mode)
{
	if (!OidIsValid(LockStage(task_id, mode, 0)))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("table \"" STAGE_PREFIX "%lld\" is missing, which has the lines of the task",
						(long long) task_id),
				 errhint("Create another task with coupon_task_create.")));
}

/*
 * StageOid returns the stage table of a task, InvalidOid where it has none.
 */
Oid
StageOid(int64 task_id)
{
	return LockStage(task_id, AccessShareLock, 0);
}

/*
 * StageCreate creates the stage table of a task and lets a role load it.
 */
void
StageCreate(int64 task_id, Oid loader)
{
	char	   *name = StageName(task_id);
	ObjectAddress table;
	ObjectAddress extension;
	int			nestlevel = BeginDdl();

	Execute(psprintf("CREATE TABLE %s (user_id pg_catalog.text,"
					 " line bigint GENERATED ALWAYS AS IDENTITY)"
					 " WITH (autovacuum_enabled = off)", name),
			SPI_OK_UTILITY);
	AtEOXact_GUC(false, nestlevel);
	/* Else anybody could make objects of this type, which its end has to drop. */
	Execute(psprintf("REVOKE ALL ON TYPE %s FROM PUBLIC", name), SPI_OK_UTILITY);
	Execute(psprintf("COMMENT ON TABLE %s IS"
					 " 'lines of task " INT64_FORMAT ", dropped when it has ended'",
					 name, task_id), SPI_OK_UTILITY);
	Execute(psprintf("CREATE TRIGGER zz_coupon_stage_guard"
					 " BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s"
					 " FOR EACH STATEMENT EXECUTE FUNCTION %s.coupon_stage_guard(" INT64_FORMAT ")",
					 name, quote_identifier(CatalogGet()->schema), task_id),
			SPI_OK_UTILITY);
	if (loader != CatalogGet()->owner)
		Execute(psprintf("GRANT SELECT, INSERT (user_id) ON %s TO %s",
						 name, quote_identifier(GetUserNameFromId(loader, false))),
				SPI_OK_UTILITY);

	ObjectAddressSet(table, RelationRelationId, StageOid(task_id));
	ObjectAddressSet(extension, ExtensionRelationId,
					 get_extension_oid("coupon", false));
	recordDependencyOn(&table, &extension, DEPENDENCY_AUTO);
}

/*
 * StageLockToSeal waits for those who are loading a stage, and keeps others out, until the
 * end of the transaction.  Before the task is locked: see above.
 */
void
StageLockToSeal(int64 task_id)
{
	(void) LockStage(task_id, ShareLock, 0);
}

/*
 * StageClear removes all lines of a stage, and returns how many there were.  The
 * task is a draft, and locked for update.
 */
int64
StageClear(int64 task_id)
{
	RequireStage(task_id, RowExclusiveLock);
	Execute(psprintf("DELETE FROM %s", StageName(task_id)), SPI_OK_DELETE);
	return SPI_processed;
}

static bool
Drop(void *task_id)
{
	int			nestlevel = NewGUCNestLevel();

	Set("lock_timeout", DROP_TIMEOUT);
	if (OidIsValid(LockStage(*(int64 *) task_id, AccessExclusiveLock, RVR_SKIP_LOCKED)))
		Execute(psprintf("DROP TABLE %s CASCADE", StageName(*(int64 *) task_id)),
				SPI_OK_UTILITY);
	AtEOXact_GUC(false, nestlevel);
	return true;
}

/*
 * StageDrop drops the stage table of a task, if it is there, and whatever its
 * loader may have made of it.  One that is in use, by pg_dump perhaps, or cannot be
 * dropped for what was made of it, is left to coupon_purge: a task must not hang on it.
 */
void
StageDrop(int64 task_id)
{
	ErrorData  *error;

	if (SubxactRun(Drop, &task_id, &error))
		return;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	ereport(error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? DEBUG1 : WARNING,
			(errmsg("the stage of task %lld is left to coupon_purge: %s",
					(long long) task_id, error->message)));
}

/* Memory for sorting ten million numbers; given back with the GUC level. */
static int
BeginSealing(void)
{
	int			nestlevel = BeginDdl();

	Set("work_mem", "64MB");
	Set("maintenance_work_mem", "64MB");
	return nestlevel;
}

/*
 * StageSeal divides the lines into sections and batches, and returns how many
 * lines there are.  The task is locked for update.
 */
int64
StageSeal(int64 task_id, int64 first_row, int batch_size)
{
	char	   *name = StageName(task_id);
	int			batches = Min(SECTION_BATCHES, Max(1, SECTION_LINES / batch_size));
	int			nestlevel = BeginSealing();
	int64		lines;
	bool		isnull;

	RequireStage(task_id, ShareLock);
	Execute(psprintf("WITH made AS ("
					 " INSERT INTO %s.coupon_task_batch"
					 " (task_id, batch, first_line, last_line, first_row, position, lines)"
					 " SELECT " INT64_FORMAT ", b.batch OPERATOR(pg_catalog.+) 1,"
					 " pg_catalog.min(b.first_line) OVER section,"
					 " pg_catalog.max(b.last_line) OVER section,"
					 " " INT64_FORMAT " OPERATOR(pg_catalog.+)"
					 "  (pg_catalog.min(b.batch) OVER section OPERATOR(pg_catalog.*) %d),"
					 " (b.batch OPERATOR(pg_catalog.%%) %d) OPERATOR(pg_catalog.*) %d, b.lines"
					 " FROM (SELECT s.batch, pg_catalog.min(s.line) AS first_line,"
					 "   pg_catalog.max(s.line) AS last_line, pg_catalog.count(*) AS lines"
					 "  FROM (SELECT line, (pg_catalog.row_number() OVER (ORDER BY line)"
					 "    OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) %d AS batch FROM %s) s"
					 "  GROUP BY s.batch) b"
					 " WINDOW section AS (PARTITION BY b.batch OPERATOR(pg_catalog./) %d)"
					 " RETURNING lines)"
					 " SELECT COALESCE(pg_catalog.sum(lines), 0)::bigint FROM made",
					 quote_identifier(CatalogGet()->schema), task_id, first_row,
					 batch_size, batches, batch_size, batch_size, name, batches),
			SPI_OK_SELECT);
	lines = DatumGetInt64(QueryValue(0, 1, &isnull));
	if (lines > 0)
		Execute(psprintf("CREATE INDEX ON %s USING brin (line) WITH (pages_per_range = 16)",
						 name), SPI_OK_UTILITY);
	AtEOXact_GUC(false, nestlevel);
	return lines;
}

static Portal
OpenStage(int64 task_id, int64 first_line, int64 last_line)
{
	SPIParseOpenOptions options = {0};
	int			nestlevel = NewGUCNestLevel();
	Portal		cursor;

	RequireStage(task_id, AccessShareLock);

	/*
	 * Without statistics the planner may prefer to read the whole file, or to
	 * start processes for the few pages of a section.
	 */
	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("max_parallel_workers_per_gather", "0", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	cursor = SPI_cursor_parse_open(NULL,
								   psprintf("SELECT line, user_id FROM %s"
											" WHERE line OPERATOR(pg_catalog.>=) " INT64_FORMAT "::bigint"
											" AND line OPERATOR(pg_catalog.<=) " INT64_FORMAT "::bigint",
											StageName(task_id), first_line, last_line),
								   &options);
	AtEOXact_GUC(false, nestlevel);
	if (SPI_gettypeid(cursor->tupDesc, 1) != INT8OID ||
		SPI_gettypeid(cursor->tupDesc, 2) != TEXTOID)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("the stage of task %lld does not have the columns it was made with",
						(long long) task_id)));
	return cursor;
}

/*
 * StageRead hands each line of a section to "take", in no certain order.
 * user is the text of the user id, or NULL; cut: only the beginning of it, since one line
 * can be a gigabyte.
 */
void
StageRead(int64 task_id, int64 first_line, int64 last_line,
		  void (*take) (void *arg, int64 line, const text *user, bool cut), void *arg)
{
	Portal		cursor = OpenStage(task_id, first_line, last_line);

	do
	{
		SPI_cursor_fetch(cursor, true, READ_AT_A_TIME);
		if (SPI_gettypeid(SPI_tuptable->tupdesc, 2) != TEXTOID)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_TASK_STATE),
					 errmsg("user_id of a stage is not of type text"),
					 errhint("Undo what was changed with ALTER TABLE.")));
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			HeapTuple	row = SPI_tuptable->vals[i];
			TupleDesc	desc = SPI_tuptable->tupdesc;
			bool		isnull;
			int64		line = DatumGetInt64(SPI_getbinval(row, desc, 1, &isnull));
			Datum		value = SPI_getbinval(row, desc, 2, &isnull);
			bool		cut = !isnull &&
				toast_raw_datum_size(value) - VARHDRSZ > LINE_MAX_USER_ID;
			text	   *user = isnull ? NULL : !cut ? DatumGetTextPP(value) :
				DatumGetTextPSlice(value, 0, LINE_MAX_USER_ID);

			take(arg, line, user, cut);
			if (user != NULL && (Pointer) user != DatumGetPointer(value))
				pfree(user);
		}
		SPI_freetuptable(SPI_tuptable);
	} while (SPI_processed > 0);
	SPI_cursor_close(cursor);
}

/*
 * StageLook counts the lines of a stage by what would become of them.  Between QueryBegin
 * and QueryEnd of the caller's.
 */
void
StageLook(int64 task_id, int64 template_id, StageSurvey *survey)
{
	const char *schema = quote_identifier(CatalogGet()->schema);
	bool		isnull;

	RequireStage(task_id, AccessShareLock);
	Execute(psprintf("SELECT pg_catalog.count(*), pg_catalog.count(*) OPERATOR(pg_catalog.-) pg_catalog.count(u),"
					 " pg_catalog.count(u) OPERATOR(pg_catalog.-) pg_catalog.count(DISTINCT u),"
					 " pg_catalog.count(DISTINCT u) FILTER (WHERE EXISTS (SELECT FROM %s.user_coupon c"
					 "  WHERE c.template_id OPERATOR(pg_catalog.=) " INT64_FORMAT "::bigint"
					 "  AND c.user_id OPERATOR(pg_catalog.=) u))"
					 " FROM (SELECT %s.coupon_stage_user(s.user_id) AS u FROM %s s OFFSET 0) x",
					 schema, template_id, schema, StageName(task_id)),
			SPI_OK_SELECT);
	survey->lines = DatumGetInt64(QueryValue(0, 1, &isnull));
	survey->invalid = DatumGetInt64(QueryValue(0, 2, &isnull));
	survey->duplicate = DatumGetInt64(QueryValue(0, 3, &isnull));
	survey->held = DatumGetInt64(QueryValue(0, 4, &isnull));
}

/*
 * coupon_stage_guard(task_id): on a stage table, BEFORE each statement.
 */
Datum
coupon_stage_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	QueryScope	scope;
	Datum		task_id;
	LOCKTAG		tag;
	bool		draft;

	if (!CALLED_AS_TRIGGER(fcinfo) || trigger->tg_trigger->tgnargs != 1)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function can only be called as a trigger of a stage table")));

	task_id = DirectFunctionCall1(int8in,
								  CStringGetDatum(trigger->tg_trigger->tgargs[0]));
	LockTagOfTask(&tag, DatumGetInt64(task_id));
	(void) LockAcquire(&tag, ShareLock, false, false);
	/* The caller's own snapshot may be older than the seal. */
	QueryBegin(&scope);
	draft = QueryRunLatest(&state_of_task, &task_id, NULL) == 1 &&
		strcmp(TextDatumGetCString(QueryRequired(0, 1, TEXTOID)), "draft") == 0;
	QueryEnd(&scope);
	if (!draft)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("the file of task %lld is sealed", (long long) DatumGetInt64(task_id)),
				 errhint("Create another task with coupon_task_create.")));
	return PointerGetDatum(NULL);
}
