/*
 * early.c
 *		Reminders that fire before the quiet hours of their channel, since their
 *		moment falls into these and the channel says so (quiet_reminders).
 *
 * In the minutes before a channel is quiet, the sales that its reminders may be about are
 * gone through twice: those that begin while it is quiet, or within the hour after.
 * What is asked for later, or of a sale that is moved later, is not sent: the sender sees that
 * the channel is quiet.
 *
 * Locks: as in fire.c.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/channel_names.h"
#include "base/owner_query.h"
#include "remind/early.h"

#define EARLY_TIME (5 * USECS_PER_MINUTE)	/* before a channel is quiet */
#define PASS_PAUSE (4 * USECS_PER_MINUTE)	/* a pass reads all reminders of a sale that wait */
#define LOOK_TIME (100 * INT64CONST(1000))	/* microseconds */
#define PAGE 100				/* sales that one look lists */

/* Quiet hours that are near, of a channel by its number. */
typedef struct Quiet
{
	int			channel;
	TimestampTz begins;
	TimestampTz ends;
} Quiet;

/* A pass through the sales, by channel. */
typedef struct Pass
{
	TimestampTz begins;			/* of the quiet hours that it is for */
	int64		after;			/* the sale that it has come to */
	TimestampTz ended_at;		/* the last one */
} Pass;

static Pass passes[CHANNELS];

static OwnerQuery near_quiet = {
	"SELECT q.channel, q.begins, q.ends FROM %1$s.coupon_quiet_hours q"
	" WHERE q.quiet_reminders OPERATOR(pg_catalog.=) 'before'::pg_catalog.text"
	" AND q.begins OPERATOR(pg_catalog.>) $1 AND q.begins OPERATOR(pg_catalog.<=) $2",
	2, {TIMESTAMPTZOID, TIMESTAMPTZOID}
};

static OwnerQuery next_sales = {
	"SELECT t.id, t.receive_start, t.shop_number FROM %1$s.coupon_template t"
	" WHERE t.receive_start OPERATOR(pg_catalog.>) $1 AND t.receive_start OPERATOR(pg_catalog.<=) $2"
	"  AND t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	"  AND t.id OPERATOR(pg_catalog.>) $3 AND EXISTS (SELECT FROM ONLY %1$s.coupon_remind r"
	"   WHERE r.template_id OPERATOR(pg_catalog.=) t.id AND r.next_minutes OPERATOR(pg_catalog.>) 0::pg_catalog.int2)"
	" ORDER BY t.id LIMIT $4",
	4, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID}
};

/* The quiet hours that begin soon; returns how many. */
static int
ReadNear(TimestampTz now, Quiet *near)
{
	Datum		args[2] = {TimestampTzGetDatum(now), TimestampTzGetDatum(now + EARLY_TIME)};
	int			n = Min((int) QueryRun(&near_quiet, args, NULL), CHANNELS);

	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		near[i].channel = ChannelRequire(TextDatumGetCString(QueryRequired(i, 1, TEXTOID)));
		near[i].begins = DatumGetTimestampTz(QueryValue(i, 2, &isnull));
		near[i].ends = DatumGetTimestampTz(QueryValue(i, 3, &isnull));
	}
	return n;
}

/* The reminders of a sale whose moments fall into quiet hours. */
static RemindBitmap
QuietBits(const Quiet *quiet, TimestampTz start)
{
	RemindBitmap bits = 0;

	for (int minutes = REMIND_STEP_MINUTES; minutes <= REMIND_MAX_MINUTES; minutes += REMIND_STEP_MINUTES)
	{
		TimestampTz moment = RemindMoment(start, minutes);

		if (quiet->begins <= moment && moment < quiet->ends)
			bits |= RemindBit(quiet->channel, minutes);
	}
	return bits;
}

/* The next sales that reminders for quiet hours may be about, in the order of ids. */
static int
ReadSales(const Quiet *quiet, int64 after, RemindSale *sales)
{
	Datum		args[4] = {TimestampTzGetDatum(quiet->begins),
		TimestampTzGetDatum(quiet->ends + REMIND_MAX_MINUTES * USECS_PER_MINUTE),
	Int64GetDatum(after), Int64GetDatum(PAGE)};
	int			n = (int) QueryRun(&next_sales, args, NULL);

	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		sales[i].template_id = DatumGetInt64(QueryValue(i, 1, &isnull));
		sales[i].start = DatumGetTimestampTz(QueryValue(i, 2, &isnull));
		sales[i].shop_number = DatumGetInt64(QueryValue(i, 3, &isnull));
		sales[i].farthest = REMIND_MAX_MINUTES;
		sales[i].early = QuietBits(quiet, sales[i].start);
	}
	return n;
}

/* Go on with a pass for quiet hours, for a moment; true: it is not at its end. */
static bool
GoOn(const Quiet *quiet, Pass *pass, TimestampTz now, int limit, RemindCounts *counts)
{
	RemindSale	sales[PAGE];
	int			n = ReadSales(quiet, pass->after, sales);

	counts->until = GetCurrentTimestamp() + LOOK_TIME;
	for (int i = 0; i < n; i++)
	{
		int64		before = counts->rows;

		if (sales[i].early != 0)
			(void) RemindFire(&sales[i], now, limit, counts);
		/* Where it has ended for the time or the limit, the same sale may have more. */
		if (counts->rows > before &&
			(counts->rows >= limit || GetCurrentTimestamp() >= counts->until))
			return true;
		pass->after = sales[i].template_id;
		if (GetCurrentTimestamp() >= counts->until)
			return true;
	}
	return n == PAGE;
}

/*
 * RemindEarly fires at most so many rows for channels that will be quiet soon; true: come
 * again at once.  Between QueryBegin and QueryEnd of the caller's.
 */
bool
RemindEarly(TimestampTz now, int limit, RemindCounts *counts)
{
	Quiet		near[CHANNELS];
	int			n = ReadNear(now, near);

	for (int i = 0; i < n; i++)
	{
		Pass	   *pass = &passes[near[i].channel];

		if (pass->begins != near[i].begins)
			*pass = (Pass) {near[i].begins};
		if (pass->ended_at <= now && now < pass->ended_at + PASS_PAUSE)
			continue;
		if (GoOn(&near[i], pass, now, limit, counts))
			return true;
		pass->ended_at = now;
		pass->after = 0;
	}
	return false;
}
