/*
 * limit_cache.c
 *		How many coupons of a template a user was seen to have had: a small
 *		table in shared memory for those who press again after their limit.
 *
 * A user's coupons of a template become more and more, until somebody deletes
 * or changes rows of user_coupon.  So what a look at the table has found can be
 * believed as long as nobody has done that since.  The cache entry of the
 * template has a number for it, its stamp (CacheEntry.limit_stamp): a new one
 * after each such transaction, and for each load.  Stamps are never given
 * twice, not even to two templates, so a stamp and a user are the whole key.
 *
 * A backend that looks at the table notes what it has found, under the stamp
 * that it read before the look.  One that finds a note under the stamp of now has
 * what is committed now, or less where coupons have been added.  Only committed
 * rows may be noted.
 *
 * Two places share a cache line, and a user has the choice of two.  A note that
 * is displaced, or that meets another writer, is lost; the next look makes it
 * again.
 *
 * Locking: none.  A version makes a place consistent: odd while it is being
 * written; a reader that sees two different ones has read nothing.  Nothing that can
 * fail happens in between.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "storage/shmem.h"

#include "base/guc.h"
#include "store/limit_cache.h"

#define LINE_PLACES 2

typedef struct LimitPlace
{
	pg_atomic_uint64 version;
	/* Written while the version is odd. */
	uint64		stamp;			/* 0: never used */
	int64		user_id;
	int32		last_seq;
} LimitPlace;

typedef struct LimitLine
{
	LimitPlace	place[LINE_PLACES];
} LimitLine;

static LimitLine *lines = NULL;

static Size
LineCount(void)
{
	return (Size) coupon_limit_cache_memory * 1024 / sizeof(LimitLine);
}

/*
 * LimitCacheShmemSize returns the bytes that the table needs.
 */
Size
LimitCacheShmemSize(void)
{
	return mul_size(LineCount(), sizeof(LimitLine));
}

/*
 * LimitCacheShmemInit attaches to the table, and empties it when it is new.  The
 * caller holds AddinShmemInitLock.
 */
void
LimitCacheShmemInit(void)
{
	bool		found;

	if (LineCount() == 0)
		return;
	lines = ShmemInitStruct("coupon limit cache", LimitCacheShmemSize(), &found);
	if (found)
		return;
	memset(lines, 0, LimitCacheShmemSize());
	for (Size i = 0; i < LineCount(); i++)
	{
		for (int p = 0; p < LINE_PLACES; p++)
			pg_atomic_init_u64(&lines[i].place[p].version, 0);
	}
}

/*
 * LimitCacheIsOn tells whether there is a table.
 */
bool
LimitCacheIsOn(void)
{
	return lines != NULL;
}

static LimitLine *
FindLine(uint64 stamp, int64 user_id)
{
	uint64		key[2] = {stamp, (uint64) user_id};
	uint64		hash = hash_bytes_extended((const unsigned char *) key,
										   sizeof(key), 0);

	return &lines[((hash >> 32) * LineCount()) >> 32];
}

/*
 * LimitCacheStore notes that a user has had last_seq coupons, committed, of the
 * template with this stamp.
 */
void
LimitCacheStore(uint64 stamp, int64 user_id, int32 last_seq)
{
	LimitLine *line;
	LimitPlace    *place;
	uint64		version;

	if (lines == NULL)
		return;
	line = FindLine(stamp, user_id);

	/* The user's own place, or the one that was written less often. */
	place = &line->place[0];
	if (!(place->stamp == stamp && place->user_id == user_id) &&
		((line->place[1].stamp == stamp && line->place[1].user_id == user_id) ||
		 pg_atomic_read_u64(&line->place[1].version) <
		 pg_atomic_read_u64(&place->version)))
		place = &line->place[1];

	version = pg_atomic_read_u64(&place->version);
	if (version % 2 != 0 ||
		!pg_atomic_compare_exchange_u64(&place->version, &version, version + 1))
		return;
	place->stamp = stamp;
	place->user_id = user_id;
	place->last_seq = last_seq;
	pg_write_barrier();
	pg_atomic_write_u64(&place->version, version + 2);
}

/*
 * LimitCacheLookup returns what was noted, 0 where nothing is.
 */
int32
LimitCacheLookup(uint64 stamp, int64 user_id)
{
	LimitLine *line;

	if (lines == NULL)
		return 0;
	line = FindLine(stamp, user_id);
	for (int i = 0; i < LINE_PLACES; i++)
	{
		LimitPlace    *place = &line->place[i];
		uint64		version = pg_atomic_read_u64(&place->version);
		bool		match;
		int32		last_seq;

		pg_read_barrier();
		match = place->stamp == stamp && place->user_id == user_id;
		last_seq = place->last_seq;
		pg_read_barrier();
		if (match && version % 2 == 0 &&
			pg_atomic_read_u64(&place->version) == version)
			return last_seq;
	}
	return 0;
}
