/*
 * due.c
 *		Run the tasks that are due: all of them, from a scheduler
 *		(coupon_task_run_due), or for a moment at a time, in a background
 *		worker (TaskJob).
 *
 * In the worker shops take turns, and so do the tasks of a shop: neither a shop with a
 * thousand tasks nor a task with a million lines keeps another's few lines waiting.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/owner_query.h"
#include "base/procedure.h"
#include "base/shop_role.h"
#include "task/due.h"
#include "task/runner.h"

PG_FUNCTION_INFO_V1(coupon_task_run_due);

#define DUE_PAGE 100			/* tasks that one look lists */
#define TURN_TASKS 1000			/* tasks that one turn lists */
#define TURN_MS 100
#define JOB_PAUSE_MS 1000
#define JOB_LONGEST_MS (60 * 1000)

/* A task that is due; coupon_task_run_due goes through them in this order. */
typedef struct DueTask
{
	TimestampTz send_at;
	int64		id;
} DueTask;

/* A task that is due in the worker. */
typedef struct TurnTask
{
	int64		shop;			/* 0: of the platform */
	int64		id;
} TurnTask;

#define IS_DUE \
	" t.state OPERATOR(pg_catalog.=) ANY ('{pending,in_progress}'::pg_catalog.text[])" \
	" AND t.send_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()" \
	" AND (t.retry_at IS NULL OR t.retry_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp())"

static OwnerQuery due_tasks = {
	"SELECT t.send_at, t.id FROM %1$s.coupon_task t WHERE" IS_DUE
	" AND ($1 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($1))"
	" AND (t.send_at OPERATOR(pg_catalog.>) $2 OR t.send_at OPERATOR(pg_catalog.=) $2"
	"  AND t.id OPERATOR(pg_catalog.>) $3)"
	" ORDER BY t.send_at, t.id LIMIT $4",
	4, {INT8ARRAYOID, TIMESTAMPTZOID, INT8OID, INT8OID}
};

/* Shops behind $1 first; within each, in the order of time from one of them on, which $2 says. */
static OwnerQuery next_turn = {
	"SELECT d.shop, d.id FROM (SELECT COALESCE(t.shop_number, 0::bigint) AS shop, t.id,"
	"  pg_catalog.row_number() OVER (PARTITION BY t.shop_number ORDER BY t.send_at, t.id) AS place,"
	"  pg_catalog.count(*) OVER (PARTITION BY t.shop_number) AS tasks"
	"  FROM %1$s.coupon_task t WHERE" IS_DUE ") d"
	" ORDER BY d.shop OPERATOR(pg_catalog.<=) $1, d.shop,"
	" (d.place OPERATOR(pg_catalog.+) $2) OPERATOR(pg_catalog.%%) d.tasks LIMIT $3",
	3, {INT8OID, INT8OID, INT8OID}
};

/* Milliseconds until something is due; null: never. */
static OwnerQuery next_due = {
	"SELECT pg_catalog.ceil(EXTRACT(epoch FROM"
	"  pg_catalog.min(GREATEST(send_at, retry_at)) OPERATOR(pg_catalog.-)"
	"  pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::numeric)::bigint"
	" FROM %1$s.coupon_task WHERE state OPERATOR(pg_catalog.=) ANY"
	"  ('{pending,in_progress}'::pg_catalog.text[])"
	" AND send_at OPERATOR(pg_catalog.<) 'infinity'::pg_catalog.timestamptz"
};

/* The next tasks that are due, oldest first; after that given. */
static int
ListDue(DueTask after, DueTask *tasks)
{
	Datum		args[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};
	QueryScope	scope;
	bool		isnull;
	int			n;

	RoleBoundShops(ROLE_OPERATOR, &args[0], &nulls[0]);
	args[1] = TimestampTzGetDatum(after.send_at);
	args[2] = Int64GetDatum(after.id);
	args[3] = Int64GetDatum(DUE_PAGE);
	QueryBegin(&scope);
	n = (int) QueryRun(&due_tasks, args, nulls);
	for (int i = 0; i < n; i++)
	{
		tasks[i].send_at = DatumGetTimestampTz(QueryValue(i, 1, &isnull));
		tasks[i].id = DatumGetInt64(QueryValue(i, 2, &isnull));
	}
	QueryEnd(&scope);
	return n;
}

