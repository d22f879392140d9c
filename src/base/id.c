/*
 * id.c
 *		Time-ordered 63-bit ids, and the horizon below which no id is in flight.
 *
 *		 63 | 62 ............ 22 | 21 ..... 12 | 11 ...... 0
 *		  0 | ms since 2024-01-01|    node     |  sequence
 *
 * (Twitter's Snowflake layout.)  The shared generator holds the last "tick",
 * that is milliseconds << 12 | sequence; the node is put in between when an id
 * is made.  The next tick is the larger of the clock's and last + 1: the
 * sequence overflows into the next millisecond, and a clock that is set back
 * slows nothing down and repeats nothing.
 *
 * Shared memory dies with the server, and the clock may be wrong when it comes
 * back.  So before the first id of a database after a start, the generator is
 * raised above the durable watermark and the newest ids that were made here, up to
 * 2^62, which the clock reaches in 2058.  Coupons of another system keep their
 * ids (holder NULL or imported), and so do templates, whose ids their author may
 * choose; none of them ever moves it.  A claim that meets one takes the next.
 *
 * The horizon.  Folding counts the coupons up to some id once and for all, so
 * it must know that no id at or below it can still commit.  Neither clock nor
 * pg_stat_activity can tell.  A backend publishes the generator's value in its
 * own slot before it takes its first id in a transaction, with a full barrier
 * in between, and clears the slot when the transaction is over.  IdHorizon
 * reads the generator first and the slots after: if it sees an id as given
 * out, it sees the slot that was published before it, or the transaction is
 * over and visible to a snapshot taken later.
 *
 * Fields: tick and slots are atomics, written without lock; the list of raised
 * tables under AddinShmemInitLock, which is taken once per backend.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "tcop/utility.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/guc.h"
#include "base/id.h"
#include "base/owner_query.h"
#include "base/subxact.h"

#define SEQUENCE_BITS 12
#define NODE_BITS 10
#define MAX_RAISED 128
#define ID_TOO_FAR (INT64CONST(1) << 62)

/* 2024-01-01 00:00 UTC in microseconds of PostgreSQL's epoch, 2000-01-01. */
#define EPOCH_USECS (INT64CONST(8766) * USECS_PER_DAY)

typedef union IdSlot
{
	pg_atomic_uint64 tick;		/* 0: this backend has no id in flight */
	char		pad[PG_CACHE_LINE_SIZE];
} IdSlot;

typedef struct IdShared
{
	pg_atomic_uint64 tick;
	int			nraised;
	struct
	{
		Oid			database;
		Oid			relation;
	}			raised[MAX_RAISED];
	IdSlot		slots[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them */
} IdShared;

PG_FUNCTION_INFO_V1(coupon_next_id);

static IdShared *shared = NULL;
static bool published = false;
static Oid	raised_for = InvalidOid;	/* coupon_template that we know raised */

static OwnerQuery newest_id = {
	"SELECT GREATEST((SELECT pg_catalog.max(id) FROM %1$s.user_coupon"
	"  WHERE id OPERATOR(pg_catalog.<) $1 AND holder OPERATOR(pg_catalog.<>) 3),"
	" (SELECT pg_catalog.max(id) FROM %1$s.coupon_task"
	"  WHERE id OPERATOR(pg_catalog.<) $1),"
	" (SELECT pg_catalog.max(id) FROM %1$s.coupon_role"
	"  WHERE id OPERATOR(pg_catalog.<) $1),"
	" (SELECT pg_catalog.max(id) FROM %1$s.coupon_notification"
	"  WHERE id OPERATOR(pg_catalog.<) $1),"
	" (SELECT pg_catalog.max(id) FROM %1$s.coupon_notification_history"
	"  WHERE id OPERATOR(pg_catalog.<) $1),"
	" (SELECT pg_catalog.max(upto) FROM %1$s.coupon_watermark))",
	1, {INT8OID}
};

/*
 * IdShmemSize returns the bytes that the generator and its slots need.
 */
Size
IdShmemSize(void)
{
	return add_size(offsetof(IdShared, slots),
					mul_size(MaxBackends, sizeof(IdSlot)));
}

/*
 * IdShmemInit attaches to the generator; AddinShmemInitLock is held.
 */
void
IdShmemInit(void)
{
	bool		found;

	shared = ShmemInitStruct("coupon ids", IdShmemSize(), &found);
	if (!found)
	{
		memset(shared, 0, offsetof(IdShared, slots));
		pg_atomic_init_u64(&shared->tick, 0);
		for (int i = 0; i < MaxBackends; i++)
			pg_atomic_init_u64(&shared->slots[i].tick, 0);
	}
}

static void
AtTransactionEnd(XactEvent event, void *arg)
{
	if (published && (XactIsCommit(event) || XactIsAbort(event) ||
					  event == XACT_EVENT_PREPARE))
	{
		pg_atomic_write_u64(&shared->slots[CompatMyProcNumber()].tick, 0);
		published = false;
	}
}

/*
 * IdInit registers the callback that clears this backend's slot.
 */
void
IdInit(void)
{
	RegisterXactCallback(AtTransactionEnd, NULL);
}

static uint64
ClockTick(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (now < EPOCH_USECS)
		return 0;
	return ((uint64) (now - EPOCH_USECS) / 1000) << SEQUENCE_BITS;
}

static int64
IdOfTick(uint64 tick)
{
	uint64		ms = tick >> SEQUENCE_BITS;
	uint64		sequence = tick & ((UINT64CONST(1) << SEQUENCE_BITS) - 1);

	return (int64) ((ms << (NODE_BITS + SEQUENCE_BITS)) |
					((uint64) coupon_node_id << SEQUENCE_BITS) | sequence);
}

/* The generator will only give ids above this one, whichever node made it. */
static void
RaiseAbove(int64 id)
{
	uint64		tick = (uint64) id >> (NODE_BITS + SEQUENCE_BITS);
	uint64		old = pg_atomic_read_u64(&shared->tick);

	tick = (tick + 1) << SEQUENCE_BITS;
	while (old < tick &&
		   !pg_atomic_compare_exchange_u64(&shared->tick, &old, tick))
		;
}

/*
 * IdNewest returns the newest id given out so far, by this server.
 */
int64
IdNewest(void)
{
	return shared == NULL ? 0 : IdOfTick(pg_atomic_read_u64(&shared->tick));
}

/*
 * IdRaiseAbove sees to it that all ids to come are above this one: of a watermark that a
 * restore brings, perhaps from a server whose clock is ahead.
 */
void
IdRaiseAbove(int64 id)
{
	if (shared != NULL)
		RaiseAbove(id);
}

/* Whether the tables of this database were looked at since the start. */
static bool
IsRaised(Oid relation, bool set)
{
	bool		found = false;

	LWLockAcquire(AddinShmemInitLock, set ? LW_EXCLUSIVE : LW_SHARED);
	for (int i = 0; i < shared->nraised && !found; i++)
		found = shared->raised[i].database == MyDatabaseId &&
			shared->raised[i].relation == relation;
	if (set && !found && shared->nraised < MAX_RAISED)
	{
		shared->raised[shared->nraised].database = MyDatabaseId;
		shared->raised[shared->nraised].relation = relation;
		shared->nraised++;
	}
	LWLockRelease(AddinShmemInitLock);
	return found;
}

/*
 * Raise the generator above what the tables hold.  More databases than the
 * list has places only means that each of their backends does this once.
 */
static void
RaiseAboveTables(Oid relation)
{
	if (!IsRaised(relation, false))
	{
		QueryScope	scope;
		bool		isnull = true;
		Datum		newest = (Datum) 0;
		Datum		limit = Int64GetDatum(ID_TOO_FAR);

		QueryBegin(&scope);
		if (QueryRunLatest(&newest_id, &limit, NULL) == 1)
			newest = QueryValue(0, 1, &isnull);
		if (!isnull)
			RaiseAbove(DatumGetInt64(newest));
		QueryEnd(&scope);
		(void) IsRaised(relation, true);
	}
	raised_for = relation;
}

/*
 * IdRequireUsable raises VC001 without shared memory and VC002 in recovery.
 */
void
IdRequireUsable(void)
{
	if (shared == NULL)
		GucRefuseNotPreloaded("ids cannot be made");
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_RECOVERY),
				 errmsg("ids cannot be made during recovery"),
				 errhint("Connect to the primary server.")));
}

