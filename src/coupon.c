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

#include "admin/drop_database.h"
#include "base/attached.h"
#include "base/caller.h"
#include "base/catalog.h"
#include "base/commit_wakeup.h"
#include "base/compat.h"
#include "base/guc.h"
#include "base/id.h"
#include "base/shop_role.h"
#include "base/throttle.h"
#include "base/worker_slots.h"
#include "bgworker/launcher.h"
#include "bgworker/yield_database.h"
#include "stock/cache.h"
#include "stock/xact_changes.h"
#include "store/limit_cache.h"
#include "store/user_filter.h"

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
	RequestAddinShmemSpace(UserFilterShmemSize());
	RequestAddinShmemSpace(LimitCacheShmemSize());
	RequestAddinShmemSpace(IdShmemSize());
	RequestAddinShmemSpace(ThrottleShmemSize());
	RequestAddinShmemSpace(SlotShmemSize());
	RequestNamedLWLockTranche("coupon", CacheLockCount());
	RequestNamedLWLockTranche("coupon workers", 1);
}

static void
InitSharedMemory(void)
{
	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	CacheShmemInit();
	UserFilterShmemInit();
	LimitCacheShmemInit();
	IdShmemInit();
	ThrottleShmemInit();
	SlotShmemInit();
	LWLockRelease(AddinShmemInitLock);
}

void
_PG_init(void)
{
	GucInit();
	CatalogInit();
	CallerInit();
	AttachedInit();
	RoleInit();
	WakeInit();
	ChangesInit();
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
