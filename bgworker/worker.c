/*
 * worker.c
 *		The worker of one database, and its mailer: the process and its loop;
 *		what it does is in job.c.
 *
 * They are the same but for their jobs: mail has a process of its own since
 * libcurl waits for the server's answer to each.
 *
 * It stays connected, since starting a process costs more than keeping one,
 * and sleeps on its latch: without snapshot, transaction or lock, so that it
 * holds up neither vacuum nor DDL.  It leaves when it is asked to (yield_database.c),
 * when the extension is gone, and when coupon.databases no longer names its
 * database.  Whatever else ends it, the launcher starts another one.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/guc.h"
#include "base/worker_slots.h"
#include "bgworker/base/process.h"
#include "bgworker/delivery/deliver.h"
#include "bgworker/job.h"
#include "bgworker/worker.h"

/* A worker with nothing to do looks whether it should still be there. */
#define LONGEST_SLEEP 60000		/* ms */
#define TURN_LENGTH 10000		/* ms, while other databases wait for a process */
#define LOOK_PAUSE 1000			/* ms, between two looks while answers come in */

/* What the launcher passes on. */
typedef struct WorkerExtra
{
	Oid			database;
	WorkerKind	kind;
} WorkerExtra;

StaticAssertDecl(sizeof(WorkerExtra) <= BGW_EXTRALEN, "the launcher's words must fit");

static const char *const type_names[WORKER_KINDS] = {
	[KIND_WORKER] = "coupon worker",
	[KIND_MAILER] = "coupon mailer",
};

static int	my_number;			/* of my slot */
static WorkerKind my_kind;
static char *my_database_name;
static TimestampTz looked_at = 0;
static TimestampTz started_at;

/*
 * WorkerRegister asks the postmaster for a worker or mailer.  False: there is
 * no place left among max_worker_processes.
 */
bool
WorkerRegister(int number, Oid database, WorkerKind kind, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;
	WorkerExtra extra = {database, kind};

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;	/* the launcher does that */
	strlcpy(worker.bgw_library_name, "coupon", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "CouponWorkerMain",
			sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "%s for database %u", type_names[kind], database);
	strlcpy(worker.bgw_type, type_names[kind], BGW_MAXLEN);
	worker.bgw_main_arg = Int32GetDatum(number);
	memcpy(worker.bgw_extra, &extra, sizeof(extra));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

static void
AtExit(int code, Datum arg)
{
	SlotDetach(my_number);
}

static void
Leave(WorkerState why)
{
	SlotSetState(my_number, why);
	proc_exit(0);
}

/* Settings of the database or of the cluster that are not meant for us. */
static void
SetOwnSettings(void)
{
	static const char *const settings[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"lock_timeout", "10s"},	/* or one job could stop the others */
		{"deadlock_timeout", "10ms"},	/* we give way, not those whose work it is */
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* Whether this database has the extension now; learns its name as well. */
static bool
IsInstalled(MemoryContext context)
{
	bool		installed;

	pgstat_report_activity(STATE_RUNNING, "looking for the extension");
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	installed = OidIsValid(get_extension_oid("coupon", true));
	if (my_database_name == NULL)
		my_database_name = MemoryContextStrdup(TopMemoryContext,
											   get_database_name(MyDatabaseId));
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return installed;
}

static void
LeaveUnlessNeeded(MemoryContext context)
{
	if (!IsInstalled(context))
		Leave(WORKER_ABSENT);
	if (!GucNamesDatabase(my_database_name) ||
		(my_kind == KIND_MAILER && !SlotMailerIsWanted(MyDatabaseId)))
		Leave(WORKER_UNWANTED);
}

/*
 * Where more databases have work than there may be processes, each has its turn: this
 * one begins nothing new after a while, and leaves when what it has begun is over.
 */
static void
MakeRoom(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		leaving;

	started_at = Min(started_at, now);	/* the clock may have been set back */
	leaving = SlotIsCrowded() && TimestampDifferenceExceeds(started_at, now, TURN_LENGTH);
	ProcessSetLeaving(leaving);
	if (leaving && (DeliverIsIdle() ||
					TimestampDifferenceExceeds(started_at, now, 2 * TURN_LENGTH)))
		Leave(WORKER_LEFT);
}

/* One turn; returns for how long to sleep. */
static long
Turn(MemoryContext context, uint32 ready)
{
	uint32		reasons = SlotTakeReasons(my_number);
	TimestampTz now = GetCurrentTimestamp();
	long		sleep;

	/* Answers come in by the ten thousand a second. */
	if (reasons != 0 || ready == 0 || TimestampDifferenceExceeds(looked_at, now, LOOK_PAUSE))
	{
		LeaveUnlessNeeded(context);
		looked_at = now;
	}
	sleep = JobRunDue(reasons | ready);
	pgstat_report_stat(sleep == JOB_SLEEP || sleep > LOOK_PAUSE);
	pgstat_report_activity(STATE_IDLE, NULL);
	SlotCountTurn(my_number);
	return sleep == JOB_SLEEP ? LONGEST_SLEEP : Min(sleep, LONGEST_SLEEP);
}

/* Sleep; returns JOB_SOCKET if that is readable. */
static uint32
Sleep(long ms)
{
	static WaitEventSet *set = NULL;
	static int	socket = PGINVALID_SOCKET;
	WaitEvent	events[3];
	int			n;
	uint32		ready = 0;

	/* There is none before the first transfer, and then it stays. */
	if (set == NULL || socket != JobSocket())
	{
		if (set != NULL)
			FreeWaitEventSet(set);
		socket = JobSocket();
		set = CompatCreateWaitEventSet(TopMemoryContext, lengthof(events));
		AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
		if (socket != PGINVALID_SOCKET)
			AddWaitEventToSet(set, WL_SOCKET_READABLE, socket, NULL, NULL);
	}
	n = WaitEventSetWait(set, ms, events, lengthof(events), PG_WAIT_EXTENSION);
	for (int i = 0; i < n; i++)
	{
		if (events[i].events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (events[i].events & WL_SOCKET_READABLE)
			ready = JOB_SOCKET;
	}
	return ready;
}

static void
Connect(void)
{
	WorkerExtra extra;

	memcpy(&extra, MyBgworkerEntry->bgw_extra, sizeof(extra));
	my_kind = extra.kind;
	/* The launcher died and another one was quicker, or we came too late. */
	if (!SlotAttach(my_number, extra.database))
		proc_exit(0);
	before_shmem_exit(AtExit, (Datum) 0);

	BackgroundWorkerInitializeConnectionByOid(extra.database, InvalidOid, 0);
	SetOwnSettings();
	pgstat_report_appname(type_names[my_kind]);
}

/*
 * CouponWorkerMain is where the process starts.
 */
void
CouponWorkerMain(Datum arg)
{
	MemoryContext context;
	uint32		ready = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	my_number = DatumGetInt32(arg);
	Connect();

	context = AllocSetContextCreate(TopMemoryContext, "coupon worker turn",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LeaveUnlessNeeded(context);
	SlotSetState(my_number, WORKER_RUNNING);
	started_at = GetCurrentTimestamp();
	SlotWakeLauncher();				/* it starts the next one */
	JobInit(my_number, my_kind);

	for (;;)
	{
		long		sleep = Turn(context, ready);

		MemoryContextReset(context);
		MakeRoom();
		ready = Sleep(sleep);
		if (SlotIsAsked(my_number))
			Leave(WORKER_LEFT);
		QueryCancelPending = false; /* it came too late for what it meant */
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}
