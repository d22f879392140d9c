/*
 * stock.c
 *		Stock escrow: reserve units of a template without touching its row.
 *
 * The method is O'Neil's escrow (P. E. O'Neil, "The Escrow Transactional
 * Method", ACM TODS 11(4), 1986): a transaction that wants a unit does not
 * lock the quantity, it reserves its part of it.  Here the reservation is a
 * compare-and-swap on the shared counter of units issued; it becomes final at
 * commit and is given back at abort, by xact_changes.c.
 *
 * This room knows keys and numbers, no SQL.  What is in the counter came from
 * the tables and can be counted again from them.
 *
 * A gate keeps new reservations of one template out while somebody waits for
 * the open ones to end.  It is closed with the template's loader lock (a
 * heavyweight lock, see template.c) held, so that those kept out wait for that
 * lock: the deadlock detector sees them, and an error of the owner frees them.
 * A transaction with a reservation of its own passes through the gate, since
 * it is the one that is waited for.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/errors.h"
#include "base/guc.h"
#include "base/shop_role.h"
#include "stock/stock.h"
#include "stock/xact_changes.h"

/*
 * Take up to "want" of what "limit" leaves, all or nothing unless partial.
 * pending rises first and falls last, which keeps issued - pending <= committed
 * coupons at every instant; coupon_verify relies on it.
 */
static int64
TakeUnits(CacheEntry *entry, int64 limit, int64 want, bool partial)
{
	uint64		old = pg_atomic_read_u64(&entry->issued);
	int64		got;

	/* A sold-out template costs one read, and no write to a shared line. */
	if (limit - (int64) old < (partial ? 1 : want))
		return 0;

	pg_atomic_fetch_add_u64(&entry->pending, want);
	do
	{
		got = Min(want, limit - (int64) old);
		if (got < (partial ? 1 : want))
		{
			got = 0;
			break;
		}
	} while (!pg_atomic_compare_exchange_u64(&entry->issued, &old, old + got));

	if (got < want)
	{
		pg_atomic_fetch_sub_u64(&entry->pending, want - got);
		if (entry->gated)
			ConditionVariableBroadcast(&entry->drained);
	}
	return got;
}

/*
 * A limit as this transaction sees it leaves out what it has lowered, which
 * the counter of units issued contains until commit.
 */
static int64
AddLowered(int64 limit, CacheEntry *entry)
{
	return limit + ChangesLowered(entry);
}

/* Runs "CacheFind" under the shared lock for an entry that cannot leave. */
static CacheEntry *
FindPinned(const CacheKey *key)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(key);
	LWLockRelease(lock);
	return entry;
}

/*
 * Before units of one more entry are taken: raises VC004 where this transaction has pinned
 * its share of the cache, and half of all places are pinned, for a role that is bound to a
 * shop a quarter; so that nobody's open transactions stop the claims of others.  What two
 * such transactions pin at the same moment is not seen.
 */
static void
RefuseToCrowd(const CacheKey *key)
{
	CacheEntry *entry;

	if (likely(ChangesHeld() < CacheShare()))
		return;
	entry = FindPinned(key);
	if ((entry != NULL && ChangesUnits(entry) > 0) || !StockIsCrowded())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_CACHE_FULL),
			 errmsg("this transaction has claims of %d templates in flight, and there is little room for more",
					ChangesHeld()),
			 errhint("Commit first, or raise \"coupon.max_templates\".")));
}

/*
 * StockIsCrowded tells whether a claim of another template would be refused with VC004.
 */
bool
StockIsCrowded(void)
{
	return ChangesHeld() >= CacheShare() && CacheIsCrowded(RoleIsBound(ROLE_ANY) ? 4 : 2);
}

/*
 * generation 0: any.  limit < 0: the quota of the entry, which can be used
 * only while it is fresh.
 */
