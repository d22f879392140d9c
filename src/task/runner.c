/*
 * runner.c
 *		Run a distribution task, batch by batch: in the foreground
 *		(coupon_task_run), or as one of those that are due (due.c).
 *
 * A step is what one transaction does: a batch, a line that was put off, or a
 * change of state.  Any number of runners may be at one task; the rows of the
 * batches divide the work, and each runner finds out from the tables what is
 * next.  What is kept in memory from step to step can be read again (section.c).
 *
 * In the foreground an error goes to the caller, and the task stays as the
 * last batch left it.  Other runners note it in the task's row, and leave the
 * task alone for a while.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/errors.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/procedure.h"
#include "base/shop_role.h"
#include "base/subxact.h"
#include "base/throttle.h"
#include "task/runner.h"
#include "task/task.h"
#include "task/task_batch.h"

PG_FUNCTION_INFO_V1(coupon_task_run);

#define MAX_ATTEMPTS 10			/* errors in a row, before a task has failed */
#define NOTICE_INTERVAL_MS 1000
#define STEP_LOCK_TIMEOUT "100ms"	/* of a step in a worker */

/* One runner at one task. */
typedef struct Run
{
	int64		task_id;
	bool		foreground;		/* wait for others; errors go to the caller */
	bool		in_worker;
	void		(*next_transaction) (void);
	TimestampTz reported;		/* foreground: when progress was shown last */

	/* What the last steps have found. */
	bool		alone;			/* next: there may be too little stock */
	RowsOpenClaim open;			/* STEP_WAIT: to wait for */
	int			code;			/* STEP_REFUSED: why */
	int32		attempts;		/* errors before this step */
	TimestampTz submitted_at;	/* of the task, as it was then */
} Run;

/* A step in a subtransaction. */
typedef struct Attempt
{
	Run		   *run;
	StepResult	last;
	StepResult	result;
} Attempt;

#define START_TASK \
	"UPDATE %1$s.coupon_task SET state = 'in_progress'::pg_catalog.text," \
	" started_at = COALESCE(started_at, pg_catalog.clock_timestamp())" \
	" WHERE state OPERATOR(pg_catalog.=) 'pending'::pg_catalog.text AND id OPERATOR(pg_catalog.=) "

static OwnerQuery start_task = {START_TASK "$1", 1, {INT8OID}};

static OwnerQuery start_task_unless_held = {
	START_TASK "(SELECT id FROM %1$s.coupon_task WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
	1, {INT8OID}
};

static OwnerQuery how_ended = {
	"SELECT state, fail_reason FROM %1$s.coupon_task WHERE id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static OwnerQuery note_error = {
	"UPDATE %1$s.coupon_task SET last_error = $2,"
	" attempts = attempts OPERATOR(pg_catalog.+) 1,"
	" retry_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+)"
	"  pg_catalog.make_interval(secs => LEAST(300::pg_catalog.float8,"
	"   pg_catalog.power(2::pg_catalog.float8, attempts)))"
	" WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM %1$s.coupon_task"
	"  WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)"
	" RETURNING attempts, submitted_at",
	2, {INT8OID, TEXTOID}
};

/* A template that is not published may yet be. */
static OwnerQuery wait_for_template = {
	"UPDATE %1$s.coupon_task SET last_error = $2,"
	" retry_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+)"
	"  pg_catalog.make_interval(secs => 5::pg_catalog.float8)"
	" WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM %1$s.coupon_task"
	"  WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
	2, {INT8OID, TEXTOID}
};

static OwnerQuery forget_errors = {
	"UPDATE %1$s.coupon_task SET attempts = 0, retry_at = NULL"
	" WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM %1$s.coupon_task"
	"  WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
	1, {INT8OID}
};

