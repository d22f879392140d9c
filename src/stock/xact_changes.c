/*
 * xact_changes.c
 *		What this transaction has done that shared memory learns at its end.
 *
 * A stack of records, each stamped with the subtransaction that made it.  When
 * a subtransaction aborts, the records on top that are its own (or of those
 * inside it, whose numbers are higher) are undone; when it commits, they
 * become its parent's.  At the end of the transaction all are made final or
 * undone.  The callbacks are registered once, allocate nothing and cannot
 * fail: room for a record is made before the shared counter moves.
 *
 * Order matters.  COMMIT and ABORT callbacks run after the transaction has
 * left the array of running ones.  So when pending falls to 0, every coupon
 * behind it is visible to a snapshot taken from then on, which is what makes
 * a count of rows exact; and a unit given back at abort is given back after
 * its row is dead.  FATAL takes the abort path, so there is no exit hook.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/errors.h"
#include "base/subxact.h"
#include "stock/cache.h"
#include "stock/xact_changes.h"

#define CHANGES_KEEP 1024		/* records kept allocated between transactions */

/*
 * How many RECOUNT or FEWER records to keep apart before one for all templates takes
 * their place: a restore of millions of coupons must not fill our memory.
 */
#define CHANGES_MAX_APART 256

typedef struct ChangeRecord
{
	ChangeKind kind;
	SubTransactionId subid;
	CacheEntry *entry;			/* of RESERVED and LOWERED; it cannot leave */
	int64		n;
	Oid			relation;		/* of the others: key of the entry, if any */
	int64		template_id;
} ChangeRecord;

static ChangeRecord *records = NULL;
static int	nrecords = 0;
static int	capacity = 0;
static int	nrecords_of[CHANGE_KINDS]; /* most transactions have none of most */
static CacheEntry *gate = NULL; /* closed by us */

/*
 * ChangesMakeRoom makes sure that one more record fits; may raise an error.
 */
void
ChangesMakeRoom(void)
{
	if (nrecords == 0 && capacity > CHANGES_KEEP)
	{
		pfree(records);
		records = NULL;
		capacity = 0;
	}
	if (records == NULL)
	{
		records = MemoryContextAlloc(TopMemoryContext,
									 64 * sizeof(ChangeRecord));
		capacity = 64;
	}
	else if (nrecords == capacity)
	{
		records = repalloc_huge(records, 2 * (Size) capacity * sizeof(ChangeRecord));
		capacity *= 2;
	}
}

static ChangeRecord *
Push(ChangeKind kind)
{
	ChangeRecord *record = &records[nrecords++];

	Assert(nrecords <= capacity);
	memset(record, 0, sizeof(*record));
	record->kind = kind;
	record->subid = GetCurrentSubTransactionId();
	nrecords_of[kind]++;
	return record;
}

/*
 * ChangesAddUnits records units just added to issued and pending of an entry.
 * ChangesMakeRoom was called before; cannot fail.
 */
void
ChangesAddUnits(ChangeKind kind, CacheEntry *entry, int64 n)
{
	ChangeRecord *last = nrecords > 0 ? &records[nrecords - 1] : NULL;

	if (last != NULL && last->kind == kind && last->entry == entry &&
		last->subid == GetCurrentSubTransactionId())
		last->n += n;
	else
	{
		last = Push(kind);
		last->entry = entry;
		last->n = n;
	}
	/* Only a claim: coupons that a restore brings must not be folded yet. */
	if (kind == CHANGE_RESERVED)
		WakeWorkerAtCommit(WAKE_FOLD);
}

/* Wake whoever waits at the gate for pending to reach 0. */
static void
LowerPending(CacheEntry *entry, int64 n)
{
	pg_atomic_fetch_sub_u64(&entry->pending, n);
	/* The atomic is a full barrier, as the setting of gated is before. */
	if (entry->gated)
		ConditionVariableBroadcast(&entry->drained);
}

static void
GiveBack(CacheEntry *entry, int64 n)
{
	pg_atomic_fetch_sub_u64(&entry->issued, n);
	pg_atomic_fetch_add_u64(&entry->returned, n);
	LowerPending(entry, n);
}

/*
 * ChangesTakeBack gives back units that this subtransaction reserved and did
 * not need after all.
 */
