/*
 * throttle.c
 *		Long jobs give way to claims.
 *
 * A runner of a distribution takes a core for itself; on a small machine claims
 * are left with the rest.  So between two portions of its work, with nothing
 * locked, it looks how many claims were served and how much all such jobs have
 * worked since it looked last, and pauses until the jobs together have had no
 * more than coupon.task_share of the server's cores; but no longer than the
 * claims are worth.  Without claims it does not pause.  The pauses count in
 * the next look, so that two jobs do not fill each other's.
 *
 * Each backend counts in a cache line of its own, which it alone writes; who
 * wants to know adds them up.  Locking: none.
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/guc.h"
#include "base/throttle.h"

#define WORTH_OF_A_CLAIM 200	/* us of a pause */
#define LONGEST_PAUSE (INT64CONST(1000) * 1000) /* us */

typedef union ThrottleSlot
{
	struct
	{
		pg_atomic_uint64 claims;	/* users who asked, refused ones too */
		pg_atomic_uint64 work;	/* us that long jobs have taken */
	}			count;
	char		pad[PG_CACHE_LINE_SIZE];
} ThrottleSlot;

static ThrottleSlot *slots = NULL;	/* MaxBackends of them */

/*
 * ThrottleShmemSize returns the bytes that the counters need.
 */
Size
ThrottleShmemSize(void)
{
	return mul_size(MaxBackends, sizeof(ThrottleSlot));
}

/*
 * ThrottleShmemInit attaches to the counters; AddinShmemInitLock is held.
 */
void
ThrottleShmemInit(void)
{
	bool		found;

	slots = ShmemInitStruct("coupon pace", ThrottleShmemSize(), &found);
	for (int i = 0; !found && i < MaxBackends; i++)
	{
		pg_atomic_init_u64(&slots[i].count.claims, 0);
		pg_atomic_init_u64(&slots[i].count.work, 0);
	}
}

static void
Add(pg_atomic_uint64 *mine, uint64 n)
{
	pg_atomic_write_u64(mine, pg_atomic_read_u64(mine) + n);
}

/*
 * ThrottleCountClaims counts n users who ask for a coupon.  There is shared memory.
 */
void
ThrottleCountClaims(int n)
{
	Add(&slots[CompatMyProcNumber()].count.claims, n);
}

/* Claims of a job itself, for lines that were put off, are its work. */
static void
Count(uint64 *claims, uint64 *work)
{
	*claims = *work = 0;
	for (int i = 0; i < MaxBackends; i++)
	{
		if (i != CompatMyProcNumber())
			*claims += pg_atomic_read_u64(&slots[i].count.claims);
		*work += pg_atomic_read_u64(&slots[i].count.work);
	}
}

/*
 * ThrottleBegin is called before each portion of a job.
 */
void
ThrottleBegin(Throttle *pace)
{
	if (slots == NULL)
		return;
	if (!pace->counted)
		Count(&pace->claims, &pace->work);
	pace->counted = false;
	pace->begin = GetCurrentTimestamp();
}

/* Microseconds of work of which a core does one each microsecond, at its share. */
static int64
TimeFor(int64 work)
{
	static long cores = 0;

	if (cores == 0)
		cores = Max(sysconf(_SC_NPROCESSORS_ONLN), 1);
	return work * 100 / (cores * coupon_task_share);
}

/*
 * ThrottleSleep pauses for so many microseconds.  The latch may be waited for by
 * others: what it was set for is still to be done then.
 */
void
ThrottleSleep(int64 pause)
{
	TimestampTz end = GetCurrentTimestamp() + pause;
	bool		was_set = false;
	long		left;

	while ((left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end)) > 0)
	{
		if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					  left, PG_WAIT_EXTENSION) & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			was_set = true;
		}
		CHECK_FOR_INTERRUPTS();
	}
	if (was_set)
		SetLatch(MyLatch);
}

/*
 * ThrottleEnd is called after each portion, and returns for how many microseconds
 * to pause then, with nothing locked: 0 unless claims are being served.
 */
int64
ThrottleEnd(Throttle *pace)
{
	Throttle		before = *pace;
	TimestampTz now = GetCurrentTimestamp();
	int64		took = Max(now - pace->begin, 0);
	int64		pause;

	if (slots == NULL)
		return 0;
	Add(&slots[CompatMyProcNumber()].count.work, took);
	Count(&pace->claims, &pace->work);
	pace->counted = true;
	if (coupon_task_share == 100)
		return 0;
	pause = TimeFor(pace->work - before.work) - took;
	pause = Min(pause, (int64) (pace->claims - before.claims) * WORTH_OF_A_CLAIM);
	pause = Min(pause, LONGEST_PAUSE);
	return pause >= 1000 ? pause : 0;
}
