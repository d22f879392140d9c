/*
 * job.c
 *		What a worker or mailer does: a table of jobs, each isolated from the
 *		others.
 *
 * A job that fails is rolled back, its error is logged and kept for
 * coupon_stat_worker, and it is tried again after a second, then two, up to a
 * minute; the same error again is logged at DEBUG1 only.  The others go on.
 * coupon_worker_wake() tries it again at once.
 *
 * To add a job, write its function (see job.h) and a line in the table below;
 * if commits bring it work, give it a WAKE_ bit in commit_wakeup.h and call
 * WakeWorkerAtCommit with that bit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/worker_slots.h"
#include "bgworker/base/process.h"
#include "bgworker/curl/transfer.h"
#include "bgworker/delivery/deliver.h"
#include "bgworker/job.h"
#include "remind/tick.h"
#include "task/due.h"
#include "template/fold.h"

#define FIRST_BACKOFF 1000		/* ms */
#define LAST_BACKOFF 60000

static const Job jobs[] = {
	/* Not at start: see FoldNew. */
	{"fold", KIND_WORKER, WAKE_FOLD, 1000, false, false, FoldNew},
	/* Only tells the next to look at all. */
	{"reminders", KIND_WORKER, WAKE_REMIND_ALL, 0, true, true, RemindTickAll},
	{"reminders", KIND_WORKER, WAKE_REMIND, 200, true, false, RemindTick},
	{"tasks", KIND_WORKER, WAKE_TASKS, 0, true, true, TaskJob},
	{"deliver", KIND_WORKER, WAKE_DELIVER, 20, true, true, DeliverJob},
	{"answers", KIND_WORKER, JOB_SOCKET, 0, false, true, DeliverAnswers},
	{"deliver", KIND_MAILER, WAKE_DELIVER, 20, true, true, DeliverJob},
	{"answers", KIND_MAILER, JOB_SOCKET, 0, false, true, DeliverAnswers},
};

/* What this process knows of each. */
static struct
{
	bool		woken;
	TimestampTz due;			/* not before; DT_NOEND: when woken */
	TimestampTz rested;			/* end of the last run and its pause */
	int			backoff;		/* ms; 0: the last run went well */
	uint32		error;			/* hash of the last error's text */
}			runs[lengthof(jobs)];

/*
 * JobInit makes those jobs of this process due that are to run at the start.
 */
void
JobInit(int number, WorkerKind kind)
{
	ProcessInit(number, kind);
	DeliverInit(kind == KIND_MAILER);
	memset(runs, 0, sizeof(runs));
	for (int i = 0; i < lengthof(jobs); i++)
	{
		runs[i].woken = jobs[i].at_start;
		runs[i].due = DT_NOEND;
	}
}

/*
 * JobSocket returns a descriptor that is readable when there is something to
 * do, -1 for none: while the job for it rests after a failure, nobody would
 * read there, and it must not keep us from sleeping.
 */
int
JobSocket(void)
{
	for (int i = 0; i < lengthof(jobs); i++)
	{
		if (jobs[i].process == ProcessKind() && (jobs[i].reasons & JOB_SOCKET) &&
			runs[i].backoff > 0)
			return -1;
	}
	return TransferSocket();
}

static void
AddContext(void *arg)
{
	errcontext("coupon %s, job \"%s\"", ProcessKind() == KIND_MAILER ? "mailer" : "worker",
			   (const char *) arg);
}

static long
Run(const Job *job, bool woken)
{
	ErrorContextCallback context = {error_context_stack, AddContext,
	(void *) job->name};
	long		answer;

	error_context_stack = &context;
	pgstat_report_activity(STATE_RUNNING, job->name);
	SetCurrentStatementStartTimestamp();
	if (!job->own_transactions)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
	}
	answer = job->run(woken);
	if (!job->own_transactions)
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	error_context_stack = context.previous;
	return answer;
}

/* Roll back, tell, and let it rest. */
static void
Fail(int i, MemoryContext caller)
{
	ErrorData  *error;
	uint32		hash;
	bool		again;
	bool		asked;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(caller);
	error = CopyErrorData();
	hash = hash_bytes((unsigned char *) error->message, strlen(error->message));
	again = runs[i].backoff > 0 && hash == runs[i].error;
	asked = error->sqlerrcode == ERRCODE_QUERY_CANCELED && SlotIsAsked(ProcessSlot());
	if (!again && !asked)
		EmitErrorReport();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	/* What AbortTransaction would do had it failed between transactions. */
	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	MemoryContextSwitchTo(caller);

	runs[i].error = hash;
	runs[i].backoff = Min(Max(2 * runs[i].backoff, FIRST_BACKOFF), LAST_BACKOFF);
	runs[i].woken = true;
	runs[i].due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), runs[i].backoff);
	if (again)
		ereport(DEBUG1,
				(errmsg_internal("job \"%s\" fails again: %s", jobs[i].name,
								 error->message)));
	if (!asked)
		SlotSetError(ProcessSlot(), psprintf("%s: %s", jobs[i].name, error->message));
	FreeErrorData(error);
	RESUME_INTERRUPTS();
}

static void
Succeed(int i, long answer)
{
	TimestampTz now = GetCurrentTimestamp();

	if (runs[i].backoff > 0)
		ereport(LOG,
				(errmsg("coupon %s: \"%s\" succeeds again",
						ProcessKind() == KIND_MAILER ? "mailer" : "worker", jobs[i].name)));
	runs[i].backoff = 0;
	runs[i].rested = TimestampTzPlusMilliseconds(now, jobs[i].pause);
	runs[i].due = answer == JOB_SLEEP ? DT_NOEND :
		TimestampTzPlusMilliseconds(now, answer);
}

static void
RunIsolated(int i)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorContextCallback *context = error_context_stack;
	bool		woken = runs[i].woken;

	runs[i].woken = false;
	PG_TRY();
	{
		Succeed(i, Run(&jobs[i], woken));
	}
	PG_CATCH();
	{
		error_context_stack = context;
		Fail(i, caller);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

/* When a job is to run, DT_NOEND for not until woken. */
static TimestampTz
DueAt(int i)
{
	if (runs[i].backoff > 0 || !runs[i].woken)
		return runs[i].due;
	return Min(runs[i].rested, runs[i].due);
}

/*
 * JobRunDue runs each job that is due, once, and returns for how many
 * milliseconds there is nothing to do, JOB_SLEEP for until woken.
 */
long
JobRunDue(uint32 reasons)
{
	static TimestampTz last = 0;
	TimestampTz next = DT_NOEND;

	if (ProcessClockWentBack(&last))
		reasons |= WAKE_NOW;
	for (int i = 0; i < lengthof(jobs); i++)
	{
		if (jobs[i].process != ProcessKind())
			continue;
		if (reasons & (jobs[i].reasons | WAKE_NOW))
			runs[i].woken = true;
		if (reasons & WAKE_NOW)
			runs[i].due = 0;
		QueryCancelPending = false; /* it was meant for what is over */
		if (DueAt(i) <= GetCurrentTimestamp() && !SlotIsAsked(ProcessSlot()))
			RunIsolated(i);
		next = Min(next, DueAt(i));
	}
	return next == DT_NOEND ? JOB_SLEEP :
		TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next);
}
