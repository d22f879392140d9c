/*
 * commit_wakeup.c
 *		Which worker is woken when a transaction commits, and why.
 *
 * A transaction notes what it brings in a variable of its own.  The callback,
 * registered once, passes it on at COMMIT, after the transaction has left the
 * array of running ones; it allocates nothing and cannot fail.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/subxact.h"
#include "base/worker_slots.h"

/* What a mailer has to know of as well. */
#define WAKE_FOR_MAILER (WAKE_DELIVER | WAKE_LOOK | WAKE_NOW)

#define WAKE_BITS 16			/* of reasons */

/* What this transaction brings. */
static uint32 reasons_at_commit = 0;
static uint32 reasons_if_late = 0;
static TimestampTz late_from[WAKE_BITS];	/* of each of them */
static bool launcher_at_commit = false;

/* Those reasons for which the commit comes late enough; by the clock as it is. */
static uint32
LateReasons(void)
{
	TimestampTz now = GetCurrentTimestamp();
	uint32		late = 0;

	for (int bit = 0; bit < WAKE_BITS; bit++)
	{
		if ((reasons_if_late & (1 << bit)) != 0 && now >= late_from[bit])
			late |= 1 << bit;
	}
	return late;
}

static void
AtTransactionEnd(XactEvent event, void *arg)
{
	if (reasons_at_commit == 0 && reasons_if_late == 0 && !launcher_at_commit)
		return;
	if (XactIsCommit(event))
	{
		/* Our rows are visible: whoever did not see them looked before. */
		if (reasons_if_late != 0)
			reasons_at_commit |= LateReasons();
		if (reasons_at_commit != 0)
		{
			SlotWake(KIND_WORKER, reasons_at_commit);
			if (reasons_at_commit & WAKE_FOR_MAILER)
				SlotWake(KIND_MAILER, reasons_at_commit);
		}
		if (launcher_at_commit)
			SlotTellInstalled();
	}
	if (XactIsCommit(event) || XactIsAbort(event) || event == XACT_EVENT_PREPARE)
	{
		reasons_at_commit = 0;
		reasons_if_late = 0;
		launcher_at_commit = false;
	}
}

/*
 * WakeInit registers the callback.  Called from _PG_init before the other
 * rooms': callbacks run in reverse order, and a worker must not look before
 * the others have settled what this transaction has done.
 */
void
WakeInit(void)
{
	RegisterXactCallback(AtTransactionEnd, NULL);
}

/*
 * WakeWorkerAtCommit makes the commit of this transaction wake the worker of
 * this database.  Cannot fail.
 */
void
WakeWorkerAtCommit(uint32 reasons)
{
	reasons_at_commit |= reasons;
}

/*
 * WakeWorkerIfLate makes the commit wake the worker for these reasons if it
 * comes at this moment or later; of several moments for a reason the first one
 * counts.  Cannot fail.
 */
void
WakeWorkerIfLate(TimestampTz moment, uint32 reasons)
{
	for (int bit = 0; bit < WAKE_BITS; bit++)
	{
		if ((reasons & (1 << bit)) == 0)
			continue;
		if ((reasons_if_late & (1 << bit)) == 0 || moment < late_from[bit])
			late_from[bit] = moment;
	}
	reasons_if_late |= reasons;
}

/*
 * WakeLauncherAtCommit makes the commit tell the launcher that this database
 * may have the extension now.
 */
void
WakeLauncherAtCommit(void)
{
	launcher_at_commit = true;
}
