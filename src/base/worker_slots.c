/*
 * worker_slots.c
 *		The launcher, workers and mailers that there are: how each is woken, asked to
 *		leave, and what it is doing.
 *
 * One slot in shared memory for the launcher, one for each database that has a
 * worker, one more where it has a mailer.  A process publishes its latch there
 * while it runs, and takes it away before it exits; it is only ever set under
 * the lock, so that nobody sets the latch of a process that is gone.  What it
 * was doing outlives it, so that the reason of a failure can be read while the
 * next try is waited for (coupon_stat_worker).
 *
 * Reasons to wake a worker are bits in an atomic.  A worker takes them, all at
 * once, before it looks at the tables; a committer adds them after its rows are
 * visible.  With a full barrier on both sides one of the two sees the other.  A
 * bit that is there already needs neither lock nor latch: of many claims a
 * second, one wakes the worker.
 *
 * Locking: "reasons" is written without lock.  All else is written under the
 * lock, exclusive, and read under it, shared; but a committer looks for the slot
 * of its database without lock, and looks again when it has the lock.  It can
 * miss only a worker that has not yet attached, and a worker that attaches looks
 * at everything.
 */
#include "postgres.h"

#include <signal.h>

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/worker_slots.h"

#define MOST_PROCESSES 512		/* in turn */

typedef struct WorkerSlot
{
	pg_atomic_uint32 reasons;
	Latch	   *latch;			/* NULL: no process */
	bool		asked;			/* to leave the database */
	bool		wants_mailer;	/* of a worker: it has mail to send */
	SlotStatus	status;
} WorkerSlot;

typedef struct WorkerSlots
{
	bool		crowded;		/* databases wait for a process to make room */
	Oid			installed;		/* where, since the launcher looked */
	WorkerSlot	slots[FLEXIBLE_ARRAY_MEMBER];
} WorkerSlots;

static WorkerSlots *shared = NULL;
static LWLock *lock = NULL;

/*
 * SlotCount returns the number of slots: the launcher's, and those of workers and
 * mailers, most of which may be waiting for their turn.
 */
int
SlotCount(void)
{
	return 1 + MOST_PROCESSES;
}

/*
 * SlotShmemSize returns the bytes that the slots need.
 */
Size
SlotShmemSize(void)
{
	return add_size(offsetof(WorkerSlots, slots),
					mul_size(SlotCount(), sizeof(WorkerSlot)));
}

/*
 * SlotShmemInit attaches to the slots; AddinShmemInitLock is held.
 */
void
SlotShmemInit(void)
{
	bool		found;

	shared = ShmemInitStruct("coupon workers", SlotShmemSize(), &found);
	lock = &GetNamedLWLockTranche("coupon workers")->lock;
	if (!found)
	{
		memset(shared, 0, SlotShmemSize());
		for (int i = 0; i < SlotCount(); i++)
			pg_atomic_init_u32(&shared->slots[i].reasons, 0);
	}
}

/* The slot of this database, 0 if it has none; without lock. */
static int
FindSlot(Oid database, WorkerKind kind)
{
	static int	last[WORKER_KINDS];
	WorkerSlot *slot = &shared->slots[last[kind]];

	if (slot->status.database == database && slot->status.kind == kind)
		return last[kind];
	for (int i = 1; i < SlotCount(); i++)
	{
		slot = &shared->slots[i];
		if (slot->status.database == database && slot->status.kind == kind)
			return last[kind] = i;
	}
	return 0;
}

/*
 * SlotWake wakes the process of this kind of this database, for these reasons;
 * rows that it is to look at are visible.  Cannot fail.
 */
void
SlotWake(WorkerKind kind, uint32 reasons)
{
	WorkerSlot *slot;
	int			number;

	if (shared == NULL)
		return;
	pg_memory_barrier();		/* those rows are visible before we look */
	number = FindSlot(MyDatabaseId, kind);
	if (number == 0)
		return;
	slot = &shared->slots[number];
	if ((pg_atomic_read_u32(&slot->reasons) & reasons) == reasons)
		return;
	pg_atomic_fetch_or_u32(&slot->reasons, reasons);
	LWLockAcquire(lock, LW_SHARED);
	if (slot->status.database == MyDatabaseId && slot->latch != NULL)
		SetLatch(slot->latch);
	LWLockRelease(lock);
}

