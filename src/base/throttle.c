/*
 * throttle.c
 *		Long jobs give way to claims.
 *
 * A runner of a distribution takes a core for itself; on a small machine claims
 * are left with the rest.  So between two portions of its work, with nothing
 * locked, it asks whether claims are being served, and if so pauses until all
 * such jobs together have had no more than coupon.task_share of the server's
 * cores.  This is vacuum's cost delay, with one account for all jobs: each
 * portion moves a common clock on by the time that it would have taken at that
 * share, and a job ahead of it waits (the generic cell rate algorithm of ATM
 * Forum's Traffic Management 4.0).  Jobs thus pause for each other's work too.
 *
 * Locking: none; two atomics, each in a cache line of its own.
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/guc.h"
#include "base/throttle.h"

#define SERVED_LATELY (INT64CONST(100) * 1000)	/* us: claims are being served */
#define NOTE_INTERVAL 1000		/* us: so seldom do claims write the line they share */
#define LONGEST_PAUSE (INT64CONST(1000) * 1000) /* us */

typedef struct ThrottleShared
{
	pg_atomic_uint64 last_claim;	/* TimestampTz, to NOTE_INTERVAL */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint64)];
	pg_atomic_uint64 paid_until;	/* TimestampTz: the clock of all jobs */
} ThrottleShared;

static ThrottleShared *shared = NULL;

/*
 * ThrottleShmemSize returns the bytes that the clocks need.
 */
Size
ThrottleShmemSize(void)
{
	return sizeof(ThrottleShared);
}

/*
 * ThrottleShmemInit attaches to the clocks; AddinShmemInitLock is held.
 */
void
ThrottleShmemInit(void)
{
	bool		found;

	shared = ShmemInitStruct("coupon throttle", ThrottleShmemSize(), &found);
	if (!found)
	{
		pg_atomic_init_u64(&shared->last_claim, 0);
		pg_atomic_init_u64(&shared->paid_until, 0);
	}
}

/*
 * ThrottleNoteClaim says that somebody asks for a coupon now.  There is shared
 * memory.
 */
void
ThrottleNoteClaim(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz last = pg_atomic_read_u64(&shared->last_claim);

	if (now >= last + NOTE_INTERVAL || now < last)
		pg_atomic_write_u64(&shared->last_claim, now);
}

/* Microseconds that so much work would take at the share of the cores. */
static int64
TimeFor(int64 work)
{
	static long cores = 0;

	if (cores == 0)
		cores = Max(sysconf(_SC_NPROCESSORS_ONLN), 1);
	return work * 100 / (cores * coupon_task_share);
}

/*
 * ThrottleCharge is called after each portion of a job, with when it began, and
 * returns for how many microseconds to pause, with nothing locked: 0 unless
 * claims are being served.
 */
int64
ThrottleCharge(TimestampTz begin)
{
	TimestampTz last_claim;
	TimestampTz now;
	TimestampTz until;
	uint64		paid;

	if (shared == NULL || coupon_task_share == 100)
		return 0;
	last_claim = pg_atomic_read_u64(&shared->last_claim);
	now = GetCurrentTimestamp();
	if (last_claim < Min(begin, now - SERVED_LATELY) ||
		last_claim > now)		/* the clock was set back */
		return 0;
	paid = pg_atomic_read_u64(&shared->paid_until);
	do
	{
		/* time that no job has used is not saved up */
		until = Max((TimestampTz) paid, begin) + TimeFor(now - begin);
		until = Min(until, now + LONGEST_PAUSE);
	} while (!pg_atomic_compare_exchange_u64(&shared->paid_until, &paid, until));
	return until - now >= 1000 ? until - now : 0;
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
