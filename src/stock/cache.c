/*
 * cache.c
 *		The shared cache of templates: a fixed array of entries, a partitioned
 *		hash table from key to entry, and eviction by clock sweep, as the
 *		buffer manager does it.
 *
 * An accelerator only: all of it can be lost at any moment and is read again
 * from the tables.  In recovery nothing is ever stored here.
 *
 * Locking.  A key belongs to one of CACHE_PARTITIONS partitions.  The lock of
 * the partition, held shared, keeps an entry where it is and its attributes
 * as they are; it is held for a look-up and a copy, or a look-up and a
 * reservation, and never over anything that can raise an error.  Changing
 * state, attributes or quota, and leaving the hash table, need it exclusively.
 * An entry with pending > 0 never leaves, so whoever holds a reservation may
 * keep a pointer to it without any lock.
 *
 * The sweep lock serialises the search for a victim.  Order: sweep lock, then
 * one partition lock.  No one holds two partition locks.
 *
 * Known races, all harmless: usage counts and statistics are approximate; an
 * entry being loaded may be evicted by another load, whose loader then finds
 * its generation gone and starts again.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/errors.h"
#include "base/guc.h"
#include "base/installed.h"
#include "stock/cache.h"

#define CACHE_PARTITIONS 32		/* a power of 2 */
#define CACHE_MAX_USAGE 5
#define CACHE_LEAST_SHARE 4

typedef struct CacheShared
{
	pg_atomic_uint64 generation;
	pg_atomic_uint64 events[CACHE_EVENTS];
	int			hand;			/* under the sweep lock */
	CacheEntry	entries[FLEXIBLE_ARRAY_MEMBER];
} CacheShared;

/* An element of the hash table. */
typedef struct CacheSlotOfKey
{
	CacheKey	key;			/* MUST BE FIRST */
	int			slot;
} CacheSlotOfKey;

static CacheShared *shared = NULL;
static HTAB *slot_of_key = NULL;
static LWLockPadded *locks = NULL;	/* partitions, then the sweep lock */

#define SweepLock (&locks[CACHE_PARTITIONS].lock)

static Size
ArraySize(void)
{
	return add_size(offsetof(CacheShared, entries),
					mul_size(coupon_max_templates, sizeof(CacheEntry)));
}

/*
 * CacheShmemSize returns the bytes that the cache needs.
 */
Size
CacheShmemSize(void)
{
	return add_size(ArraySize(),
					hash_estimate_size(coupon_max_templates,
									   sizeof(CacheSlotOfKey)));
}

/*
 * CacheLockCount returns how many LWLocks of tranche "coupon" it needs.
 */
int
CacheLockCount(void)
{
	return CACHE_PARTITIONS + 1;
}

/*
 * CacheShmemInit attaches to the cache, and makes it empty when it is new.
 * The caller holds AddinShmemInitLock.
 */
void
CacheShmemInit(void)
{
	HASHCTL		info;
	bool		found;

	shared = ShmemInitStruct("coupon cache", ArraySize(), &found);
	if (!found)
	{
		memset(shared, 0, ArraySize());
		pg_atomic_init_u64(&shared->generation, 1);
		for (int i = 0; i < CACHE_EVENTS; i++)
			pg_atomic_init_u64(&shared->events[i], 0);
		for (int i = 0; i < coupon_max_templates; i++)
			ConditionVariableInit(&shared->entries[i].drained);
	}

	memset(&info, 0, sizeof(info));
	info.keysize = offsetof(CacheKey, hash);
	info.entrysize = sizeof(CacheSlotOfKey);
	info.num_partitions = CACHE_PARTITIONS;
	slot_of_key = ShmemInitHash("coupon cache keys",
								coupon_max_templates, coupon_max_templates,
								&info,
								HASH_ELEM | HASH_BLOBS | HASH_PARTITION |
								HASH_FIXED_SIZE);
	locks = GetNamedLWLockTranche("coupon");
}

/*
 * CacheIsAttached tells whether the library was preloaded.
 */
bool
CacheIsAttached(void)
{
	return shared != NULL;
}

/*
 * CacheMakeKey fills the key of a template of this database.
 */
void
CacheMakeKey(CacheKey *key, Oid relation, int64 template_id)
{
	memset(key, 0, sizeof(*key));
	key->database = MyDatabaseId;
	key->relation = relation;
	key->template_id = template_id;
	key->holder = HOLDER_DATABASE;
	if (slot_of_key != NULL)
		key->hash = get_hash_value(slot_of_key, key);
}

