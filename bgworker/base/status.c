/*
 * status.c
 *		What the launcher and the workers are doing, for coupon_stat_worker.
 *
 * One entry for each slot of commit_wakeup.c, under one lock.  An entry outlives the
 * process that it tells of, so that the reason of a failure can be read while
 * the next try is waited for; the launcher resets it for another database.
 */
#include "postgres.h"

#include "commands/extension.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "bgworker/base/status.h"

#define ERROR_LENGTH 400
#define STATUS_COLUMNS 10

typedef struct WorkerStatus
{
	WorkerState state;
	TimestampTz started_at;		/* of the process */
	TimestampTz last_turn_at;	/* 0: none yet */
	int64		turns;
	int64		errors;
	TimestampTz last_error_at;	/* 0: none */
	char		last_error[ERROR_LENGTH];
} WorkerStatus;

PG_FUNCTION_INFO_V1(coupon_stat_workers);
PG_FUNCTION_INFO_V1(coupon_worker_wake);

static WorkerStatus *entries = NULL;
static LWLock *lock = NULL;

/*
 * StatusShmemSize returns the bytes that the entries need.
 */
Size
StatusShmemSize(void)
{
	return mul_size(WakeSlotCount(), sizeof(WorkerStatus));
}

/*
 * StatusShmemInit attaches to the entries; AddinShmemInitLock is held.
 */
void
StatusShmemInit(void)
{
	bool		found;

	entries = ShmemInitStruct("coupon workers", StatusShmemSize(), &found);
	lock = &GetNamedLWLockTranche("coupon workers")->lock;
	if (!found)
		memset(entries, 0, StatusShmemSize());
}

/*
 * StatusReset forgets everything: the slot now serves another database.
 */
void
StatusReset(int number)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	memset(&entries[number], 0, sizeof(WorkerStatus));
	LWLockRelease(lock);
}

/*
 * StatusSetState says what a process is doing, or why it has left.
 */
void
StatusSetState(int number, WorkerState state)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (state == WORKER_RUNNING && entries[number].state != WORKER_RUNNING)
		entries[number].started_at = now;
	entries[number].state = state;
	LWLockRelease(lock);
}

/*
 * StatusGetState returns it.
 */
WorkerState
StatusGetState(int number)
{
	WorkerState state;

	LWLockAcquire(lock, LW_SHARED);
	state = entries[number].state;
	LWLockRelease(lock);
	return state;
}

/*
 * StatusCountTurn says that a process has looked at everything once more.
 */
void
StatusCountTurn(int number)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entries[number].turns++;
	entries[number].last_turn_at = now;
	LWLockRelease(lock);
}

/*
 * StatusSetError keeps the text of the last failure, as much as there is room
 * for.
 */
void
StatusSetError(int number, const char *text)
{
	TimestampTz now = GetCurrentTimestamp();
	int			length = pg_mbcliplen(text, strlen(text), ERROR_LENGTH - 1);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entries[number].errors++;
	entries[number].last_error_at = now;
	memcpy(entries[number].last_error, text, length);
	entries[number].last_error[length] = '\0';
	LWLockRelease(lock);
}

static const char *
StateName(WorkerState state)
{
	switch (state)
	{
		case WORKER_STARTING:
			return "starting";
		case WORKER_RUNNING:
			return "running";
		case WORKER_LEFT:
			return "left";
		case WORKER_ABSENT:
		case WORKER_UNWANTED:
			return "leaving";
		case WORKER_FAILED:
			return "failed";
	}
	return NULL;
}

/*
 * The text may be in the encoding of another database: what is not ASCII is
 * shown as it is only in its own.
 */
static Datum
ErrorText(WorkerStatus *status, Oid database)
{
	if (database != MyDatabaseId)
	{
		for (char *p = status->last_error; *p != '\0'; p++)
		{
			if (IS_HIGHBIT_SET(*p))
				*p = '?';
		}
	}
	return CStringGetTextDatum(status->last_error);
}

/*
 * coupon_stat_workers() → the launcher and each worker, of all databases;
 * nothing without shared memory and during recovery.
 */
Datum
coupon_stat_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; entries != NULL && i < WakeSlotCount(); i++)
	{
		WorkerStatus copy;
		Oid			database;
		WakeKind	kind;
		int			pid;
		Datum		values[STATUS_COLUMNS];
		bool		nulls[STATUS_COLUMNS] = {false};

		if (!WakeGet(i, &database, &kind, &pid))
			continue;
		LWLockAcquire(lock, LW_SHARED);
		copy = entries[i];
		LWLockRelease(lock);
		if (i == WAKE_LAUNCHER && pid == 0 && copy.turns == 0)
			continue;			/* never started: this is a standby */

		values[0] = CStringGetTextDatum(i == WAKE_LAUNCHER ? "launcher" :
										kind == WAKE_MAILER ? "mailer" : "worker");
		values[1] = ObjectIdGetDatum(database);
		nulls[1] = i == WAKE_LAUNCHER;
		values[2] = Int32GetDatum(pid);
		nulls[2] = pid == 0;
		/* One that has just died says "running" until the launcher looks. */
		values[3] = CStringGetTextDatum(StateName(
			copy.state == WORKER_RUNNING && pid == 0 ? WORKER_FAILED : copy.state));
		values[4] = TimestampTzGetDatum(copy.started_at);
		nulls[4] = copy.started_at == 0 || pid == 0;
		values[5] = TimestampTzGetDatum(copy.last_turn_at);
		nulls[5] = copy.last_turn_at == 0;
		values[6] = Int64GetDatum(copy.turns);
		values[7] = Int64GetDatum(copy.errors);
		nulls[8] = nulls[9] = copy.last_error_at == 0;
		values[8] = ErrorText(&copy, database);
		values[9] = TimestampTzGetDatum(copy.last_error_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * coupon_worker_wake() → void: the worker of this database looks at everything
 * when this transaction commits, without waiting out a failure; if there is
 * none, the launcher looks whether there should be.
 */
Datum
coupon_worker_wake(PG_FUNCTION_ARGS)
{
	/* In CREATE EXTENSION: a restore may follow, which we must not fold. */
	WakeWorkerAtCommit(creating_extension ? WAKE_LOOK : WAKE_NOW);
	WakeLauncherAtCommit();
	PG_RETURN_VOID();
}
