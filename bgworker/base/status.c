/*
 * status.c
 *		What the launcher and the workers are doing, for coupon_stat_worker.
 */
#include "postgres.h"

#include "commands/extension.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/worker_slots.h"

#define STATUS_COLUMNS 10

PG_FUNCTION_INFO_V1(coupon_stat_workers);
PG_FUNCTION_INFO_V1(coupon_worker_wake);

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
ErrorText(SlotStatus *status)
{
	if (status->database != MyDatabaseId)
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
	for (int i = 0; i < SlotCount(); i++)
	{
		SlotStatus	slot;
		Datum		values[STATUS_COLUMNS];
		bool		nulls[STATUS_COLUMNS] = {false};

		if (!SlotGet(i, &slot))
			continue;
		if (i == SLOT_LAUNCHER && slot.pid == 0 && slot.turns == 0)
			continue;			/* never started: this is a standby */

		values[0] = CStringGetTextDatum(i == SLOT_LAUNCHER ? "launcher" :
										slot.kind == KIND_MAILER ? "mailer" : "worker");
		values[1] = ObjectIdGetDatum(slot.database);
		nulls[1] = i == SLOT_LAUNCHER;
		values[2] = Int32GetDatum(slot.pid);
		nulls[2] = slot.pid == 0;
		/* One that has just died says "running" until the launcher looks. */
		values[3] = CStringGetTextDatum(StateName(
			slot.state == WORKER_RUNNING && slot.pid == 0 ? WORKER_FAILED : slot.state));
		values[4] = TimestampTzGetDatum(slot.started_at);
		nulls[4] = slot.started_at == 0 || slot.pid == 0;
		values[5] = TimestampTzGetDatum(slot.last_turn_at);
		nulls[5] = slot.last_turn_at == 0;
		values[6] = Int64GetDatum(slot.turns);
		values[7] = Int64GetDatum(slot.errors);
		nulls[8] = nulls[9] = slot.last_error_at == 0;
		values[8] = ErrorText(&slot);
		values[9] = TimestampTzGetDatum(slot.last_error_at);
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