/*
 * SlotTellInstalled tells the launcher that this database may have the extension
 * now.  Cannot fail.
 */
void
SlotTellInstalled(void)
{
	if (shared == NULL)
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (shared->installed == InvalidOid || shared->installed == MyDatabaseId)
		shared->installed = MyDatabaseId;
	else
		shared->installed = SLOT_ANYWHERE;
	if (shared->slots[SLOT_LAUNCHER].latch != NULL)
		SetLatch(shared->slots[SLOT_LAUNCHER].latch);
	LWLockRelease(lock);
}

/*
 * SlotAskToLeave asks the processes of a database to leave it, at once: what
 * they are doing is cancelled.  The launcher starts others later.
 */
void
SlotAskToLeave(Oid database)
{
	if (shared == NULL || !OidIsValid(database))
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 1; i < SlotCount(); i++)
	{
		WorkerSlot *slot = &shared->slots[i];

		if (slot->status.database != database)
			continue;
		slot->asked = true;
		/* It cannot be gone: it detaches under this lock. */
		if (slot->status.pid != 0)
		{
			SetLatch(slot->latch);
			(void) kill(slot->status.pid, SIGINT);
		}
	}
	LWLockRelease(lock);
}

/*
 * SlotOpen gives a process of a database a slot; returns its number, 0 if none
 * is free.  Only the launcher opens and closes slots.
 */
int
SlotOpen(Oid database, WorkerKind kind)
{
	int			number = 0;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 1; i < SlotCount() && number == 0; i++)
	{
		WorkerSlot *slot = &shared->slots[i];

		if (!OidIsValid(slot->status.database))
		{
			memset(&slot->status, 0, sizeof(SlotStatus));
			slot->status.kind = kind;
			slot->asked = false;
			slot->wants_mailer = false;
			pg_write_barrier(); /* FindSlot looks without the lock */
			slot->status.database = database;
			number = i;
		}
	}
	LWLockRelease(lock);
	return number;
}

/*
 * SlotClose takes the slot away, unless a process is attached.
 */
void
SlotClose(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (shared->slots[number].status.pid == 0)
		shared->slots[number].status.database = InvalidOid;
	LWLockRelease(lock);
}

/*
 * SlotAttach publishes the latch of this process.  False: the slot is no
 * longer this database's, somebody else is there, or it is asked to leave.
 */
bool
SlotAttach(int number, Oid database)
{
	WorkerSlot *slot = &shared->slots[number];
	bool		ok;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	ok = slot->status.database == database && slot->status.pid == 0 && !slot->asked;
	if (ok)
	{
		slot->latch = MyLatch;
		slot->status.pid = MyProcPid;
	}
	LWLockRelease(lock);
	return ok;
}

/*
 * SlotDetach takes the latch away and tells the launcher; called before exit.
 */
void
SlotDetach(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->slots[number].latch = NULL;
	shared->slots[number].status.pid = 0;
	LWLockRelease(lock);
	if (number != SLOT_LAUNCHER)
		SlotWakeLauncher();
}

/*
 * SlotWakeLauncher makes the launcher look around.
 */
void
SlotWakeLauncher(void)
{
	LWLockAcquire(lock, LW_SHARED);
	if (shared->slots[SLOT_LAUNCHER].latch != NULL)
		SetLatch(shared->slots[SLOT_LAUNCHER].latch);
	LWLockRelease(lock);
}

/*
 * SlotTakeReasons returns what commits have brought since the last call.  Take
 * snapshots only after it.
 */
uint32
SlotTakeReasons(int number)
{
	return pg_atomic_exchange_u32(&shared->slots[number].reasons, 0);
}

