/*
 * cache.h
 *		The shared cache of templates: one entry holds a template's attributes
 *		and its stock counters.  Locking rules are in cache.c.
 */
#ifndef COUPON_CACHE_H
#define COUPON_CACHE_H

#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

/*
 * Quota of a template without total: more than a total can be, and so that
 * sums of a few do not overflow.
 */
#define CACHE_UNLIMITED (PG_INT64_MAX / 4)
#define CACHE_PAYLOAD 128		/* room for a template's attributes, bytes */
#define CACHE_CODES 24			/* refusals are counted by outcome code */
#define CACHE_RATE_SECONDS 8	/* ring of claims per second */

/*
 * The database is part of the key since databases made from one template
 * share the OIDs of their tables; the table's OID, since an extension dropped
 * and created again must not meet its old entries.  The key is hashed as
 * bytes: CacheMakeKey zeroes its padding.
 */
typedef struct CacheKey
{
	Oid			database;
	Oid			relation;		/* coupon_template */
	int64		template_id;
	int32		holder;
	uint32		hash;			/* of the fields above, which are the key */
} CacheKey;

typedef enum CacheState
{
	CACHE_FREE,
	CACHE_LOADING,				/* holds the key's place; nothing to use yet */
	CACHE_READY
} CacheState;

typedef struct CacheEntry
{
	/* Written with the partition lock held exclusively. */
	CacheKey	key;
	CacheState	state;
	bool		stale;			/* read attributes and quota again before use */
	bool		recount;		/* count issued again before reserving more */
	bool		gated;			/* no new reservations: someone waits for
								 * pending to reach 0 */
	uint64		generation;		/* new at each load and invalidation */
	int64		quota;

	/*
	 * What shared memory knows of users without the tables.  A hint: rows that
	 * were written while triggers were switched off are not in it, and make
	 * themselves known by a conflict with a unique index.
	 */
	bool		filter_complete;	/* user_filter.c has all rows of the template */
	uint64		limit_stamp;	/* of what limit_cache.c has noted */
	char		payload[CACHE_PAYLOAD];

	/*
	 * The escrow.  Raised with the partition lock held at least shared; a
	 * transaction lowers what it raised itself without any lock.  At every
	 * instant issued - pending <= committed coupons <= issued.
	 */
	pg_atomic_uint64 issued;	/* committed and in flight */
	pg_atomic_uint64 pending;	/* in flight: > 0 keeps the entry here */
	pg_atomic_uint64 returned;	/* ever given back by aborts */
	ConditionVariable drained;	/* signalled while gated */

	/* Statistics since the load; written without any lock. */
	pg_atomic_uint32 usage;		/* clock sweep, 0 to 5 */
	pg_atomic_uint64 lookups;
	pg_atomic_uint64 claims;
	pg_atomic_uint64 refused[CACHE_CODES];
	pg_atomic_uint64 rate[CACHE_RATE_SECONDS];	/* second << 32 | claims */
} CacheEntry;

/* Counters of the whole cache, for coupon_stat_cache. */
typedef struct CacheStats
{
	int			capacity;
	int			entries;
	uint64		lookups;
	uint64		loads;
	uint64		refreshes;
	uint64		unknown;
	uint64		evictions;
	uint64		invalidations;
} CacheStats;

typedef enum CacheEvent
{
	CACHE_EVENT_LOAD,
	CACHE_EVENT_REFRESH,
	CACHE_EVENT_UNKNOWN,
	CACHE_EVENT_EVICTION,
	CACHE_EVENT_INVALIDATION,
	CACHE_EVENT_LOOKUP,			/* lookups of entries that have left */
	CACHE_EVENTS
} CacheEvent;

extern Size CacheShmemSize(void);
extern void CacheShmemInit(void);
extern int	CacheLockCount(void);
extern bool CacheIsAttached(void);
extern void CacheMakeKey(CacheKey *key, Oid relation, int64 template_id);
extern LWLock *CachePartitionLock(const CacheKey *key);
extern CacheEntry *CacheFind(const CacheKey *key);
extern CacheEntry *CacheFindOrCreate(const CacheKey *key, LWLock *lock);
extern void CacheRemove(CacheEntry *entry);
extern void CacheForgetDatabase(Oid database);
extern int	CacheShare(void);
extern bool CacheIsCrowded(int parts);
extern bool CacheCanRecount(CacheEntry *entry);
extern CacheEntry *CacheSlot(int number);
extern uint64 CacheNextGeneration(void);
extern void CacheCountEvent(CacheEvent event);
extern void CacheGetStats(CacheStats *stats);

#endif							/* COUPON_CACHE_H */
