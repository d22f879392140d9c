/*
 * commit_wakeup.c
 *		Who is to be woken when a transaction commits, and how.
 *
 * One slot in shared memory for the launcher, one for each database that has
 * a worker, one more where it has a mailer.  A process publishes its latch there while it runs, and takes
 * it away before it exits; it is only ever set under the lock, so that nobody
 * sets the latch of a process that is gone.
 *
 * A transaction notes what it brings in a variable of its own.  The callback,
 * registered once, passes it on at COMMIT, after the transaction has left the
 * array of running ones; it allocates nothing and cannot fail.  The reasons of
 * a slot are bits in an atomic.  A worker takes them, all at once, before it
 * looks at the tables; a committer looks at them after its rows are visible.
 * With a full barrier on both sides one of the two sees the other.  A bit that
 * is there already needs neither lock nor latch: of many claims a second, one
 * wakes the worker.
 *
 * Fields: "reasons" is written without lock.  All others are written under the
 * lock, exclusive, and read under it, shared; but a committer looks for the
 * slot of its database without lock, and looks again when it has the lock.  It
 * can miss only a worker that has not yet attached, and a worker that attaches
 * looks at everything.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/subxact.h"

typedef struct WakeSlot
{
	pg_atomic_uint32 reasons;
	Oid			database;		/* invalid: free, or the launcher's */
	Latch	   *latch;			/* NULL: no process */
	int			pid;			/* 0: no process */
	WakeKind	kind;
	bool		asked;			/* to leave the database */
	bool		wants_mailer;	/* of a worker: it has mail to send */
} WakeSlot;

typedef struct WakeShared
{
	Oid			installed;		/* where, since the launcher looked; by lock */
	WakeSlot	slots[FLEXIBLE_ARRAY_MEMBER];
} WakeShared;

/* What a mailer has to know of as well. */
#define WAKE_FOR_MAILER (WAKE_DELIVER | WAKE_LOOK | WAKE_NOW)

#define WAKE_BITS 16			/* of reasons */

static WakeShared *shared = NULL;
static LWLock *lock = NULL;

/* What this transaction brings. */
static uint32 reasons_at_commit = 0;
static uint32 reasons_if_late = 0;
static TimestampTz late_from[WAKE_BITS];	/* of each of them */
static bool launcher_at_commit = false;

/*
 * WakeSlotCount returns the number of slots: the launcher's, and as many as
 * there can be background workers.
 */
int
WakeSlotCount(void)
{
	return 1 + max_worker_processes;
}

/*
 * WakeShmemSize returns the bytes that the slots need.
 */
Size
WakeShmemSize(void)
{
	return add_size(offsetof(WakeShared, slots),
					mul_size(WakeSlotCount(), sizeof(WakeSlot)));
}

/*
 * WakeShmemInit attaches to the slots; AddinShmemInitLock is held.
 */
void
WakeShmemInit(void)
{
	bool		found;

	shared = ShmemInitStruct("coupon wake", WakeShmemSize(), &found);
	lock = &GetNamedLWLockTranche("coupon wake")->lock;
	if (!found)
	{
		memset(shared, 0, WakeShmemSize());
		for (int i = 0; i < WakeSlotCount(); i++)
			pg_atomic_init_u32(&shared->slots[i].reasons, 0);
	}
}

/* The slot of this database, 0 if it has none; without lock. */
static int
FindSlot(Oid database, WakeKind kind)
{
	static int	last[WAKE_KINDS];
	WakeSlot   *slot = &shared->slots[last[kind]];

	if (slot->database == database && slot->kind == kind)
		return last[kind];
	for (int i = 1; i < WakeSlotCount(); i++)
	{
		slot = &shared->slots[i];
		if (slot->database == database && slot->kind == kind)
			return last[kind] = i;
	}
	return 0;
}

static void
WakeProcess(WakeKind kind, uint32 reasons)
{
	int			number = FindSlot(MyDatabaseId, kind);
	WakeSlot   *slot;

	if (number == 0)
		return;
	slot = &shared->slots[number];
	if ((pg_atomic_read_u32(&slot->reasons) & reasons) == reasons)
		return;
	pg_atomic_fetch_or_u32(&slot->reasons, reasons);
	LWLockAcquire(lock, LW_SHARED);
	if (slot->database == MyDatabaseId && slot->latch != NULL)
		SetLatch(slot->latch);
	LWLockRelease(lock);
}

static void
TellInstalled(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (shared->installed == InvalidOid || shared->installed == MyDatabaseId)
		shared->installed = MyDatabaseId;
	else
		shared->installed = WAKE_ANYWHERE;
	if (shared->slots[WAKE_LAUNCHER].latch != NULL)
		SetLatch(shared->slots[WAKE_LAUNCHER].latch);
	LWLockRelease(lock);
}

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
			pg_memory_barrier();	/* our rows are visible before we look */
			WakeProcess(WAKE_WORKER, reasons_at_commit);
			if (reasons_at_commit & WAKE_FOR_MAILER)
				WakeProcess(WAKE_MAILER, reasons_at_commit);
		}
		if (launcher_at_commit)
			TellInstalled();
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
	if (shared != NULL)
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
	if (shared == NULL)
		return;
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
	launcher_at_commit = shared != NULL;
}

