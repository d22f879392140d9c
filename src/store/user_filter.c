/*
 * user_filter.c
 *		Which users may hold a coupon of which template: a blocked Bloom filter in
 *		shared memory.
 *
 * Most calls of a sale come from users who hold nothing.  To find that out in
 * the table takes an index probe in one of many partitions, which costs more
 * than all the rest of a refusal, and most of it waiting for memory.  Here it
 * is one cache line.
 *
 * A pair of template and user has its bits set before any row of it is
 * inserted, by whatever way: by insert.c for claims, by the row trigger
 * (coupon_trigger.c) for everything else.  Bits are never cleared; a row that is
 * deleted, or never committed, leaves its bits behind, which costs a probe and
 * nothing else.
 *
 * So a pair without bits has no row that was inserted since the server
 * started.  Of older rows the filter knows nothing by itself: the loader of a
 * template puts them in, and says so in the cache entry (CacheEntry.filter_complete).
 * Only for such an entry does UserFilterMayHave mean anything.  What the loader
 * has stated stays true as long as the filter lives, which is as long as the
 * cache does.
 *
 * Locking: none.  Bits are set by atomic OR.  A backend that can know of a row, by
 * its commit or by the lock of its user, has met a barrier after its bits were
 * set.
 *
 * When more and more bits are set the filter says "maybe" more often, until it
 * is of no use; it never gets wrong.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/shmem.h"

#include "base/guc.h"
#include "store/user_filter.h"

#define LINE_WORDS 8			/* 64 bytes: one cache line */
#define BITS_PER_PAIR 5			/* all in one line; 9 bits of hash choose each */
#define FILL_SAMPLE 16384		/* lines looked at to tell how full it is */

typedef struct FilterLine
{
	pg_atomic_uint64 word[LINE_WORDS];
} FilterLine;

/* Hashed as bytes: there is no padding. */
typedef struct FilterKey
{
	Oid			database;
	Oid			relation;		/* coupon_template, as in the key of the cache */
	int64		template_id;
	int64		user_id;
} FilterKey;

static FilterLine *lines = NULL;

static Size
LineCount(void)
{
	return (Size) coupon_user_filter_memory * 1024 / sizeof(FilterLine);
}

/*
 * UserFilterShmemSize returns the bytes that the filter needs.
 */
Size
UserFilterShmemSize(void)
{
	return mul_size(LineCount(), sizeof(FilterLine));
}

/*
 * UserFilterShmemInit attaches to the filter, and empties it when it is new.
 * The caller holds AddinShmemInitLock.
 */
void
UserFilterShmemInit(void)
{
	bool		found;

	if (LineCount() == 0)
		return;
	lines = ShmemInitStruct("coupon user filter", UserFilterShmemSize(), &found);
	if (found)
		return;
	for (Size i = 0; i < LineCount(); i++)
	{
		for (int w = 0; w < LINE_WORDS; w++)
			pg_atomic_init_u64(&lines[i].word[w], 0);
	}
}

/*
 * UserFilterIsOn tells whether there is a filter.
 */
bool
UserFilterIsOn(void)
{
	return lines != NULL;
}

/* The line of a pair, and the bits in it as one mask per word. */
static FilterLine *
FindBits(Oid relation, int64 template_id, int64 user_id, uint64 *mask)
{
	FilterKey key;
	uint64		hash;
	uint64		choice;

	key.database = MyDatabaseId;
	key.relation = relation;
	key.template_id = template_id;
	key.user_id = user_id;
	hash = hash_bytes_extended((const unsigned char *) &key, sizeof(key), 0);

	/* The line by the upper half; the bits by all of it, mixed once more. */
	choice = (hash ^ (hash >> 31)) * UINT64CONST(0x94d049bb133111eb);
	memset(mask, 0, LINE_WORDS * sizeof(uint64));
	for (int i = 0; i < BITS_PER_PAIR; i++)
	{
		uint32		bit = (uint32) (choice >> (64 - 9 * (i + 1))) & 511;

		mask[bit / 64] |= UINT64CONST(1) << (bit % 64);
	}
	return &lines[((hash >> 32) * LineCount()) >> 32];
}

/*
 * UserFilterAdd notes that a user may hold a coupon of a template from now on.
 * It is called before the row is inserted.
 */
void
UserFilterAdd(Oid relation, int64 template_id, int64 user_id)
{
	uint64		mask[LINE_WORDS];
	FilterLine *line;

	if (lines == NULL)
		return;
	line = FindBits(relation, template_id, user_id, mask);
	for (int w = 0; w < LINE_WORDS; w++)
	{
		if ((pg_atomic_read_u64(&line->word[w]) & mask[w]) != mask[w])
			(void) pg_atomic_fetch_or_u64(&line->word[w], mask[w]);
	}
}

/*
 * UserFilterMayHave returns false where a user surely has no row of a template,
 * committed or not.  It may be asked for entries of the cache that say so.
 */
bool
UserFilterMayHave(Oid relation, int64 template_id, int64 user_id)
{
	uint64		mask[LINE_WORDS];
	FilterLine *line = FindBits(relation, template_id, user_id, mask);

	for (int w = 0; w < LINE_WORDS; w++)
	{
		if ((pg_atomic_read_u64(&line->word[w]) & mask[w]) != mask[w])
			return false;
	}
	return true;
}

/*
 * UserFilterFill returns the share of bits that are set, by a sample.
 */
double
UserFilterFill(void)
{
	Size		n = Min(LineCount(), FILL_SAMPLE);
	uint64		set = 0;

	for (Size i = 0; i < n; i++)
	{
		for (int w = 0; w < LINE_WORDS; w++)
		{
			uint64		word = pg_atomic_read_u64(&lines[i].word[w]);

			set += pg_popcount64(word);
		}
	}
	return n == 0 ? 0 : (double) set / ((double) n * LINE_WORDS * 64);
}