/*
 * CachePartitionLock returns the lock that guards a key.
 */
LWLock *
CachePartitionLock(const CacheKey *key)
{
	return &locks[key->hash % CACHE_PARTITIONS].lock;
}

/*
 * CacheFind returns the entry of a key, or NULL.  The caller holds the
 * partition lock, shared or exclusive.
 */
CacheEntry *
CacheFind(const CacheKey *key)
{
	CacheSlotOfKey *found;

	found = hash_search_with_hash_value(slot_of_key, key, key->hash, HASH_FIND,
										NULL);
	return found ? &shared->entries[found->slot] : NULL;
}

static void
ResetEntry(CacheEntry *entry, const CacheKey *key)
{
	entry->key = *key;
	entry->state = CACHE_LOADING;
	entry->stale = entry->recount = entry->gated = false;
	entry->generation = CacheNextGeneration();
	entry->quota = 0;
	entry->filter_complete = false;
	entry->limit_stamp = 0;
	pg_atomic_init_u64(&entry->issued, 0);
	pg_atomic_init_u64(&entry->pending, 0);
	pg_atomic_init_u64(&entry->returned, 0);
	pg_atomic_init_u32(&entry->usage, 1);
	pg_atomic_init_u64(&entry->lookups, 0);
	pg_atomic_init_u64(&entry->claims, 0);
	for (int i = 0; i < CACHE_CODES; i++)
		pg_atomic_init_u64(&entry->refused[i], 0);
	for (int i = 0; i < CACHE_RATE_SECONDS; i++)
		pg_atomic_init_u64(&entry->rate[i], 0);
}

static bool
IsIdle(CacheEntry *entry)
{
	return !entry->gated && pg_atomic_read_u64(&entry->pending) == 0;
}

/*
 * Free a slot if it can be spared; true if it is free now.  "any": even if it
 * was used lately.
 */
static bool
TryVictim(CacheEntry *entry, bool any)
{
	CacheKey	key = entry->key;
	LWLock	   *lock;
	bool		freed = false;

	if (entry->state == CACHE_FREE)
		return true;
	if (!any && pg_atomic_read_u32(&entry->usage) > 0)
	{
		pg_atomic_sub_fetch_u32(&entry->usage, 1);
		return false;
	}
	if (!IsIdle(entry))
		return false;

	/* Only the holder of the sweep lock gives a slot another key. */
	lock = CachePartitionLock(&key);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (entry->state == CACHE_FREE)
		freed = true;
	else if (IsIdle(entry))
	{
		CacheRemove(entry);
		CacheCountEvent(CACHE_EVENT_EVICTION);
		freed = true;
	}
	LWLockRelease(lock);
	return freed;
}

/*
 * Returns a free slot, or -1.  The caller holds the sweep lock.  Others may
 * raise usage counts as fast as the hand lowers them: the last round ignores
 * them.
 */
static int
FindFreeSlot(void)
{
	int64		last_round = (int64) coupon_max_templates * (CACHE_MAX_USAGE + 1);

	for (int64 i = 0; i < last_round + coupon_max_templates; i++)
	{
		int			slot = shared->hand;

		shared->hand = (slot + 1) % coupon_max_templates;
		if (TryVictim(&shared->entries[slot], i >= last_round))
			return slot;
	}
	return -1;
}

/*
 * CacheFindOrCreate returns the entry of a key, made in state CACHE_LOADING
 * where there was none, with the partition lock held exclusively.
 *
 * Raises VC004, holding no lock, when every entry has claims in flight.  The
 * caller holds the loader's lock of this key, so that nobody else makes it.
 */
CacheEntry *
CacheFindOrCreate(const CacheKey *key, LWLock *lock)
{
	CacheEntry *entry;
	CacheSlotOfKey *mapped;
	int			slot;
	bool		found;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	if (entry != NULL)
		return entry;
	LWLockRelease(lock);

	LWLockAcquire(SweepLock, LW_EXCLUSIVE);
	slot = FindFreeSlot();
	if (slot < 0)
	{
		LWLockRelease(SweepLock);
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_CACHE_FULL),
				 errmsg("all %d places for templates have claims in flight",
						coupon_max_templates),
				 errhint("Raise \"coupon.max_templates\", or end open transactions that have claimed coupons.")));
	}
	LWLockAcquire(lock, LW_EXCLUSIVE);
	mapped = hash_search_with_hash_value(slot_of_key, key, key->hash,
										 HASH_ENTER_NULL, &found);
	if (mapped == NULL || found)
	{
		LWLockRelease(lock);
		LWLockRelease(SweepLock);
		elog(ERROR, "template cache is corrupted");
	}
	mapped->slot = slot;
	entry = &shared->entries[slot];
	ResetEntry(entry, key);
	LWLockRelease(SweepLock);
	return entry;
}