/*
 * WakeAskToLeave asks the processes of a database to leave it, at once: what
 * they are doing is cancelled.  The launcher starts others later.
 */
void
WakeAskToLeave(Oid database)
{
	if (shared == NULL || !OidIsValid(database))
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 1; i < WakeSlotCount(); i++)
	{
		WakeSlot   *slot = &shared->slots[i];

		if (slot->database != database)
			continue;
		slot->asked = true;
		/* It cannot be gone: it detaches under this lock. */
		if (slot->pid != 0)
		{
			SetLatch(slot->latch);
			(void) kill(slot->pid, SIGINT);
		}
	}
	LWLockRelease(lock);
}

/*
 * WakeOpen gives a process of a database a slot; returns its number, 0 if none
 * is free.  Only the launcher opens and closes slots.
 */
int
WakeOpen(Oid database, WakeKind kind)
{
	int			number = 0;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 1; i < WakeSlotCount() && number == 0; i++)
	{
		WakeSlot   *slot = &shared->slots[i];

		if (!OidIsValid(slot->database))
		{
			slot->kind = kind;
			slot->asked = false;
			slot->wants_mailer = false;
			pg_write_barrier(); /* FindSlot looks without the lock */
			slot->database = database;
			number = i;
		}
	}
	LWLockRelease(lock);
	return number;
}

/*
 * WakeClose takes the slot away, unless a process is attached.
 */
void
WakeClose(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (shared->slots[number].pid == 0)
		shared->slots[number].database = InvalidOid;
	LWLockRelease(lock);
}

/*
 * WakeAttach publishes the latch of this process.  False: the slot is no
 * longer this database's, somebody else is there, or it is asked to leave.
 */
bool
WakeAttach(int number, Oid database)
{
	WakeSlot   *slot = &shared->slots[number];
	bool		ok;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	ok = slot->database == database && slot->pid == 0 && !slot->asked;
	if (ok)
	{
		slot->latch = MyLatch;
		slot->pid = MyProcPid;
	}
	LWLockRelease(lock);
	return ok;
}

/*
 * WakeDetach takes the latch away and tells the launcher; called before exit.
 */
void
WakeDetach(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->slots[number].latch = NULL;
	shared->slots[number].pid = 0;
	LWLockRelease(lock);
	if (number != WAKE_LAUNCHER)
		WakeLauncher();
}

/*
 * WakeLauncher makes the launcher look around.
 */
void
WakeLauncher(void)
{
	LWLockAcquire(lock, LW_SHARED);
	if (shared->slots[WAKE_LAUNCHER].latch != NULL)
		SetLatch(shared->slots[WAKE_LAUNCHER].latch);
	LWLockRelease(lock);
}

/*
 * WakeTakeReasons returns what commits have brought since the last call.  Take
 * snapshots only after it.
 */
uint32
WakeTakeReasons(int number)
{
	return pg_atomic_exchange_u32(&shared->slots[number].reasons, 0);
}

/*
 * WakeTakeInstalled returns the database in which the extension was created
 * since the last call, WAKE_ANYWHERE if in several.
 */
Oid
WakeTakeInstalled(void)
{
	Oid			installed;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	installed = shared->installed;
	shared->installed = InvalidOid;
	LWLockRelease(lock);
	return installed;
}

/*
 * WakeIsAsked tells whether the process of this slot is asked to leave.
 */
bool
WakeIsAsked(int number)
{
	bool		asked;

	LWLockAcquire(lock, LW_SHARED);
	asked = shared->slots[number].asked;
	LWLockRelease(lock);
	return asked;
}

/*
 * WakeForgetAsked lets a worker come back.
 */
void
WakeForgetAsked(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->slots[number].asked = false;
	LWLockRelease(lock);
}

/*
 * WakeWantMailer says, for the worker of this slot, whether the database needs
 * a mailer, and tells the launcher if that is new.
 */
void
WakeWantMailer(int number, bool wanted)
{
	bool		changed;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	changed = shared->slots[number].wants_mailer != wanted;
	shared->slots[number].wants_mailer = wanted;
	LWLockRelease(lock);
	if (changed)
		WakeLauncher();
}

/*
 * WakeMailerIsWanted tells whether the worker of a database wants a mailer.
 */
bool
WakeMailerIsWanted(Oid database)
{
	bool		wanted = false;

	LWLockAcquire(lock, LW_SHARED);
	for (int i = 1; i < WakeSlotCount() && !wanted; i++)
		wanted = shared->slots[i].database == database &&
			shared->slots[i].wants_mailer;
	LWLockRelease(lock);
	return wanted;
}

/*
 * WakeGet tells which database a slot serves, with what kind of process, and
 * which one is attached, if any; false if the slot is free.
 */
bool
WakeGet(int number, Oid *database, WakeKind *kind, int *pid)
{
	LWLockAcquire(lock, LW_SHARED);
	*database = shared->slots[number].database;
	*kind = shared->slots[number].kind;
	*pid = shared->slots[number].pid;
	LWLockRelease(lock);
	return OidIsValid(*database) || number == WAKE_LAUNCHER;
}
