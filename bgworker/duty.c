/*
 * duty.c
 *		What a worker or mailer does: a table of duties, each isolated from the
 *		others.
 *
 * A duty that fails is rolled back, its error is logged and kept for
 * coupon_stat_worker, and it is tried again after a second, then two, up to a
 * minute; the same error again is logged at DEBUG1 only.  The others go on.
 * coupon_worker_wake() tries it again at once.
 *
 * To add a duty, write its function (see duty.h) and a line in the table below;
 * if commits bring it work, give it a WAKE_ bit in wake.h and call
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

#include "deliver.h"
#include "duty.h"
#include "fold.h"
#include "remind_tick.h"
#include "status.h"
#include "task_run.h"
#include "transfer.h"
#include "wake.h"

#define FIRST_BACKOFF 1000		/* ms */
#define LAST_BACKOFF 60000

static const Duty duties[] = {
	/* Not at start: see FoldNew. */
	{"fold", WAKE_WORKER, WAKE_FOLD, 1000, false, false, FoldNew},
	/* Only tells the next to look at all. */
	{"reminders", WAKE_WORKER, WAKE_REMIND_ALL, 0, true, true, RemindTickAll},
	{"reminders", WAKE_WORKER, WAKE_REMIND, 200, true, false, RemindTick},
	{"tasks", WAKE_WORKER, WAKE_TASKS, 0, true, true, TaskDuty},
	{"deliver", WAKE_WORKER, WAKE_DELIVER, 20, true, true, DeliverDuty},
	{"answers", WAKE_WORKER, DUTY_SOCKET, 0, false, true, DeliverAnswers},
	{"deliver", WAKE_MAILER, WAKE_DELIVER, 20, true, true, DeliverDuty},
	{"answers", WAKE_MAILER, DUTY_SOCKET, 0, false, true, DeliverAnswers},
};

static int	slot;				/* of this process */
static WakeKind process;

/* What this process knows of each. */
static struct
{
	bool		woken;
	TimestampTz due;			/* not before; DT_NOEND: when woken */
	TimestampTz rested;			/* end of the last run and its pause */
	int			backoff;		/* ms; 0: the last run went well */
	uint32		error;			/* hash of the last error's text */
}			runs[lengthof(duties)];

/*
 * DutyInit makes those duties of this process due that are to run at the start.
 */
void
DutyInit(int number, WakeKind kind)
{
	slot = number;
	process = kind;
	DeliverInit(kind == WAKE_MAILER);
	memset(runs, 0, sizeof(runs));
	for (int i = 0; i < lengthof(duties); i++)
	{
		runs[i].woken = duties[i].at_start;
		runs[i].due = DT_NOEND;
	}
}

/*
 * DutySlot returns the number of this process's slot.
 */
int
DutySlot(void)
{
	return slot;
}

/*
 * DutySocket returns a descriptor that is readable when there is something to
 * do, -1 for none: while the duty for it rests after a failure, nobody would
 * read there, and it must not keep us from sleeping.
 */
int
DutySocket(void)
{
	for (int i = 0; i < lengthof(duties); i++)
	{
		if (duties[i].process == process && (duties[i].reasons & DUTY_SOCKET) &&
			runs[i].backoff > 0)
			return -1;
	}
	return TransferSocket();
}

static void
AddContext(void *arg)
{
	errcontext("coupon %s, duty \"%s\"", process == WAKE_MAILER ? "mailer" : "worker",
			   (const char *) arg);
}

static long
Run(const Duty *duty, bool woken)
{
	ErrorContextCallback context = {error_context_stack, AddContext,
	(void *) duty->name};
	long		answer;

	error_context_stack = &context;
	pgstat_report_activity(STATE_RUNNING, duty->name);
	SetCurrentStatementStartTimestamp();
	if (!duty->own_transactions)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
	}
	answer = duty->run(woken);
	if (!duty->own_transactions)
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
	asked = error->sqlerrcode == ERRCODE_QUERY_CANCELED && WakeIsAsked(slot);
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
				(errmsg_internal("duty \"%s\" fails again: %s", duties[i].name,
								 error->message)));
	if (!asked)
		StatusSetError(slot, psprintf("%s: %s", duties[i].name, error->message));
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
						process == WAKE_MAILER ? "mailer" : "worker", duties[i].name)));
	runs[i].backoff = 0;
	runs[i].rested = TimestampTzPlusMilliseconds(now, duties[i].pause);
	runs[i].due = answer == DUTY_SLEEP ? DT_NOEND :
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
		Succeed(i, Run(&duties[i], woken));
	}
	PG_CATCH();
	{
		error_context_stack = context;
		Fail(i, caller);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

/* When a duty is to run, DT_NOEND for not until woken. */
static TimestampTz
DueAt(int i)
{
	if (runs[i].backoff > 0 || !runs[i].woken)
		return runs[i].due;
	return Min(runs[i].rested, runs[i].due);
}

/*
 * DutyClockWentBack tells whether the clock was set back since the last call:
 * moments that were noted before may lie far ahead then.  "last" is where the
 * caller keeps what it showed, 0 at first.
 */
bool
DutyClockWentBack(TimestampTz *last)
{
	TimestampTz before = *last;

	*last = GetCurrentTimestamp();
	return *last < before;
}

/*
 * DutyRunDue runs each duty that is due, once, and returns for how many
 * milliseconds there is nothing to do, DUTY_SLEEP for until woken.
 */
long
DutyRunDue(uint32 reasons)
{
	static TimestampTz last = 0;
	TimestampTz next = DT_NOEND;

	if (DutyClockWentBack(&last))
		reasons |= WAKE_NOW;
	for (int i = 0; i < lengthof(duties); i++)
	{
		if (duties[i].process != process)
			continue;
		if (reasons & (duties[i].reasons | WAKE_NOW))
			runs[i].woken = true;
		if (reasons & WAKE_NOW)
			runs[i].due = 0;
		QueryCancelPending = false; /* it was meant for what is over */
		if (DueAt(i) <= GetCurrentTimestamp() && !WakeIsAsked(slot))
			RunIsolated(i);
		next = Min(next, DueAt(i));
	}
	return next == DT_NOEND ? DUTY_SLEEP :
		TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next);
}
