/*
 * maintenance.c
 *		coupon_expire and coupon_purge: procedures that tidy up in batches and
 *		commit each.
 *
 * coupon_expire stores the status "expired" with coupons that are.  Nothing
 * depends on it, since coupon_held tells the status as of now, and nothing of
 * ours calls it; it is for those who read the rows without that.  coupon_purge deletes coupons
 * that are over and counted, reminders of sales that have begun, and old
 * records of work.  Neither moves stock: a status does not count, and what is
 * deleted has been folded.
 *
 * No index finds the coupons concerned.  One on use_end would cost each claim
 * an insertion, to save a rare job a read of the table.  So each partition is
 * read once, window of blocks by window: a statement looks at one window, and
 * handles at most coupon.batch_size rows; where that was not all, the window
 * is looked at again.  A transaction is short whatever the table's size, and
 * the place does not come from the rows found, so rows that move are at worst
 * left for the next run.
 *
 * Locks: rows are taken with SKIP LOCKED, and only one statement's at a time,
 * so a batch waits for no row and deadlocks with nobody.  Two callers share the
 * work; what one has locked the other passes over.  There is nothing to resume:
 * the next call finds what an interrupted one has left.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/errors.h"
#include "base/guc.h"
#include "base/id.h"
#include "base/owner_query.h"
#include "base/procedure.h"
#include "base/shop_role.h"
#include "remind/remind.h"

PG_FUNCTION_INFO_V1(coupon_expire);
PG_FUNCTION_INFO_V1(coupon_purge);

#define SWEEP_ARGS 4			/* first block, block past the end, time, rows */

/*
 * A statement on one window of a partition; %1$s is the partition, %2$s the
 * schema.  It runs with the search path pinned.
 */
typedef struct Sweep
{
	const char *sql;
	int			result;			/* what SPI answers when it went well */
	int64		age;			/* microseconds before now that the time given lies */
} Sweep;

static const Sweep expire_sweep = {
	"UPDATE %1$s SET status = 3 WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
	" SELECT c.ctid FROM %1$s c WHERE c.ctid OPERATOR(pg_catalog.>=) $1"
	"  AND c.ctid OPERATOR(pg_catalog.<) $2"
	" AND c.use_end OPERATOR(pg_catalog.<=) $3 AND (c.status OPERATOR(pg_catalog.=) 0"
	"  OR c.status OPERATOR(pg_catalog.=) 1 AND (c.locked_until IS NULL"
	"   OR c.locked_until OPERATOR(pg_catalog.<=) $3))"
	" LIMIT $4 FOR UPDATE SKIP LOCKED))",
	SPI_OK_UPDATE, 0
};

/*
 * Over means used, expired, revoked, or so by time alone.  Only what is folded
 * may go, and of other holders nothing is.  A coupon that is the reason why its
 * user cannot claim again stays until nobody can; a window counts as over when
 * it has been so for as long as the coupon, lest a claim that is still running
 * find the limit free.
 */
static const char *const purge_sql =
	"DELETE FROM %1$s WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
	" SELECT c.ctid FROM %1$s c WHERE c.ctid OPERATOR(pg_catalog.>=) $1"
	"  AND c.ctid OPERATOR(pg_catalog.<) $2"
	" AND c.use_end OPERATOR(pg_catalog.<) $3 AND (c.status OPERATOR(pg_catalog.<>) 1"
	"  OR c.locked_until IS NULL"
	"  OR c.locked_until OPERATOR(pg_catalog.<) $3)"
	" AND (c.holder IS NULL OR c.holder OPERATOR(pg_catalog.=) 3"
	"  OR c.holder OPERATOR(pg_catalog.=) 0 AND c.id OPERATOR(pg_catalog.<=)"
	"   (SELECT w.upto FROM %2$s.coupon_watermark w WHERE w.holder OPERATOR(pg_catalog.=) 0))"
	" AND NOT EXISTS (SELECT FROM %2$s.coupon_template t"
	"  WHERE t.id OPERATOR(pg_catalog.=) c.template_id"
	"  AND t.status OPERATOR(pg_catalog.<>) 'offline'::pg_catalog.text"
	"   AND COALESCE(t.receive_end, 'infinity'::pg_catalog.timestamptz)"
	"    OPERATOR(pg_catalog.>=) $3)"
	" LIMIT $4 FOR UPDATE OF c SKIP LOCKED))";

/* The oldest finished task after the one given. */
static OwnerQuery next_task = {
	"SELECT id FROM %1$s.coupon_task"
	" WHERE id OPERATOR(pg_catalog.>) $1 AND finished_at OPERATOR(pg_catalog.<) $2"
	"  AND state OPERATOR(pg_catalog.=) ANY ('{success,failed,cancelled}'::pg_catalog.text[])"
	" ORDER BY id LIMIT 1",
	2, {INT8OID, TIMESTAMPTZOID}
};