static OwnerQuery progress = {
	"SELECT p.state, p.lines, p.done, p.issued, p.failed, p.lines_per_second"
	" FROM %1$s.coupon_task_progress p WHERE p.task_id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

/* Run a statement about a task; tells whether it returned a row. */
static bool
RunFor(OwnerQuery *query, int64 task_id)
{
	Datum		arg = Int64GetDatum(task_id);
	QueryScope	scope;
	bool		found;

	QueryBegin(&scope);
	found = QueryRun(query, &arg, NULL) > 0;
	QueryEnd(&scope);
	return found;
}

/*
 * The transaction need not be on disk when it has committed: what is lost in a
 * crash is lost whole, coupons and progress, and done again.  Whatever commits
 * later, a use of the coupon or the end of the task, makes it durable first.
 * So the next batch does not wait for the disk.
 */
static void
CommitWithoutWaiting(void)
{
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Give coupons to the users of a batch, or of a line that was put off.  After all
 * but STEP_MORE nothing has been written that the caller must keep.
 */
static StepResult
GiveCoupons(Run *run)
{
	Task		task;
	StepResult	result;

	CommitWithoutWaiting();
	run->code = OUTCOME_OK;
	switch (TaskTryRead(run->task_id, run->alone ? TASK_FOR_UPDATE : TASK_FOR_SHARE,
						run->foreground, &task))
	{
		case TASK_NOT_FOUND:	/* purged meanwhile */
			return STEP_OVER;
		case TASK_LOCKED:
			return STEP_BUSY;
		case TASK_FOUND:
			break;
	}
	/* In a transaction of its own: what follows may wait, and nobody shall wait for its row. */
	if (task.state == TASK_PENDING && run->foreground)
	{
		(void) RunFor(&start_task, run->task_id);	/* or another runner has */
		return STEP_MORE;
	}
	if (task.state == TASK_PENDING)
		return RunFor(&start_task_unless_held, run->task_id) ? STEP_MORE : STEP_BUSY;
	run->attempts = task.attempts;
	run->submitted_at = task.submitted_at;
	if (task.state != TASK_IN_PROGRESS)
		return STEP_OVER;
	/* A worker has other shops to serve. */
	if (!run->foreground && TemplateIsGated(task.template_id))
		return STEP_BUSY;

	result = DistributeBatch(&task, run->alone, run->foreground, &run->code);
	if (result == STEP_LAST || result == STEP_BUSY)
	{
		StepResult	late = DistributePutOff(&task, run->foreground, &run->open, &run->code);

		if (result == STEP_LAST || late == STEP_MORE)
			result = late;
	}
	if (result != STEP_ALONE && result != STEP_DIVIDED)
		return result;
	run->alone = result == STEP_ALONE;
	return STEP_MORE;
}

/*
 * End a task whose lines are all handled; they stay so, since only a batch that
 * is not done puts lines off.  Not in the transaction of the step that has
 * found that out: two runners who hold it for share would both want it for
 * update.
 */
static void
FinishTask(const Run *run)
{
	Task		task;

	if (TaskTryRead(run->task_id, TASK_FOR_UPDATE, run->foreground, &task) == TASK_FOUND &&
		task.state == TASK_IN_PROGRESS)
		TaskEnd(run->task_id, TASK_SUCCESS);
}

/* The template is not published: the task waits, and a person is told. */
static void
WaitForTemplate(const Run *run)
{
	Datum		args[2] = {Int64GetDatum(run->task_id), CStringGetTextDatum(OutcomeName(run->code))};
	QueryScope	scope;

	if (run->foreground)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("the template of task %lld is not published", (long long) run->task_id),
				 errhint("Publish it and run the task again; what was issued stays.")));
	QueryBegin(&scope);
	QueryRun(&wait_for_template, args, NULL);
	QueryEnd(&scope);
}

/* What is to be done after the last step, in a transaction of its own. */
static StepResult
TakeStep(Run *run, StepResult last)
{
	switch (last)
	{
		case STEP_MORE:
			return GiveCoupons(run);
		case STEP_WAIT:
			RowsWaitFor(&run->open);
			return STEP_MORE;
		case STEP_BUSY:
			DistributeWaitForOthers(run->task_id, run->alone);
			return STEP_MORE;
		case STEP_REFUSED:
			if (run->code == OUTCOME_NOT_PUBLISHED)
			{
				WaitForTemplate(run);
				return STEP_OVER;
			}
			TaskFail(run->task_id, run->submitted_at, OutcomeName(run->code));
			/* It may have been submitted anew; another run is due then. */
			return run->foreground ? STEP_MORE : STEP_OVER;
		case STEP_LAST:
			FinishTask(run);
			return STEP_OVER;
		case STEP_ALONE:		/* GiveCoupons returns none of these */
		case STEP_DIVIDED:
		case STEP_HELD_UP:
		case STEP_OVER:
			break;
	}
	return STEP_OVER;
}