static StockResult
Reserve(ChangeKind kind, const CacheKey *key, uint64 generation, int64 limit,
		int64 want, bool partial, bool through_gate, int64 *got)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;
	StockResult result = STOCK_OK;

	*got = 0;
	ChangesMakeRoom();
	RefuseToCrowd(key);

	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(key);
	if (entry == NULL || entry->state != CACHE_READY ||
		(generation != 0 && entry->generation != generation) ||
		(limit < 0 && entry->stale))
		result = STOCK_CHANGED;
	else if (entry->gated && !through_gate && ChangesUnits(entry) == 0)
		result = STOCK_CLOSED;	/* who has units is waited for, and waits for nobody */
	else if (entry->recount)
		result = STOCK_RECOUNT;
	else
	{
		limit = limit < 0 ? entry->quota : AddLowered(limit, entry);
		*got = TakeUnits(entry, limit, want, partial);
		if (*got > 0)
			ChangesAddUnits(kind, entry, *got);
		else
			result = STOCK_EMPTY;
	}
	LWLockRelease(lock);
	return result;
}

/*
 * StockShut keeps the stock of an entry from all others until this transaction ends:
 * whoever wants some has to count the coupons first, and cannot while a unit is
 * pending.  So nobody takes from a number that is about to be wrong, not even in the
 * moment between the commit and its notice here.
 */
void
StockShut(const CacheKey *key)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	ChangesMakeRoom();
	RefuseToCrowd(key);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	if (entry != NULL && entry->state == CACHE_READY)
	{
		entry->recount = true;
		entry->generation = CacheNextGeneration();
		pg_atomic_fetch_add_u64(&entry->pending, 1);
		pg_atomic_fetch_add_u64(&entry->issued, 1);
		ChangesAddUnits(CHANGE_SHUT, entry, 1);
	}
	else if (entry != NULL)
		entry->generation = CacheNextGeneration();	/* what is being loaded is old */
	LWLockRelease(lock);
}

/*
 * StockReserve takes units of the entry's quota for this transaction, if the
 * entry still has the generation that the caller has looked at.
 */
StockResult
StockReserve(const CacheKey *key, uint64 generation, int64 want, bool partial,
			 int64 *got)
{
	return Reserve(CHANGE_RESERVED, key, generation, -1, want, partial, false, got);
}

/*
 * StockReserveUpTo does so against a limit of the caller's: that of a template
 * which its own transaction has changed.
 */
StockResult
StockReserveUpTo(const CacheKey *key, int64 limit, int64 want, bool partial,
				 int64 *got)
{
	return Reserve(CHANGE_RESERVED, key, 0, limit, want, partial, false, got);
}

/*
 * StockTakeBack gives back units reserved in this subtransaction and not used.
 */
void
StockTakeBack(const CacheKey *key, int64 n)
{
	CacheEntry *entry = FindPinned(key);

	if (entry == NULL)
		elog(ERROR, "reserved stock of template %lld has left the cache",
			 (long long) key->template_id);
	ChangesTakeBack(entry, n);
}

/*
 * What was lowered and raised again stays in the counters to the end of the
 * transaction.  They hold twice what an unlimited total has, beside what is issued
 * (see CACHE_UNLIMITED), and would overflow some time later.
 */
static void
RefuseTooMuchLowering(const CacheKey *key, int64 n)
{
	CacheEntry *entry = FindPinned(key);

	if (entry != NULL &&
		n > 2 * CACHE_UNLIMITED - (int64) pg_atomic_read_u64(&entry->pending))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_TRANSACTION),
				 errmsg("the total of template %lld was lowered too often in one transaction",
						(long long) key->template_id),
				 errhint("Commit first.")));
}

/*
 * StockLower reserves n units that leave the total at commit; limit is the
 * total as this transaction sees it before.  Where open claims stand in the
 * way it closes the gate and waits for them, to the deadline.
 *
 * The caller holds the loader lock.  STOCK_EMPTY: so many have been issued.
 * STOCK_RECOUNT, STOCK_CHANGED: as for a claim.
 */