/*
 * IdNext returns the next id.  Raises VC001 without shared memory, VC002 in
 * recovery, 25000 in a parallel query: what would store it cannot run there.
 */
int64
IdNext(void)
{
	Oid			relation;
	uint64		clock;
	uint64		old;
	uint64		new;

	IdRequireUsable();
	PreventCommandIfParallelMode("coupon_next_id()");
	relation = CatalogGet()->template_table;
	if (unlikely(raised_for != relation))
		RaiseAboveTables(relation);

	old = pg_atomic_read_u64(&shared->tick);
	if (!published)
	{
		pg_atomic_write_u64(&shared->slots[CompatMyProcNumber()].tick,
							Max(old, 1));
		published = true;
		pg_memory_barrier();
		old = pg_atomic_read_u64(&shared->tick);
	}
	clock = ClockTick();
	do
	{
		new = Max(old + 1, clock);
	} while (!pg_atomic_compare_exchange_u64(&shared->tick, &old, new));
	return IdOfTick(new);
}

/*
 * IdHorizon returns an id at or below which no open transaction can still
 * commit a row.  Take a snapshot only after it.
 */
int64
IdHorizon(void)
{
	uint64		horizon;

	IdRequireUsable();
	/* Or a database just restored would have its horizon below its rows. */
	RaiseAboveTables(CatalogGet()->template_table);

	horizon = pg_atomic_read_u64(&shared->tick);
	pg_memory_barrier();
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64		tick = pg_atomic_read_u64(&shared->slots[i].tick);

		if (tick != 0 && tick < horizon)
			horizon = tick;
	}
	return IdOfTick(horizon);
}

/*
 * IdSecondsAhead returns how far the generator is ahead of the clock: much
 * more than 0 means that the clock was set back.
 */
int64
IdSecondsAhead(void)
{
	uint64		tick;
	uint64		clock = ClockTick();

	if (shared == NULL)
		return 0;
	tick = pg_atomic_read_u64(&shared->tick);
	return tick <= clock ? 0 : (int64) ((tick - clock) >> SEQUENCE_BITS) / 1000;
}

/*
 * coupon_next_id() → bigint: the default of every id column.
 */
Datum
coupon_next_id(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(IdNext());
}

/*
 * IdTime returns the moment at which an id was made, to the millisecond.
 */
TimestampTz
IdTime(int64 id)
{
	return (id >> (SEQUENCE_BITS + NODE_BITS)) * 1000 + EPOCH_USECS;
}

/*
 * IdFirstAt returns the least id that can be made at a moment.
 */
int64
IdFirstAt(TimestampTz at)
{
	return Max((at - EPOCH_USECS) / 1000, 0) << (SEQUENCE_BITS + NODE_BITS);
}