/*
 * SlotTakeInstalled returns the database in which the extension was created
 * since the last call, SLOT_ANYWHERE if in several.
 */
Oid
SlotTakeInstalled(void)
{
	Oid			installed;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	installed = shared->installed;
	shared->installed = InvalidOid;
	LWLockRelease(lock);
	return installed;
}

/*
 * SlotIsAsked tells whether the process of this slot is asked to leave.
 */
bool
SlotIsAsked(int number)
{
	bool		asked;

	LWLockAcquire(lock, LW_SHARED);
	asked = shared->slots[number].asked;
	LWLockRelease(lock);
	return asked;
}

/*
 * SlotSetCrowded says, for the launcher, whether databases wait for a process to make
 * room, and wakes all, that they see it.
 */
void
SlotSetCrowded(bool crowded)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->crowded = crowded;
	for (int i = 1; crowded && i < SlotCount(); i++)
	{
		if (shared->slots[i].latch != NULL)
			SetLatch(shared->slots[i].latch);
	}
	LWLockRelease(lock);
}

/*
 * SlotIsCrowded tells whether databases wait for a process to make room.
 */
bool
SlotIsCrowded(void)
{
	bool		crowded;

	LWLockAcquire(lock, LW_SHARED);
	crowded = shared->crowded;
	LWLockRelease(lock);
	return crowded;
}

/*
 * SlotForgetAsked lets a worker come back.
 */
void
SlotForgetAsked(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->slots[number].asked = false;
	LWLockRelease(lock);
}

/*
 * SlotWantMailer says, for the worker of this slot, whether the database needs
 * a mailer, and tells the launcher if that is new.
 */
void
SlotWantMailer(int number, bool wanted)
{
	bool		changed;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	changed = shared->slots[number].wants_mailer != wanted;
	shared->slots[number].wants_mailer = wanted;
	LWLockRelease(lock);
	if (changed)
		SlotWakeLauncher();
}

/*
 * SlotMailerIsWanted tells whether the worker of a database wants a mailer.
 */
bool
SlotMailerIsWanted(Oid database)
{
	bool		wanted = false;

	LWLockAcquire(lock, LW_SHARED);
	for (int i = 1; i < SlotCount() && !wanted; i++)
		wanted = shared->slots[i].status.database == database &&
			shared->slots[i].wants_mailer;
	LWLockRelease(lock);
	return wanted;
}

/*
 * SlotSetState says what a process is doing, or why it has left.
 */
void
SlotSetState(int number, WorkerState state)
{
	SlotStatus *status = &shared->slots[number].status;
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (state == WORKER_RUNNING && status->state != WORKER_RUNNING)
		status->started_at = now;
	status->state = state;
	LWLockRelease(lock);
}

/*
 * SlotGet copies what a slot says; false if it is free, or without shared memory.
 */
bool
SlotGet(int number, SlotStatus *status)
{
	if (shared == NULL)
		return false;
	LWLockAcquire(lock, LW_SHARED);
	*status = shared->slots[number].status;
	LWLockRelease(lock);
	return OidIsValid(status->database) || number == SLOT_LAUNCHER;
}

/*
 * SlotCountTurn says that a process has looked at everything once more.
 */
void
SlotCountTurn(int number)
{
	SlotStatus *status = &shared->slots[number].status;
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(lock, LW_EXCLUSIVE);
	status->turns++;
	status->last_turn_at = now;
	LWLockRelease(lock);
}

/*
 * SlotSetError keeps the text of the last failure, as much as there is room
 * for.
 */
void
SlotSetError(int number, const char *text)
{
	SlotStatus *status = &shared->slots[number].status;
	TimestampTz now = GetCurrentTimestamp();
	int			length = pg_mbcliplen(text, strlen(text), SLOT_ERROR_LENGTH - 1);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	status->errors++;
	status->last_error_at = now;
	memcpy(status->last_error, text, length);
	status->last_error[length] = '\0';
	LWLockRelease(lock);
}
