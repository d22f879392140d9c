/*
 * turns.c
 *		Sales that have something to fire: shops take turns.
 *
 * One shop with many reminders, or many sales, makes no other late: rows and time of a look
 * are divided among the shops that have something, and the next look goes on behind the last
 * shop that got a part.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "remind/turns.h"

#define LEAST_PART 500			/* rows of a look for one shop */
#define LOOK_TIME (200 * INT64CONST(1000))	/* microseconds; a sale costs more than its rows */
#define LEAST_TIME (LOOK_TIME / 20) /* of it for one shop */

/* By shop; within one what begins first. */
static int
CompareShops(const void *a, const void *b)
{
	const RemindSale *left = ((const RemindDue *) a)->sale;
	const RemindSale *right = ((const RemindDue *) b)->sale;

	if (left->shop_number != right->shop_number)
		return left->shop_number < right->shop_number ? -1 : 1;
	if (left->start != right->start)
		return left->start < right->start ? -1 : 1;
	return left->template_id < right->template_id ? -1 : left->template_id > right->template_id;
}

/*
 * RemindTakeTurns fires of the sales at most "limit" rows and for a moment, and says of each
 * how many.  It sorts them.  The last shop that got something is the caller's to remember; 0
 * at first.
 */
void
RemindTakeTurns(RemindDue *due, int ndue, int64 *last_shop, TimestampTz now, int limit,
				RemindCounts *counts)
{
	int			nshops = 0;
	int			first = 0;
	int			part = 0;		/* what is left for the shop */
	TimestampTz over = GetCurrentTimestamp() + LOOK_TIME;

	qsort(due, ndue, sizeof(RemindDue), CompareShops);
	for (int i = 0; i < ndue; i++)
		nshops += i == 0 || due[i].sale->shop_number != due[i - 1].sale->shop_number;
	while (first < ndue && due[first].sale->shop_number <= *last_shop)
		first++;
	for (int k = 0; k < ndue; k++)
	{
		RemindDue  *next = &due[(first + k) % ndue];
		int64		shop = next->sale->shop_number;
		TimestampTz clock = GetCurrentTimestamp();

		if (k == 0 || shop != due[(first + k - 1) % ndue].sale->shop_number)
		{
			part = Max(limit / nshops, LEAST_PART);
			counts->until = clock + Max(LOOK_TIME / nshops, LEAST_TIME);
		}
		next->marked = -1;
		if (counts->rows >= limit || part <= 0 || clock >= counts->until || (clock >= over && k > 0))
		{
			counts->cut = true;
			continue;
		}
		next->marked = RemindFire(next->sale, now, Min(part, limit - (int) counts->rows), counts);
		part -= next->marked;
		*last_shop = shop;
	}
}