/* Say how far it is, to a person at psql, unless that was said just before. */
static void
ReportProgress(Run *run, int interval_ms)
{
	Datum		arg = Int64GetDatum(run->task_id);
	TimestampTz now = GetCurrentTimestamp();
	QueryScope	scope;
	bool		isnull;

	if (!TimestampDifferenceExceeds(run->reported, now, interval_ms))
		return;
	run->reported = now;
	QueryBegin(&scope);
	if (QueryRun(&progress, &arg, NULL) == 1)
	{
		int64		lines = DatumGetInt64(QueryValue(0, 2, &isnull));
		int64		done = DatumGetInt64(QueryValue(0, 3, &isnull));
		int64		rate = DatumGetInt64(QueryValue(0, 6, &isnull));

		ereport(NOTICE,
				(errmsg("task %lld is %s: %lld of %lld lines, %lld issued, %lld failed, %lld lines/s",
						(long long) run->task_id,
						TextDatumGetCString(QueryRequired(0, 1, TEXTOID)),
						(long long) done, (long long) lines,
						(long long) DatumGetInt64(QueryValue(0, 4, &isnull)),
						(long long) DatumGetInt64(QueryValue(0, 5, &isnull)),
						(long long) rate)));
	}
	QueryEnd(&scope);
}

/*
 * Seal the file if that has not been done, for a run that begins now.  Nobody else takes up
 * what only a call has started: who interrupts it means it.
 */
static void
SubmitIfDraft(int64 task_id)
{
	Task		task;
	int			code;

	if (!TaskReadToSubmit(task_id, &task))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld does not exist", (long long) task_id)));
	if (task.state == TASK_PENDING || task.state == TASK_IN_PROGRESS)
		return;
	if (task.state == TASK_PAUSED)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld is paused", (long long) task_id),
				 errhint("SELECT coupon_task_resume(%lld) lets it go on.", (long long) task_id)));
	code = TaskSubmit(task_id, task.state == TASK_DRAFT ? DT_NOEND : task.send_at, &task);
	if (code == OUTCOME_EMPTY)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld has no lines", (long long) task_id),
				 errhint("Load its stage table first: \\copy coupon_stage_%lld (user_id) FROM 'users.csv' CSV HEADER",
						 (long long) task_id)));
	if (code != OUTCOME_OK)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld has ended: its state is %s", (long long) task_id,
						TaskStateName(task.state))));
}

/* After an error: leave the task alone for a while, or for good. */
static void
NoteError(int64 task_id, const ErrorData *error)
{
	Datum		args[2];
	QueryScope	scope;
	bool		isnull;
	bool		give_up;
	TimestampTz submitted_at = 0;

	args[0] = Int64GetDatum(task_id);
	args[1] = CStringGetTextDatum(error->message);
	QueryBegin(&scope);
	give_up = QueryRun(&note_error, args, NULL) == 1 &&
		DatumGetInt32(QueryValue(0, 1, &isnull)) >= MAX_ATTEMPTS &&
		error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
	if (give_up)
		submitted_at = DatumGetTimestampTz(QueryValue(0, 2, &isnull));
	QueryEnd(&scope);
	if (give_up)
		TaskFail(task_id, submitted_at, error->message);
}