static OwnerQuery purge_task = {
	"SELECT %1$s.coupon_task_purge($1, $2, $3)",
	3, {INT8OID, TIMESTAMPTZOID, INT8OID}
};

static OwnerQuery purge_stages = {
	"SELECT %1$s.coupon_stage_purge()"
};

/* A portion of the history of coupons, in the order of ids. */
static OwnerQuery purge_events = {
	"WITH old AS (SELECT id FROM %1$s.coupon_event"
	"  WHERE id OPERATOR(pg_catalog.>) $1 AND id OPERATOR(pg_catalog.<) $2"
	"   AND at OPERATOR(pg_catalog.<) $3 ORDER BY id LIMIT $4"
	"  FOR UPDATE SKIP LOCKED),"
	" gone AS (DELETE FROM %1$s.coupon_event e USING old"
	"  WHERE e.id OPERATOR(pg_catalog.=) old.id RETURNING e.id)"
	" SELECT pg_catalog.max(id) FROM gone",
	4, {INT8OID, INT8OID, TIMESTAMPTZOID, INT8OID}
};

/*
 * A portion of notifications that are over, in the order of their ids, which is that
 * of time: none that was made later can have ended before.
 */
static OwnerQuery purge_notifications = {
	"WITH old AS (SELECT id FROM %1$s.coupon_notification_history"
	"  WHERE id OPERATOR(pg_catalog.>) $1 AND id OPERATOR(pg_catalog.<) $2"
	"   AND ended_at OPERATOR(pg_catalog.<) $3 ORDER BY id LIMIT $4"
	"  FOR UPDATE SKIP LOCKED),"
	" gone AS (DELETE FROM %1$s.coupon_notification_history h USING old"
	"  WHERE h.id OPERATOR(pg_catalog.=) old.id RETURNING h.id)"
	" SELECT pg_catalog.max(id) FROM gone",
	4, {INT8OID, INT8OID, TIMESTAMPTZOID, INT8OID}
};

/*
 * The first template after $1 whose sale has begun before $2, or that has gone.
 * While there is no template at all, a restore is going on.
 */
static OwnerQuery next_reminded = {
	REMIND_TEMPLATES_AFTER_1
	" SELECT reminded.id FROM reminded LEFT JOIN LATERAL"
	"  (SELECT c.receive_start FROM %1$s.coupon_template c"
	"   WHERE c.id OPERATOR(pg_catalog.=) reminded.id OFFSET 0) t ON true"
	" WHERE reminded.id IS NOT NULL AND (t.receive_start OPERATOR(pg_catalog.<) $2"
	"  OR t.receive_start IS NULL AND EXISTS (SELECT FROM %1$s.coupon_template))"
	" LIMIT 1",
	2, {INT8OID, TIMESTAMPTZOID}
};

/*
 * Nobody waits for rows of a sale that has begun, and each batch steps over the
 * dead entries of those before it while an old snapshot keeps them.
 */
#define REMINDERS_IN_A_BATCH (INT64CONST(20) * coupon_batch_size)

/*
 * Not if the sale has been put off since it was found: rows that are seen here
 * may have been created for the new start.
 */
static OwnerQuery purge_reminders = {
	"DELETE FROM %1$s.coupon_remind WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
	" SELECT r.ctid FROM %1$s.coupon_remind r WHERE r.template_id OPERATOR(pg_catalog.=) $1"
	" AND NOT EXISTS (SELECT FROM %1$s.coupon_template c"
	"  WHERE c.id OPERATOR(pg_catalog.=) $1 AND c.receive_start OPERATOR(pg_catalog.>=) $3)"
	" LIMIT $2 FOR UPDATE SKIP LOCKED))",
	3, {INT8OID, INT8OID, TIMESTAMPTZOID}
};

/* What a run of a scheduled job left is of no interest for longer. */
#define KEEP_RUNS (7 * USECS_PER_DAY)

static OwnerQuery trim_cron = {
	"SELECT %1$s.coupon_cron_trim($1, $2)",
	2, {TIMESTAMPTZOID, INT8OID}
};

/* Ends a batch: its work is committed. */
static void
TidyCommit(QueryScope *scope)
{
	QueryEnd(scope);
	ProcedureNextTransaction();
	CHECK_FOR_INTERRUPTS();
}

