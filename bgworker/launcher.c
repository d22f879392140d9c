/*
 * launcher.c
 *		Starts a worker in each database that has the extension, and a mailer
 *		where the worker wants one.
 *
 * The launcher is connected to no database: it reads pg_database, which all
 * share, and cannot see which of them have the extension.  So it starts a worker once in
 * each database that coupon.databases names; one that finds no extension
 * leaves, and is not started there again until CREATE EXTENSION commits, or
 * the launcher itself is started anew.  Two are started at a time, so that a
 * server with many databases does not feel it.
 *
 * What it has to remember beyond its own death is in shared memory (worker_slots.c): a new launcher finds the workers that run and leaves them alone.
 * A worker tells of its end itself, by taking its latch away; the handle is
 * only asked about one that has never come as far.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/guc.h"
#include "base/worker_slots.h"
#include "bgworker/launcher.h"
#include "bgworker/worker.h"

#define RESTART_SECONDS 3		/* of the launcher itself */
#define LONGEST_SLEEP 60000		/* ms; then a database may be new */
#define START_TIMEOUT 60000		/* ms for a process to connect */
#define STARTING_AT_A_TIME 2
#define LEFT_PAUSE 1000			/* ms for whoever asked to lock the database */
#define BUSY_PAUSE 1000			/* somebody has the database to himself */
#define FULL_PAUSE 10000		/* no place among max_worker_processes */
#define FIRST_BACKOFF 1000
#define LAST_BACKOFF 60000

/* What this process knows of each slot. */
typedef struct Charge
{
	Oid			database;
	WorkerKind	kind;
	BackgroundWorkerHandle *handle; /* of the last start, if it was ours */
	bool		waiting;		/* for retry_at; else for the process */
	TimestampTz since;			/* start asked for */
	TimestampTz retry_at;
	int			backoff;		/* ms; doubles while starts fail */
} Charge;

static Charge *charges;
static List *absent = NIL;		/* databases without the extension */
static bool warned = false;		/* that no place is left */

/*
 * LauncherInit registers the launcher; called from _PG_init of the postmaster.
 */