void
ChangesTakeBack(CacheEntry *entry, int64 n)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	for (int i = nrecords - 1; i >= 0 && n > 0; i--)
	{
		ChangeRecord *record = &records[i];

		if (record->kind == CHANGE_RESERVED && record->entry == entry &&
			record->subid == subid)
		{
			int64		part = Min(n, record->n);

			record->n -= part;
			n -= part;
			GiveBack(entry, part);
		}
	}
	Assert(n == 0);
}

/*
 * ChangesUnits returns how many units of an entry this transaction has in
 * flight.
 */
int64
ChangesUnits(CacheEntry *entry)
{
	int64		sum = 0;

	for (int i = 0; i < nrecords; i++)
	{
		if (records[i].entry == entry)
			sum += records[i].n;
	}
	return sum;
}

/*
 * ChangesLowered returns how many of them are to leave the total.
 */
int64
ChangesLowered(CacheEntry *entry)
{
	int64		sum = 0;

	for (int i = 0; i < nrecords; i++)
	{
		if (records[i].entry == entry && records[i].kind == CHANGE_LOWERED)
			sum += records[i].n;
	}
	return sum;
}

/*
 * ChangesHas tells whether this transaction has such a record for a template,
 * or for all.
 */
bool
ChangesHas(ChangeKind kind, int64 template_id)
{
	if (nrecords_of[kind] == 0)
		return false;
	for (int i = nrecords - 1; i >= 0; i--)
	{
		if (records[i].kind == kind &&
			(records[i].template_id == template_id ||
			 records[i].template_id == CHANGE_ALL_TEMPLATES))
			return true;
	}
	return false;
}

/*
 * ChangesAdd records that rows of a template have changed; does nothing
 * without shared memory.  May raise an error for want of memory.
 */
void
ChangesAdd(ChangeKind kind, Oid relation, int64 template_id)
{
	ChangeRecord *last = nrecords > 0 ? &records[nrecords - 1] : NULL;
	ChangeRecord *record;

	if (!CacheIsAttached())
		return;
	if (last != NULL && last->kind == kind && last->template_id == template_id &&
		last->subid == GetCurrentSubTransactionId())
		return;
	if (kind == CHANGE_RECOUNT || kind == CHANGE_FEWER)
	{
		if (ChangesHas(kind, template_id) &&
			GetCurrentTransactionNestLevel() == 1)
			return;
		if (nrecords_of[kind] >= CHANGES_MAX_APART)
			template_id = CHANGE_ALL_TEMPLATES;
	}

	ChangesMakeRoom();
	record = Push(kind);
	record->relation = relation;
	record->template_id = template_id;
}

/*
 * ChangesSetGate remembers the gate that we have closed (NULL: opened again),
 * so that any abort opens it.
 */
void
ChangesSetGate(CacheEntry *entry)
{
	gate = entry;
}

static void
OpenGateAfterError(void)
{
	LWLock	   *lock;

	if (gate == NULL)
		return;
	lock = CachePartitionLock(&gate->key);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	gate->gated = false;
	LWLockRelease(lock);
	gate = NULL;
}

/* Claims per second: a ring of buckets, each stamped with its second. */
static void
CountClaims(CacheEntry *entry, int64 n)
{
	uint64		second = (uint64) (GetCurrentTransactionStopTimestamp() / USECS_PER_SEC);
	pg_atomic_uint64 *bucket = &entry->rate[second % CACHE_RATE_SECONDS];
	uint64		old = pg_atomic_read_u64(bucket);
	uint64		new;

	pg_atomic_fetch_add_u64(&entry->claims, n);
	second &= PG_UINT32_MAX;
	do
	{
		new = (old >> 32 == second ? old : second << 32) + n;
	} while (!pg_atomic_compare_exchange_u64(bucket, &old, new));
}

/* The total falls by what was reserved for that; both in one step. */
static void
FinishLowering(const ChangeRecord *record)
{
	CacheEntry *entry = record->entry;
	LWLock	   *lock = CachePartitionLock(&entry->key);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry->quota -= record->n;
	entry->stale = true;
	entry->generation = CacheNextGeneration();
	GiveBack(entry, record->n);
	LWLockRelease(lock);
}