/* Begins one of the procedures here; what it does needs no shared memory. */
static void
BeginProcedure(FunctionCallInfo fcinfo, const char *name)
{
	ProcedureBegin(fcinfo, name, psprintf("Run CALL %s() by itself.", name));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_RECOVERY),
				 errmsg("%s cannot run on a standby server", name),
				 errhint("Connect to the primary server.")));
	/* Triggers and CHECKs of somebody's would show the rows to the caller. */
	RoleRequireUnbound(ROLE_OPERATOR, "It is about rows of all shops.");
}

static BlockNumber
BlocksOf(Oid relation)
{
	Relation	rel = table_open(relation, AccessShareLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);

	table_close(rel, AccessShareLock);
	return blocks;
}

static char *
QualifiedName(Oid relation)
{
	char	   *name = get_rel_name(relation);

	if (name == NULL)
		elog(ERROR, "partition %u of user_coupon has gone", relation);
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)),
									  name);
}

/* Run a sweep once on the blocks [from, end) of a partition. */
static uint64
SweepWindow(const Sweep *sweep, int leaf, BlockNumber from, BlockNumber end)
{
	static Oid	types[SWEEP_ARGS] = {TIDOID, TIDOID, TIMESTAMPTZOID, INT8OID};
	ItemPointerData first,
				past;
	Datum		values[SWEEP_ARGS];
	QueryScope	scope;
	const Catalog *cat;
	bool		wanted[COUPON_PARTITIONS] = {false};
	uint64		rows;
	int			rc;

	ItemPointerSet(&first, from, 0);
	ItemPointerSet(&past, end, 0);
	values[0] = PointerGetDatum(&first);
	values[1] = PointerGetDatum(&past);
	/* The statement's clock stands still for the whole of a CALL. */
	values[2] = TimestampTzGetDatum(GetCurrentTimestamp() - sweep->age);
	values[3] = Int64GetDatum(coupon_batch_size);

	QueryBegin(&scope);			/* from here on in memory that ends with it */
	/* The parent's lock first: triggers of ours look at it for each row. */
	wanted[leaf] = true;
	(void) CatalogLockForInsert(wanted);
	cat = CatalogGet();
	rc = SPI_execute_with_args(psprintf(sweep->sql,
										QualifiedName(cat->leaf[leaf]),
										quote_identifier(cat->schema)),
							   SWEEP_ARGS, types, values, NULL, false, 0);
	if (rc != sweep->result)
		elog(ERROR, "cannot tidy partition %d: %s", leaf, SPI_result_code_string(rc));
	rows = SPI_processed;
	TidyCommit(&scope);
	return rows;
}

/* Run a sweep over all partitions; returns the number of rows it handled. */
static uint64
SweepAll(const Sweep *sweep)
{
	uint64		total = 0;

	for (int leaf = 0; leaf < COUPON_PARTITIONS; leaf++)
	{
		/* What is written from now on is the next run's. */
		BlockNumber blocks = BlocksOf(CatalogGet()->leaf[leaf]);
		BlockNumber from = 0;

		while (from < blocks)
		{
			/* Some 60 rows fit into a block; few windows need two batches. */
			BlockNumber window = Max(coupon_batch_size / 16, 64);
			BlockNumber end = from + Min(window, blocks - from);
			uint64		rows = SweepWindow(sweep, leaf, from, end);

			total += rows;
			if (rows < coupon_batch_size)
				from = end;
		}
	}
	return total;
}

/*
 * CALL coupon_expire(): store the status "expired" with coupons past use_end
 * that are neither used nor revoked, nor locked by a lease that still runs.
 */
Datum
coupon_expire(PG_FUNCTION_ARGS)
{
	uint64		n;

	BeginProcedure(fcinfo, "coupon_expire");
	n = SweepAll(&expire_sweep);
	if (n > 0)
		ereport(NOTICE,
				(errmsg_plural("%llu coupon set to expired",
							   "%llu coupons set to expired",
							   n, (unsigned long long) n)));
	ProcedureEnd();
	PG_RETURN_VOID();
}

static void
PurgeCoupons(void)
{
	Sweep		sweep = {purge_sql, SPI_OK_DELETE};
	uint64		n;

	if (coupon_keep_coupons == 0)
		return;
	sweep.age = coupon_keep_coupons * USECS_PER_DAY;
	n = SweepAll(&sweep);
	if (n > 0)
		ereport(NOTICE,
				(errmsg_plural("%llu coupon deleted", "%llu coupons deleted",
							   n, (unsigned long long) n)));
}

