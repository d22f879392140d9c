/*
 * worker.c
 *		The worker of one database: the process and its loop; what it does is
 *		in duty.c.
 *
 * It stays connected, since starting a process costs more than keeping one,
 * and sleeps on its latch: without snapshot, transaction or lock, so that it
 * holds up neither vacuum nor DDL.  It leaves when it is asked to (leave.c),
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

#include "duty.h"
#include "guc.h"
#include "status.h"
#include "wake.h"
#include "worker.h"

/* A worker with nothing to do looks whether it should still be there. */
#define LONGEST_SLEEP 60000		/* ms */

static int	my_number;			/* of my slot */
static char *my_database_name;

/*
 * WorkerRegister asks the postmaster for a worker.  False: there is no place
 * left among max_worker_processes.
 */
bool
WorkerRegister(int number, Oid database, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;	/* the launcher does that */
	strlcpy(worker.bgw_library_name, "coupon", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "CouponWorkerMain",
			sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "coupon worker for database %u", database);
	strlcpy(worker.bgw_type, "coupon worker", BGW_MAXLEN);
	worker.bgw_main_arg = Int32GetDatum(number);
	memcpy(worker.bgw_extra, &database, sizeof(database));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

static void
AtExit(int code, Datum arg)
{
	WakeDetach(my_number);
}

static void
Leave(WorkerState why)
{
	StatusSetState(my_number, why);
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
		{"lock_timeout", "10s"},	/* or one duty could stop the others */
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
	if (!GucNamesDatabase(my_database_name))
		Leave(WORKER_UNWANTED);
}

/* One turn; returns for how long to sleep. */
static long
Turn(MemoryContext context)
{
	uint32		reasons = WakeTakeReasons(my_number);
	long		sleep;

	LeaveUnlessNeeded(context);
	sleep = DutyRunDue(my_number, reasons);
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
	StatusCountTurn(my_number);
	return sleep == DUTY_SLEEP ? LONGEST_SLEEP : Min(sleep, LONGEST_SLEEP);
}

static void
Connect(void)
{
	Oid			database;

	memcpy(&database, MyBgworkerEntry->bgw_extra, sizeof(database));
	/* The launcher died and another one was quicker, or we came too late. */
	if (!WakeAttach(my_number, database))
		proc_exit(0);
	before_shmem_exit(AtExit, (Datum) 0);

	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	SetOwnSettings();
	pgstat_report_appname("coupon worker");
}

/*
 * CouponWorkerMain is where the process starts.
 */
void
CouponWorkerMain(Datum arg)
{
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	my_number = DatumGetInt32(arg);
	Connect();

	context = AllocSetContextCreate(TopMemoryContext, "coupon worker turn",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LeaveUnlessNeeded(context);
	StatusSetState(my_number, WORKER_RUNNING);
	WakeLauncher();				/* it starts the next one */
	DutyInit();

	for (;;)
	{
		long		sleep = Turn(context);

		MemoryContextReset(context);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 sleep, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (WakeIsAsked(my_number))
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