StockResult
StockLower(const CacheKey *key, int64 limit, int64 n, TimestampTz deadline)
{
	int64		got;
	StockResult result;

	RefuseTooMuchLowering(key, n);
	result = Reserve(CHANGE_LOWERED, key, 0, limit, n, false, true, &got);
	if (result != STOCK_EMPTY)
		return result;
	if (!StockCloseGate(key, deadline))
		return STOCK_CHANGED;
	result = Reserve(CHANGE_LOWERED, key, 0, limit, n, false, true, &got);
	StockOpenGate(key);
	return result;
}

/*
 * StockGateDeadline returns until when who begins to wait now may wait for open claims.
 * It is taken before the loader lock: those who queue for that behind one open claim
 * give up together, not one after the other.
 */
TimestampTz
StockGateDeadline(void)
{
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), coupon_gate_timeout);
}

/* Wait until nobody else has units in flight; raises VC008 at the deadline. */
static void
WaitUntilDrained(CacheEntry *entry, TimestampTz deadline)
{
	int64		own = ChangesUnits(entry);

	ConditionVariablePrepareToSleep(&entry->drained);
	while ((int64) pg_atomic_read_u64(&entry->pending) > own)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
														   deadline);

		if (left <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_GATE_TIMEOUT),
					 errmsg("open claims of template %lld did not end in %d ms",
							(long long) entry->key.template_id,
							coupon_gate_timeout),
					 errhint("Look for idle transactions in pg_stat_activity, or raise \"coupon.gate_timeout\".")));
		ConditionVariableTimedSleep(&entry->drained, left, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

/*
 * StockWaitForOthers waits until nobody else has units of an entry that this
 * transaction has shut; raises VC008 at the deadline.
 */
void
StockWaitForOthers(const CacheKey *key, TimestampTz deadline)
{
	CacheEntry *entry = FindPinned(key);

	if (entry != NULL && ChangesUnits(entry) > 0)
		WaitUntilDrained(entry, deadline);
}

/*
 * StockCloseGate keeps new reservations out and waits until no other
 * transaction has any; raises VC008 at the deadline.  The caller holds the loader lock,
 * and calls StockOpenGate soon; an error opens the gate too.  Returns false where there
 * is no such entry.
 */
bool
StockCloseGate(const CacheKey *key, TimestampTz deadline)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	if (entry != NULL)
	{
		entry->gated = true;
		ChangesSetGate(entry);
	}
	LWLockRelease(lock);
	if (entry == NULL)
		return false;

	WaitUntilDrained(entry, deadline);
	return true;
}

/*
 * StockOpenGate lets reservations in again.
 */
void
StockOpenGate(const CacheKey *key)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	if (entry != NULL)
		entry->gated = false;
	ChangesSetGate(NULL);
	LWLockRelease(lock);
}

/*
 * StockIsGated tells whether others keep new reservations of an entry out.
 */
bool
StockIsGated(const CacheKey *key)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;
	bool		gated;

	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(key);
	gated = entry != NULL && entry->gated && ChangesUnits(entry) == 0;
	LWLockRelease(lock);
	return gated;
}

/*
 * StockRead returns the numbers of a loaded entry, false where it is not
 * loaded.  returned is read first, then issued, then pending: see
 * coupon_verify.
 */
bool
StockRead(const CacheKey *key, StockNumbers *numbers)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(key);
	if (entry != NULL && entry->state == CACHE_READY)
	{
		numbers->quota = entry->quota;
		numbers->returned = (int64) pg_atomic_read_u64(&entry->returned);
		pg_read_barrier();
		numbers->issued = (int64) pg_atomic_read_u64(&entry->issued);
		pg_read_barrier();
		numbers->pending = (int64) pg_atomic_read_u64(&entry->pending);
		numbers->own = ChangesUnits(entry);
		numbers->own_lowered = ChangesLowered(entry);
		numbers->recount = entry->recount;
	}
	else
		entry = NULL;
	LWLockRelease(lock);
	return entry != NULL;
}