/* Finds the next task to purge and removes a batch of it; false: none is left. */
static bool
PurgeTaskBatch(int64 *task_id, TimestampTz before, bool *more)
{
	QueryScope	scope;
	Datum		args[3];
	bool		isnull;
	bool		found = *more;	/* then it is the same task again */

	QueryBegin(&scope);
	args[0] = Int64GetDatum(*task_id);
	args[1] = TimestampTzGetDatum(before);
	args[2] = Int64GetDatum(coupon_batch_size);
	if (!found && (found = QueryRun(&next_task, args, NULL) > 0))
		args[0] = QueryValue(0, 1, &isnull);
	if (found)
	{
		*task_id = DatumGetInt64(args[0]);
		QueryRun(&purge_task, args, NULL);
		*more = DatumGetInt64(QueryValue(0, 1, &isnull)) > 0;
	}
	TidyCommit(&scope);
	return found;
}

static void
PurgeTasks(void)
{
	TimestampTz before = GetCurrentTimestamp() - coupon_keep_tasks * USECS_PER_DAY;
	int64		task_id = 0;
	bool		more = false;
	QueryScope	scope;

	QueryBegin(&scope);
	QueryRun(&purge_stages, NULL, NULL);
	TidyCommit(&scope);
	while (coupon_keep_tasks > 0 && PurgeTaskBatch(&task_id, before, &more))
		;
}

/*
 * Finds the next template whose reminders are over, unless it is the same again
 * ("more"), and deletes a batch; false: none is left.
 */
static bool
PurgeReminderBatch(int64 *template_id, TimestampTz before, bool *more, uint64 *total)
{
	QueryScope	scope;
	Datum		args[3];
	bool		isnull;
	bool		found = *more;

	QueryBegin(&scope);
	QueryPlanByIndex();
	args[0] = Int64GetDatum(*template_id);
	args[1] = TimestampTzGetDatum(before);
	if (!found && (found = QueryRun(&next_reminded, args, NULL) > 0))
		args[0] = QueryValue(0, 1, &isnull);
	if (found)
	{
		uint64		n;

		*template_id = DatumGetInt64(args[0]);
		args[1] = Int64GetDatum(REMINDERS_IN_A_BATCH);
		args[2] = TimestampTzGetDatum(before);
		n = QueryRun(&purge_reminders, args, NULL);
		*total += n;
		*more = n == REMINDERS_IN_A_BATCH;
	}
	TidyCommit(&scope);
	return found;
}

static void
PurgeReminders(void)
{
	TimestampTz before = GetCurrentTimestamp() - coupon_keep_reminders * USECS_PER_DAY;
	int64		template_id = 0;
	bool		more = false;
	uint64		n = 0;

	if (coupon_keep_reminders == 0)
		return;
	while (PurgeReminderBatch(&template_id, before, &more, &n))
		;
	if (n > 0)
		ereport(NOTICE,
				(errmsg_plural("%llu reminder deleted", "%llu reminders deleted",
							   n, (unsigned long long) n)));
}

/*
 * Runs a query that deletes a portion of a table whose ids are in the order of time, and
 * answers the last id of it, until nothing is left that is older than so many days; 0:
 * not at all.
 */
static void
PurgeById(OwnerQuery *query, int days)
{
	TimestampTz before = GetCurrentTimestamp() - days * USECS_PER_DAY;
	int64		last = PG_INT64_MIN;
	bool		more = days > 0;

	while (more)
	{
		QueryScope	scope;
		Datum		args[4];
		Datum		newest;
		bool		none;

		args[0] = Int64GetDatum(last);
		args[1] = Int64GetDatum(IdFirstAt(before));
		args[2] = TimestampTzGetDatum(before);
		args[3] = Int64GetDatum(coupon_batch_size);
		QueryBegin(&scope);
		QueryRun(query, args, NULL);
		newest = QueryValue(0, 1, &none);
		more = !none;
		if (more)
			last = DatumGetInt64(newest);
		TidyCommit(&scope);
	}
}

static void
PurgeCronRuns(void)
{
	int64		n;

	do
	{
		QueryScope	scope;
		Datum		args[2];
		bool		isnull;

		args[0] = TimestampTzGetDatum(GetCurrentTimestamp() - KEEP_RUNS);
		args[1] = Int64GetDatum(coupon_batch_size);
		QueryBegin(&scope);
		QueryRun(&trim_cron, args, NULL);
		n = DatumGetInt64(QueryValue(0, 1, &isnull));
		TidyCommit(&scope);
	} while (n > 0);
}

/*
 * CALL coupon_purge(): delete what is older than the settings say.
 */
Datum
coupon_purge(PG_FUNCTION_ARGS)
{
	BeginProcedure(fcinfo, "coupon_purge");
	PurgeCoupons();
	PurgeTasks();
	PurgeById(&purge_events, coupon_keep_events);
	PurgeById(&purge_notifications, coupon_keep_notifications);
	PurgeReminders();
	PurgeCronRuns();
	ProcedureEnd();
	PG_RETURN_VOID();
}