static void
InvalidateEntry(CacheEntry *entry, bool stale, bool recount)
{
	if (entry->limit_stamp != 0)
		entry->limit_stamp = CacheNextGeneration();
	if (!stale && !recount)
		return;					/* FEWER: what a user may still claim, no more */
	entry->stale |= stale;
	entry->recount |= recount;
	entry->generation = CacheNextGeneration();
	CacheCountEvent(CACHE_EVENT_INVALIDATION);
}

static void
InvalidateKey(const CacheKey *key, bool stale, bool recount)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	if (entry != NULL)
		InvalidateEntry(entry, stale, recount);
	LWLockRelease(lock);
}

static void
InvalidateTemplate(const ChangeRecord *record, bool stale, bool recount)
{
	CacheKey	key;

	CacheMakeKey(&key, record->relation, record->template_id);
	InvalidateKey(&key, stale, recount);
}

static void
InvalidateAll(const ChangeRecord *record, bool stale, bool recount)
{
	CacheEntry *entry;

	for (int i = 0; (entry = CacheSlot(i)) != NULL; i++)
	{
		CacheKey	key = entry->key;

		/*
		 * An entry of ours that appears now was loaded from a snapshot taken
		 * after this transaction left the array: it needs nothing.
		 */
		if (entry->state == CACHE_FREE || key.database != MyDatabaseId ||
			key.relation != record->relation)
			continue;
		InvalidateKey(&key, stale, recount);
	}
}

static void
FinishRecord(const ChangeRecord *record, bool commit)
{
	bool		stale = record->kind == CHANGE_CREATED ||
		record->kind == CHANGE_EDITED;
	bool		recount = record->kind == CHANGE_CREATED ||
		record->kind == CHANGE_RECOUNT;

	switch (record->kind)
	{
		case CHANGE_RESERVED:
			if (!commit)
				GiveBack(record->entry, record->n);
			else if (record->n > 0)
			{
				CountClaims(record->entry, record->n);
				LowerPending(record->entry, record->n);
			}
			break;
		case CHANGE_LOWERED:
			if (commit)
				FinishLowering(record);
			else
				GiveBack(record->entry, record->n);
			break;
		case CHANGE_CREATED:
		case CHANGE_EDITED:
		case CHANGE_RECOUNT:
		case CHANGE_FEWER:

			/* After an abort too: nothing seen in here may outlive it. */
			if (record->template_id == CHANGE_ALL_TEMPLATES)
				InvalidateAll(record, stale, recount);
			else
				InvalidateTemplate(record, stale, recount);
			break;
		case CHANGE_TAKEN_OUT:
		case CHANGE_KINDS:
			break;
	}
}

static void
RefusePrepare(void)
{
	if (nrecords > 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NO_PREPARE),
				 errmsg("cannot PREPARE a transaction that has claimed coupons or changed templates"),
				 errdetail("Its stock would stay reserved without an owner."),
				 errhint("Use COMMIT, or keep coupons out of two-phase transactions.")));
}

/*
 * Changes before units: while ours are pending, nobody counts, so that none
 * takes an entry for settled that is not.
 */
static void
FinishAll(bool commit)
{
	for (int i = 0; i < nrecords; i++)
	{
		if (records[i].entry == NULL)
			FinishRecord(&records[i], commit);
	}
	for (int i = 0; i < nrecords; i++)
	{
		if (records[i].entry != NULL)
			FinishRecord(&records[i], commit);
	}
	nrecords = 0;
	memset(nrecords_of, 0, sizeof(nrecords_of));
}

static void
AtTransactionEnd(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_PREPARE)
		RefusePrepare();
	else if (XactIsCommit(event))
		FinishAll(true);
	else if (XactIsAbort(event))
	{
		OpenGateAfterError();
		FinishAll(false);
	}
}

static void
AtSubtransactionEnd(SubXactEvent event, SubTransactionId subid,
					SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		OpenGateAfterError();
		while (nrecords > 0 && records[nrecords - 1].subid >= subid)
		{
			nrecords--;
			nrecords_of[records[nrecords].kind]--;
			FinishRecord(&records[nrecords], false);
		}
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (int i = nrecords - 1; i >= 0 && records[i].subid == subid; i--)
			records[i].subid = parent;
	}
}

/*
 * ChangesInit registers the callbacks; called once, from _PG_init.
 */
void
ChangesInit(void)
{
	RegisterXactCallback(AtTransactionEnd, NULL);
	RegisterSubXactCallback(AtSubtransactionEnd, NULL);
}