void
LauncherInit(void)
{
	BackgroundWorker worker;

	if (IsBinaryUpgrade)
		return;
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_SECONDS;
	strlcpy(worker.bgw_library_name, "coupon", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "CouponLauncherMain",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "coupon launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "coupon launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

static void
AtExit(int code, Datum arg)
{
	SlotDetach(SLOT_LAUNCHER);
}

/* The databases that should have a worker if they have the extension. */
static List *
ListDatabases(MemoryContext context)
{
	List	   *wanted = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database db = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;

		/* A template serves nobody; it has to be free for being copied. */
		if (!db->datallowconn || db->datistemplate ||
			db->datconnlimit < -1 ||	/* half dropped */
			!GucNamesDatabase(NameStr(db->datname)))
			continue;
		old = MemoryContextSwitchTo(context);
		wanted = lappend_oid(wanted, db->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return wanted;
}

/*
 * Whether a connection would have to wait: for DROP DATABASE and its like.  A
 * worker that waits there would fail when the database is gone.
 */
static bool
IsBusy(Oid database, MemoryContext context)
{
	LOCKTAG		tag;
	bool		busy;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	busy = LockAcquire(&tag, RowExclusiveLock, false, true) ==
		LOCKACQUIRE_NOT_AVAIL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return busy;
}

static void
DropHandle(Charge *charge)
{
	if (charge->handle != NULL)
		pfree(charge->handle);
	charge->handle = NULL;
}

static void
WaitUntil(Charge *charge, long ms)
{
	charge->waiting = true;
	charge->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
}

static void
Forget(int number)
{
	DropHandle(&charges[number]);
	memset(&charges[number], 0, sizeof(Charge));
	SlotClose(number);
}

static void
NoteFailure(int number)
{
	Charge	   *charge = &charges[number];

	/* It ran for a while: not the same trouble as last time. */
	if (charge->backoff > 0 &&
		TimestampDifferenceExceeds(charge->since, GetCurrentTimestamp(),
								   2 * LAST_BACKOFF))
		charge->backoff = 0;
	charge->backoff = Min(Max(2 * charge->backoff, FIRST_BACKOFF), LAST_BACKOFF);
	SlotSetState(number, WORKER_FAILED);
	SlotSetError(number, "the process has ended; the server log says why");
	WaitUntil(charge, charge->backoff);
}

/*
 * Whether somebody has created the extension, perhaps, since the worker that
 * missed it has looked: it takes such reasons before it looks.  We may have
 * heard of that already, and then nobody tells us once more.
 */
static bool
IsToLookAgain(int number)
{
	return (SlotTakeReasons(number) & (WAKE_LOOK | WAKE_NOW)) != 0;
}

/* Nobody is attached: has it not come yet, has it left, has it failed? */
static void
Settle(int number)
{
	Charge	   *charge = &charges[number];
	MemoryContext old;
	SlotStatus	slot;
	pid_t		pid;

	(void) SlotGet(number, &slot);
	if (slot.state == WORKER_STARTING && !SlotIsAsked(number))
	{
		bool		gone;

		if (charge->handle != NULL)
			gone = GetBackgroundWorkerPid(charge->handle, &pid) == BGWH_STOPPED;
		else
			gone = false;		/* that of a launcher before us; wait */
		if (!gone && !TimestampDifferenceExceeds(charge->since,
												 GetCurrentTimestamp(),
												 START_TIMEOUT))
			return;
	}
	DropHandle(charge);

	if (slot.state == WORKER_ABSENT && charge->kind == KIND_WORKER && !IsToLookAgain(number))
	{
		old = MemoryContextSwitchTo(TopMemoryContext);
		absent = list_append_unique_oid(absent, charge->database);
		MemoryContextSwitchTo(old);
	}
	if (slot.state == WORKER_ABSENT || slot.state == WORKER_UNWANTED)
		Forget(number);
	else if (SlotIsAsked(number) || slot.state == WORKER_LEFT)
	{
		SlotSetState(number, WORKER_LEFT);
		WaitUntil(charge, LEFT_PAUSE);
	}
	else
		NoteFailure(number);
}

static bool
IsWanted(const Charge *charge, List *wanted)
{
	return list_member_oid(wanted, charge->database) &&
		(charge->kind == KIND_WORKER || SlotMailerIsWanted(charge->database));
}

/* Look after the slots that are in use; returns how many are starting. */
static int
LookAfter(List *wanted)
{
	int			starting = 0;

	for (int i = 1; i < SlotCount(); i++)
	{
		Charge	   *charge = &charges[i];
		SlotStatus	slot;

		if (!SlotGet(i, &slot))
			continue;
		if (charge->database != slot.database)	/* left by a launcher before us */
		{
			charge->database = slot.database;
			charge->kind = slot.kind;
			charge->since = GetCurrentTimestamp();
			charge->waiting = slot.state == WORKER_FAILED;
		}
		if (slot.pid == 0 && !charge->waiting)
			Settle(i);
		/* Settle before: it may have been dropped while it ran. */
		if (slot.pid == 0 && charge->waiting && !IsWanted(charge, wanted))
			Forget(i);
		if (SlotGet(i, &slot) && !charge->waiting && slot.state == WORKER_STARTING)
			starting++;
	}
	return starting;
}

/* Where none is free: next time, one is when a process leaves. */
static void
OpenSlot(Oid database, WorkerKind kind)
{
	int			number;

	for (int i = 1; i < SlotCount(); i++)
	{
		if (charges[i].database == database && charges[i].kind == kind)
			return;
	}
	number = SlotOpen(database, kind);
	if (number == 0)
		return;
	memset(&charges[number], 0, sizeof(Charge));
	charges[number].database = database;
	charges[number].kind = kind;
	charges[number].waiting = true;
}

static void
OpenSlots(List *wanted)
{
	ListCell   *lc;

	foreach(lc, wanted)
	{
		Oid			database = lfirst_oid(lc);

		if (list_member_oid(absent, database))
			continue;
		OpenSlot(database, KIND_WORKER);
		if (SlotMailerIsWanted(database))
			OpenSlot(database, KIND_MAILER);
	}
}

static void
Start(int number, MemoryContext context)
{
	Charge	   *charge = &charges[number];
	MemoryContext old;
	bool		ok;

	if (IsBusy(charge->database, context))
	{
		WaitUntil(charge, BUSY_PAUSE);
		return;
	}
	SlotForgetAsked(number);
	SlotSetState(number, WORKER_STARTING);
	old = MemoryContextSwitchTo(TopMemoryContext);
	ok = WorkerRegister(number, charge->database, charge->kind, &charge->handle);
	MemoryContextSwitchTo(old);
	if (ok)
	{
		charge->waiting = false;
		charge->since = GetCurrentTimestamp();
		warned = false;
		return;
	}

	if (!warned)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker is left for coupon"),
				 errhint("Raise max_worker_processes: coupon needs one for each database that has it, one more where it sends mail, and one for itself.")));
	warned = true;
	SlotSetState(number, WORKER_FAILED);
	SlotSetError(number, "no background worker is left: raise max_worker_processes");
	WaitUntil(charge, FULL_PAUSE);
}

/* How many processes there are, or soon will be. */
static int
CountProcesses(void)
{
	int			n = 0;

	for (int i = 1; i < SlotCount(); i++)
		n += OidIsValid(charges[i].database) && !charges[i].waiting;
	return n;
}

/* The slot that waits for its moment since the longest time; 0: none does. */
static int
FindDue(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int			first = 0;

	for (int i = 1; i < SlotCount(); i++)
	{
		const Charge *charge = &charges[i];

		if (OidIsValid(charge->database) && charge->waiting && charge->retry_at <= now &&
			(first == 0 || charge->retry_at < charges[first].retry_at))
			first = i;
	}
	return first;
}

/*
 * Start what is due, those that have waited longest first, as far as there may be
 * processes.  Returns for how long there is nothing to do.
 */
static long
StartDue(int starting, MemoryContext context)
{
	long		sleep = starting > 0 ? BUSY_PAUSE : LONGEST_SLEEP;
	int			processes = CountProcesses();
	int			due;

	while ((due = FindDue()) != 0 && starting < STARTING_AT_A_TIME &&
		   processes < coupon_max_workers)
	{
		Start(due, context);
		starting++;
		processes += !charges[due].waiting;
		sleep = Min(sleep, BUSY_PAUSE);
	}
	SlotSetCrowded(due != 0 && processes >= coupon_max_workers);
	for (int i = 1; i < SlotCount(); i++)
	{
		if (OidIsValid(charges[i].database) && charges[i].waiting)
			sleep = Min(sleep, Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
																   charges[i].retry_at),
								   processes < coupon_max_workers ? 0 : BUSY_PAUSE));
	}
	/* One that is due has to wait for others, who wake us; do not spin. */
	return Max(sleep, 100);
}

