/*
 * coupon.c
 *		Front door of the coupon extension: calls each room's Init, and the two
 *		shared memory hooks.  src/README.md is the map.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "bgworker/launcher.h"
#include "bgworker/leave.h"
#include "bgworker/status.h"
#include "cache.h"
#include "caller.h"
#include "catalog.h"
#include "claimants.h"
#include "compat.h"
#include "dropped.h"
#include "guc.h"
#include "holdings.h"
#include "id.h"
#include "journal.h"
#include "pace.h"
#include "role.h"
#include "wake.h"

COMPAT_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static void
RequestSharedMemory(void)
{
	if (previous_request_hook)
		previous_request_hook();

	RequestAddinShmemSpace(CacheShmemSize());
	RequestAddinShmemSpace(ClaimantsShmemSize());
	RequestAddinShmemSpace(HoldingsShmemSize());
	RequestAddinShmemSpace(IdShmemSize());
	RequestAddinShmemSpace(PaceShmemSize());
	RequestAddinShmemSpace(WakeShmemSize());
	RequestAddinShmemSpace(StatusShmemSize());
	RequestNamedLWLockTranche("coupon", CacheLockCount());
	RequestNamedLWLockTranche("coupon wake", 1);
	RequestNamedLWLockTranche("coupon workers", 1);
}

static void
InitSharedMemory(void)
{
	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	CacheShmemInit();
	ClaimantsShmemInit();
	HoldingsShmemInit();
	IdShmemInit();
	PaceShmemInit();
	WakeShmemInit();
	StatusShmemInit();
	LWLockRelease(AddinShmemInitLock);
}

void
_PG_init(void)
{
	GucInit();
	CatalogInit();
	CallerInit();
	RoleInit();
	WakeInit();
	JournalInit();
	IdInit();

	if (!process_shared_preload_libraries_in_progress)
		return;
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = RequestSharedMemory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = InitSharedMemory;
	DroppedInit();
	LeaveInit();
	LauncherInit();
}
