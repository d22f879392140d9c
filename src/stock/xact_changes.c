/*
 * xact_changes.c
 *		What this transaction has done that shared memory learns at its end.
 *
 * A set of records for each subtransaction that is open: one for a kind of change
 * and a template, whatever the number of rows.  When a subtransaction aborts, its
 * records (and of those inside it, whose numbers are higher) are undone; when it
 * commits, they are joined with its parent's.  At the end of the transaction all
 * are made final or undone.  The callbacks are registered once, allocate nothing
 * and cannot fail: room for a record is made before the shared counter moves.
 *
 * The records are a stack, and so are the chains of the hash table by which they
 * are found: what goes is always the first of its chain.
 *
 * Order matters.  COMMIT and ABORT callbacks run after the transaction has
 * left the array of running ones.  So when pending falls to 0, every coupon
 * behind it is visible to a snapshot taken from then on, which is what makes
 * a count of rows exact; and a unit given back at abort is given back after
 * its row is dead.  FATAL takes the abort path, so there is no exit hook.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/commit_wakeup.h"
#include "base/errors.h"
#include "base/subxact.h"
#include "stock/cache.h"
#include "stock/xact_changes.h"

#define CHANGES_KEEP 1024		/* records kept allocated between transactions */
#define CHANGES_FIRST 64

/*
 * How many RECOUNT or FEWER records to keep apart before one for all templates takes
 * their place: a restore of millions of coupons must not fill our memory.
 */
#define CHANGES_MAX_APART 256

typedef struct ChangeRecord
{
	ChangeKind	kind;
	SubTransactionId subid;
	CacheEntry *entry;			/* of RESERVED, LOWERED and SHUT; it cannot leave while n > 0 */
	int64		n;				/* of these: units */
	Oid			relation;
	int64		template_id;
	int			older;			/* record in the same chain, -1: none */
} ChangeRecord;

static ChangeRecord *records = NULL;
static int	nrecords = 0;
static int	capacity = 0;		/* a power of two */
static int *chains = NULL;		/* capacity of them: the newest record, -1: none */
static int	nrecords_of[CHANGE_KINDS]; /* most transactions have none of most */
static CacheEntry *gate = NULL; /* closed by us */

static int *
ChainOf(ChangeKind kind, int64 template_id)
{
	uint32		hash = hash_combine(murmurhash32((uint32) kind),
									hash_bytes_uint32((uint32) template_id ^ (uint32) (template_id >> 32)));

	return &chains[hash & (capacity - 1)];
}

/* The record on top of the stack into its chain, or out of it. */
static void
Link(int number)
{
	int		   *chain = ChainOf(records[number].kind, records[number].template_id);

	records[number].older = *chain;
	*chain = number;
}

static void
Unlink(int number)
{
	*ChainOf(records[number].kind, records[number].template_id) = records[number].older;
}

/* The newest record of this kind for a template, older than that given; NULL: none. */
static ChangeRecord *
FindRecord(ChangeKind kind, Oid relation, int64 template_id, const ChangeRecord *before)
{
	int			i;

	if (nrecords_of[kind] == 0)
		return NULL;
	i = before != NULL ? before->older : *ChainOf(kind, template_id);
	while (i >= 0 && !(records[i].kind == kind && records[i].template_id == template_id &&
					   records[i].relation == relation))
		i = records[i].older;
	return i < 0 ? NULL : &records[i];
}

/*
 * ChangesMakeRoom makes sure that one more record fits; may raise an error.
 */
void
ChangesMakeRoom(void)
{
	int			wanted = Max(2 * capacity, CHANGES_FIRST);

	if (nrecords < capacity && (nrecords > 0 || capacity <= CHANGES_KEEP))
		return;
	if (nrecords == 0 && capacity > 0)
	{
		pfree(records);
		pfree(chains);
		records = NULL;
		chains = NULL;
		capacity = 0;
		wanted = CHANGES_FIRST;
	}

	/* Whichever fails, what there is stays as it is. */
	if (records == NULL)
		records = MemoryContextAlloc(TopMemoryContext, wanted * sizeof(ChangeRecord));
	else
		records = repalloc_huge(records, wanted * sizeof(ChangeRecord));
	if (chains == NULL)
		chains = MemoryContextAlloc(TopMemoryContext, wanted * sizeof(int));
	else
		chains = repalloc_huge(chains, wanted * sizeof(int));
	capacity = wanted;
	memset(chains, -1, capacity * sizeof(int));
	for (int i = 0; i < nrecords; i++)
		Link(i);
}

static ChangeRecord *
Push(ChangeKind kind, Oid relation, int64 template_id)
{
	ChangeRecord *record = &records[nrecords];

	Assert(nrecords < capacity);
	memset(record, 0, sizeof(*record));
	record->kind = kind;
	record->subid = GetCurrentSubTransactionId();
	record->relation = relation;
	record->template_id = template_id;
	nrecords_of[kind]++;
	Link(nrecords++);
	return record;
}

/* The record of this subtransaction, NULL: it has none. */
static ChangeRecord *
FindOwn(ChangeKind kind, Oid relation, int64 template_id)
{
	ChangeRecord *record = FindRecord(kind, relation, template_id, NULL);

	return record != NULL && record->subid == GetCurrentSubTransactionId() ? record : NULL;
}

static ChangeRecord *
FindUnits(ChangeKind kind, const CacheEntry *entry)
{
	return FindOwn(kind, entry->key.relation, entry->key.template_id);
}

/*
 * ChangesAddUnits records units just added to issued and pending of an entry.
 * ChangesMakeRoom was called before; cannot fail.
 */