/* CREATE EXTENSION has committed, or somebody asks: do not wait there. */
static void
HeedInstalled(void)
{
	Oid			installed = SlotTakeInstalled();

	if (!OidIsValid(installed))
		return;
	if (installed == SLOT_ANYWHERE)
	{
		list_free(absent);
		absent = NIL;
	}
	else
		absent = list_delete_oid(absent, installed);
	for (int i = 1; i < SlotCount(); i++)
	{
		if (charges[i].database == installed || installed == SLOT_ANYWHERE)
			charges[i].retry_at = 0;
	}
}

static long
Turn(MemoryContext context)
{
	List	   *wanted;
	int			starting;
	long		sleep;

	HeedInstalled();
	pgstat_report_activity(STATE_RUNNING, "looking for databases");
	wanted = ListDatabases(context);
	for (int i = list_length(absent) - 1; i >= 0; i--)
	{
		if (!list_member_oid(wanted, list_nth_oid(absent, i)))
			absent = list_delete_nth_cell(absent, i);
	}
	starting = LookAfter(wanted);
	OpenSlots(wanted);
	sleep = StartDue(starting, context);
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
	SlotCountTurn(SLOT_LAUNCHER);
	return sleep;
}

/*
 * CouponLauncherMain is where the process starts.
 */
void
CouponLauncherMain(Datum arg)
{
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	SlotSetState(SLOT_LAUNCHER, WORKER_STARTING);
	SlotAttach(SLOT_LAUNCHER, InvalidOid);
	before_shmem_exit(AtExit, (Datum) 0);
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("coupon launcher");
	SlotSetState(SLOT_LAUNCHER, WORKER_RUNNING);

	charges = MemoryContextAllocZero(TopMemoryContext,
									 SlotCount() * sizeof(Charge));
	context = AllocSetContextCreate(TopMemoryContext, "coupon launcher turn",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	for (;;)
	{
		long		sleep = Turn(context);

		MemoryContextReset(context);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 sleep, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}