/*
 * The tasks of a turn, shop by shop, behind the one that was served last.  Which task of a
 * shop is first is left to chance (Waldspurger and Weihl, "Lottery Scheduling", 1994): so
 * nothing need be remembered of tasks, and those that others stand in the way of are passed by.
 */
static int
ListTurn(int64 after_shop, TurnTask *tasks, int *shops)
{
	Datum		args[3];
	QueryScope	scope;
	bool		isnull;
	int			n;

	args[0] = Int64GetDatum(after_shop);
	args[1] = Int64GetDatum((int64) pg_prng_uint32(&pg_global_prng_state));
	args[2] = Int64GetDatum(TURN_TASKS);
	*shops = 0;
	QueryBegin(&scope);
	n = (int) QueryRun(&next_turn, args, NULL);
	for (int i = 0; i < n; i++)
	{
		tasks[i].shop = DatumGetInt64(QueryValue(i, 1, &isnull));
		tasks[i].id = DatumGetInt64(QueryValue(i, 2, &isnull));
		if (i == 0 || tasks[i].shop != tasks[i - 1].shop)
			(*shops)++;
	}
	QueryEnd(&scope);
	return n;
}

static void
NextWorkerTransaction(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

/*
 * One turn of the worker: shops have an equal part of it each, or one batch if that takes
 * longer, until the time for all of them is up.  True: come again at once, or after "pause"
 * microseconds; false: all have been looked at, and none had more to do.
 */
static bool
RunTurn(int64 *pause)
{
	static int64 shop = 0;		/* that was served last */
	TimestampTz begin = GetCurrentTimestamp();
	TimestampTz shop_begin = begin;
	TurnTask	tasks[TURN_TASKS];
	int			shops;
	int			n = ListTurn(shop, tasks, &shops);
	bool		more = n == TURN_TASKS;

	for (int i = 0; i < n; i++)
	{
		TimestampTz now = GetCurrentTimestamp();
		long		left;

		if (i == 0 || tasks[i].shop != shop)
		{
			/* One in any case: it may be the list that has taken so long. */
			if (i > 0 && TimestampDifferenceExceeds(begin, now, TURN_MS))
				return true;
			shop = tasks[i].shop;	/* also if it fails */
			shop_begin = now;
			left = TURN_MS / shops;
		}
		else
		{
			left = TURN_MS / shops - TimestampDifferenceMilliseconds(shop_begin, now);
			if (left <= 0)
			{
				more = true;
				continue;
			}
		}
		NextWorkerTransaction();
		if (TaskRunDue(tasks[i].id, true, NextWorkerTransaction, (int) Max(left, 1), pause))
			more = true;
	}
	return more;
}

/*
 * TaskJob is a worker's job: it runs what is due for a moment, and says
 * when to come again.  Tasks that wait for others are looked at each second.
 */
long
TaskJob(bool woken)
{
	QueryScope	scope;
	bool		more;
	bool		never;
	int64		ms = 0;
	int64		pause = 0;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	more = RunTurn(&pause);
	if (!more)
	{
		NextWorkerTransaction();
		QueryBegin(&scope);
		QueryRun(&next_due, NULL, NULL);
		ms = DatumGetInt64(QueryValue(0, 1, &never));
		QueryEnd(&scope);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (more)
		return pause / 1000;
	/* Rows may come without a word: from PREPARE TRANSACTION, or a restore. */
	return never ? JOB_LONGEST_MS : (long) Min(Max(ms, JOB_PAUSE_MS), JOB_LONGEST_MS);
}

/*
 * coupon_task_run_due(): run what is due, unfinished or abandoned.  It does not wait for
 * other runners or open claims, but leaves such a task for the next call.
 */
Datum
coupon_task_run_due(PG_FUNCTION_ARGS)
{
	DueTask		last = {DT_NOBEGIN, 0};
	DueTask		tasks[DUE_PAGE];
	int			n;

	ProcedureBegin(fcinfo, "coupon_task_run_due",
				   "Call it by itself, outside of BEGIN … COMMIT.");
	do
	{
		n = ListDue(last, tasks);
		for (int i = 0; i < n; i++)
		{
			ProcedureNextTransaction();
			(void) TaskRunDue(tasks[i].id, false, ProcedureNextTransaction, 0, NULL);
			last = tasks[i];
		}
	} while (n == DUE_PAGE);
	ProcedureEnd();
	return (Datum) 0;
}