void
ChangesAddUnits(ChangeKind kind, CacheEntry *entry, int64 n)
{
	ChangeRecord *record = FindUnits(kind, entry);

	if (record == NULL)
		record = Push(kind, entry->key.relation, entry->key.template_id);
	/* One whose units were all taken back may have left the cache, and come again. */
	if (record->n == 0)
		record->entry = entry;
	record->n += n;
	/* Only a claim: coupons that a restore brings must not be folded yet. */
	if (kind == CHANGE_RESERVED)
		WakeWorkerAtCommit(WAKE_FOLD);
}

/* Wake whoever waits at the gate for pending to reach 0. */
static void
LowerPending(CacheEntry *entry, int64 n)
{
	pg_atomic_fetch_sub_u64(&entry->pending, n);
	/* The atomic is a full barrier, as the setting of either is before. */
	if (entry->gated || entry->recount)
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
	ChangeRecord *record = FindUnits(CHANGE_RESERVED, entry);

	Assert(record != NULL && record->n >= n);
	record->n -= n;
	GiveBack(entry, n);
}

static int64
SumUnits(ChangeKind kind, const CacheEntry *entry)
{
	ChangeRecord *record = NULL;
	int64		sum = 0;

	while ((record = FindRecord(kind, entry->key.relation, entry->key.template_id, record)) != NULL)
		sum += record->n;
	return sum;
}

/*
 * ChangesUnits returns how many units of an entry this transaction has in
 * flight.
 */
int64
ChangesUnits(const CacheEntry *entry)
{
	return SumUnits(CHANGE_RESERVED, entry) + SumUnits(CHANGE_LOWERED, entry) +
		SumUnits(CHANGE_SHUT, entry);
}

/*
 * ChangesHeld returns for how many entries this transaction has units in flight; one that
 * has some in several subtransactions counts for each.
 */
int
ChangesHeld(void)
{
	return nrecords_of[CHANGE_RESERVED] + nrecords_of[CHANGE_LOWERED] + nrecords_of[CHANGE_SHUT];
}

/*
 * ChangesLowered returns how many of them are to leave the total.
 */
int64
ChangesLowered(const CacheEntry *entry)
{
	return SumUnits(CHANGE_LOWERED, entry);
}

/*
 * ChangesHas tells whether this transaction has such a record for a template,
 * or for all.
 */
bool
ChangesHas(ChangeKind kind, int64 template_id)
{
	Oid			relation;

	if (nrecords_of[kind] == 0)
		return false;
	relation = CatalogGet()->template_table;
	return FindRecord(kind, relation, template_id, NULL) != NULL ||
		FindRecord(kind, relation, CHANGE_ALL_TEMPLATES, NULL) != NULL;
}

/*
 * ChangesAdd records that rows of a template have changed; does nothing
 * without shared memory.  May raise an error for want of memory.
 */
void
ChangesAdd(ChangeKind kind, Oid relation, int64 template_id)
{
	if (!CacheIsAttached() || FindOwn(kind, relation, template_id) != NULL)
		return;
	if ((kind == CHANGE_RECOUNT || kind == CHANGE_FEWER) && nrecords_of[kind] >= CHANGES_MAX_APART)
	{
		template_id = CHANGE_ALL_TEMPLATES;
		if (FindOwn(kind, relation, template_id) != NULL)
			return;
	}
	ChangesMakeRoom();
	(void) Push(kind, relation, template_id);
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
			if (record->n == 0)
				break;
			if (!commit)
				GiveBack(record->entry, record->n);
			else
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
		case CHANGE_SHUT:
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
	/* A new quota must not meet a count that is about to be taken again. */
	for (int i = 0; i < nrecords && nrecords_of[CHANGE_RECOUNT] > 0; i++)
	{
		if (records[i].entry == NULL && records[i].kind == CHANGE_RECOUNT)
			FinishRecord(&records[i], commit);
	}
	for (int i = 0; i < nrecords; i++)
	{
		if (records[i].entry == NULL && records[i].kind != CHANGE_RECOUNT)
			FinishRecord(&records[i], commit);
	}
	for (int i = 0; i < nrecords; i++)
	{
		if (records[i].entry != NULL)
			FinishRecord(&records[i], commit);
	}
	while (nrecords > 0)
		Unlink(--nrecords);
	memset(nrecords_of, 0, sizeof(nrecords_of));
}

static void
Undo(SubTransactionId subid)
{
	while (nrecords > 0 && records[nrecords - 1].subid >= subid)
	{
		ChangeRecord *record = &records[nrecords - 1];

		Unlink(--nrecords);
		nrecords_of[record->kind]--;
		FinishRecord(record, false);
	}
}

/* What a subtransaction has done is its parent's from now on. */
static void
JoinParent(SubTransactionId subid, SubTransactionId parent)
{
	int			end = nrecords;

	while (nrecords > 0 && records[nrecords - 1].subid == subid)
		Unlink(--nrecords);
	for (int i = nrecords; i < end; i++)
	{
		ChangeRecord *record = &records[i];
		ChangeRecord *same = FindRecord(record->kind, record->relation, record->template_id, NULL);

		if (same != NULL && same->subid == parent)
		{
			if (same->n == 0)
				same->entry = record->entry;
			same->n += record->n;
			nrecords_of[record->kind]--;
			continue;
		}
		records[nrecords] = *record;
		records[nrecords].subid = parent;
		Link(nrecords++);
	}
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
		Undo(subid);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		JoinParent(subid, parent);
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