/*
 * CacheRemove takes an idle entry out; the caller holds its partition lock
 * exclusively.
 */
void
CacheRemove(CacheEntry *entry)
{
	pg_atomic_fetch_add_u64(&shared->events[CACHE_EVENT_LOOKUP],
							pg_atomic_read_u64(&entry->lookups));
	hash_search_with_hash_value(slot_of_key, &entry->key, entry->key.hash,
								HASH_REMOVE, NULL);
	entry->state = CACHE_FREE;
}

/*
 * CacheForgetDatabase takes out all entries of a database that nobody is in, and
 * nobody can enter: another one may come to have its OID, and tables with the same
 * OIDs, if both are copies of one.
 */
void
CacheForgetDatabase(Oid database)
{
	LWLockAcquire(SweepLock, LW_EXCLUSIVE);
	for (int i = 0; i < coupon_max_templates; i++)
	{
		if (shared->entries[i].key.database == database)
			(void) TryVictim(&shared->entries[i], true);
	}
	LWLockRelease(SweepLock);
}

/*
 * CacheShare returns how many places a transaction may pin whatever others do: those of all
 * backends together are half of the cache, if that is large enough.
 */
int
CacheShare(void)
{
	return Max(coupon_max_templates / (2 * MaxBackends), CACHE_LEAST_SHARE);
}

/*
 * CacheIsCrowded tells whether one of "parts" of the places or more is pinned: then whoever
 * has its share takes no more.  So there is always a place for those who have not.
 */
bool
CacheIsCrowded(int parts)
{
	int			pinned = 0;

	for (int i = 0; i < coupon_max_templates; i++)
	{
		CacheEntry *entry = &shared->entries[i];

		if (entry->state != CACHE_FREE && !IsIdle(entry))
			pinned++;
	}
	return pinned >= coupon_max_templates / parts;
}

/*
 * CacheCanRecount tells whether a count is due and nobody is in its way: such
 * an entry lets nobody reserve, so that it stays so until the count is stored.
 */
bool
CacheCanRecount(CacheEntry *entry)
{
	return entry->recount && pg_atomic_read_u64(&entry->pending) == 0;
}

/*
 * CacheSlot returns an entry by number, NULL past the last: for walking over
 * all.  Look at its key, take the lock of that key, and look again.
 */
CacheEntry *
CacheSlot(int number)
{
	return number < coupon_max_templates ? &shared->entries[number] : NULL;
}

/*
 * CacheNextGeneration returns a number never given before since the start.
 */
uint64
CacheNextGeneration(void)
{
	return pg_atomic_add_fetch_u64(&shared->generation, 1);
}

/*
 * CacheCountEvent counts something that happened to the cache.
 */
void
CacheCountEvent(CacheEvent event)
{
	pg_atomic_fetch_add_u64(&shared->events[event], 1);
}

/*
 * CacheGetStats returns the counters since the start of the server.
 */
void
CacheGetStats(CacheStats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->capacity = coupon_max_templates;
	stats->loads = pg_atomic_read_u64(&shared->events[CACHE_EVENT_LOAD]);
	stats->refreshes = pg_atomic_read_u64(&shared->events[CACHE_EVENT_REFRESH]);
	stats->unknown = pg_atomic_read_u64(&shared->events[CACHE_EVENT_UNKNOWN]);
	stats->evictions = pg_atomic_read_u64(&shared->events[CACHE_EVENT_EVICTION]);
	stats->invalidations =
		pg_atomic_read_u64(&shared->events[CACHE_EVENT_INVALIDATION]);
	stats->lookups = pg_atomic_read_u64(&shared->events[CACHE_EVENT_LOOKUP]);
	for (int i = 0; i < coupon_max_templates; i++)
	{
		CacheEntry *entry = &shared->entries[i];

		if (entry->state == CACHE_FREE)
			continue;
		stats->entries++;
		stats->lookups += pg_atomic_read_u64(&entry->lookups);
	}
}