static bool
AttemptStep(void *arg)
{
	Attempt    *attempt = arg;

	/* All else that a worker does waits with it. */
	if (attempt->run->in_worker)
		(void) set_config_option("lock_timeout", STEP_LOCK_TIMEOUT, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	attempt->result = TakeStep(attempt->run, attempt->last);
	return true;
}

/* TakeStep in a subtransaction; an error is noted, and ends the run. */
static StepResult
TryStep(Run *run, StepResult last)
{
	Attempt		attempt = {run, last, STEP_OVER};
	ErrorData  *error;

	if (SubxactRun(AttemptStep, &attempt, &error))
		return attempt.result;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	ereport(LOG,
			(errmsg("task %lld met an error: %s", (long long) run->task_id, error->message)));
	NoteError(run->task_id, error);
	return STEP_OVER;
}

/*
 * Run a task until it is over, or, in the background, others or open claims stand
 * in the way; or, with a budget, until the time is up or it has to pause: true then.
 * A transaction is open, which has done nothing yet, before and after each step.
 */
static bool
RunTask(Run *run, int budget_ms, int64 *pause)
{
	TimestampTz begin = GetCurrentTimestamp();
	StepResult	result = STEP_MORE;

	while (result != STEP_OVER)
	{
		TimestampTz step_begin = GetCurrentTimestamp();
		StepResult	last = result;
		bool		alone = run->alone;
		int64		wanted;

		CHECK_FOR_INTERRUPTS();
		/* Nobody else says so to a process that does not wait. */
		if (!PostmasterIsAlive())
			proc_exit(1);
		result = run->foreground ? TakeStep(run, last) : TryStep(run, last);
		run->next_transaction();
		if (run->foreground)
			ReportProgress(run, NOTICE_INTERVAL_MS);
		else if (result == STEP_WAIT || result == STEP_BUSY)
			return false;
		if (last != STEP_MORE || result != STEP_MORE || alone != run->alone)
			continue;			/* or the time might be up before anything is done */
		if (run->attempts > 0)
		{
			(void) RunFor(&forget_errors, run->task_id);
			run->next_transaction();
		}
		wanted = ThrottleCharge(step_begin);
		if (budget_ms == 0)
			ThrottleSleep(wanted);
		else if (wanted > 0 ||
				 TimestampDifferenceExceeds(begin, GetCurrentTimestamp(), budget_ms))
		{
			*pause = Max(*pause, wanted);
			return true;
		}
	}
	return false;
}

/*
 * TaskRunDue works at a task that is due, and waits for no other runners or open claims.
 * After budget_ms (0: never), or where claims want the cores, it returns true: there
 * is more to do, after "pause" microseconds.  Errors are noted in the task's row.
 */
bool
TaskRunDue(int64 task_id, bool in_worker, void (*next_transaction) (void), int budget_ms, int64 *pause)
{
	Run			run = {.task_id = task_id, .in_worker = in_worker, .next_transaction = next_transaction};

	return RunTask(&run, budget_ms, pause);
}

/* A call whose task has not come to its end says so. */
static void
RequireSuccess(int64 task_id)
{
	Datum		arg = Int64GetDatum(task_id);
	QueryScope	scope;
	bool		isnull;
	const char *state;

	QueryBegin(&scope);
	if (QueryRun(&how_ended, &arg, NULL) == 1)
	{
		state = TextDatumGetCString(QueryRequired(0, 1, TEXTOID));
		if (strcmp(state, "failed") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_TASK_STATE),
					 errmsg("task %lld has failed: %s", (long long) task_id,
							TextDatumGetCString(QueryValue(0, 2, &isnull))),
					 errhint("Correct the template, then SELECT coupon_task_submit(%lld) and run it again; what was issued stays.",
							 (long long) task_id)));
		if (strcmp(state, "success") != 0)
			ereport(WARNING,
					(errcode(ERRCODE_COUPON_TASK_STATE),
					 errmsg("the task is %s: not all of its lines were handled", state)));
	}
	QueryEnd(&scope);
}

/*
 * coupon_task_run(task_id): run a task to its end, in the foreground.
 */
Datum
coupon_task_run(PG_FUNCTION_ARGS)
{
	Run			run = {.foreground = true, .next_transaction = ProcedureNextTransaction,
	.reported = GetCurrentTimestamp()};

	ArgRequire(fcinfo, 0, "task_id");
	run.task_id = PG_GETARG_INT64(0);
	ProcedureBegin(fcinfo, "coupon_task_run",
				   "SELECT coupon_task_submit(…) has a background worker run it after the commit.");
	SubmitIfDraft(run.task_id);
	ProcedureNextTransaction();
	(void) RunTask(&run, 0, NULL);
	ReportProgress(&run, 0);
	RequireSuccess(run.task_id);
	ProcedureEnd();
	return (Datum) 0;
}
