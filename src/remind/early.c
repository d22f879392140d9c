/*
 * early.c
 *		Reminders that fire before the quiet hours of their channel, since their
 *		moment falls into these and the channel says so (quiet_reminders).
 *
 * In the minutes before a channel is quiet, the sales that its reminders may be about are
 * gone through: those that begin while it is quiet, or within the hour after.  No index
 * knows whose reminders fall into quiet hours.  So a pass reads all that wait of such a sale,
 * for a moment at a time; shops take turns, and each sale goes on where it has come to.  One
 * more pass in the last seconds finds what was asked for meanwhile; where others held rows,
 * there are more in between.
 *
 * Whoever fires reminders of a sale in these minutes, also those that are due, fires both of
 * a row at once, so that the nearest alone is sent.
 * What is asked for later, or of a sale that is moved later, is not sent: the sender sees that
 * the channel is quiet.
 *
 * Locks: as in fire.c.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/channel_names.h"
#include "base/owner_query.h"
#include "remind/early.h"
#include "remind/turns.h"

#define EARLY_TIME (5 * USECS_PER_MINUTE)	/* before a channel is quiet */
#define LAST_TIME (30 * USECS_PER_SEC)	/* the same, for the last pass */
#define HELD_PAUSE (10 * USECS_PER_SEC) /* until the next pass, where rows were held */
#define PORTION 10000			/* rows that one look fires */

/* A pass through the sales, by channel. */
typedef struct Pass
{
	TimestampTz begins;			/* of the quiet hours that it is for */
	TimestampTz began_at;
	TimestampTz next_at;		/* the next one, when this is not under way */
	bool		held;			/* rows were passed over */
	MemoryContext context;		/* of what follows; NULL: it is not under way */
	RemindSale *sales;
	RemindDue  *left;			/* those that it has not come to the end of */
	int			nleft;
	int64		last_shop;
	TransactionId xid;			/* that has gone on with it last */
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
	"  AND t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text",
	2, {TIMESTAMPTZOID, TIMESTAMPTZOID}
};

static OwnerQuery gone_early = {
	"SELECT 1 FROM %1$s.coupon_quiet_hours q"
	" WHERE q.quiet_reminders OPERATOR(pg_catalog.=) 'before'::pg_catalog.text"
	" AND q.channel OPERATOR(pg_catalog.=) $1 AND q.begins OPERATOR(pg_catalog.<=) $2"
	" AND q.ends OPERATOR(pg_catalog.>) $2 AND q.begins OPERATOR(pg_catalog.<=) $3",
	3, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

/*
 * RemindQuietSoon reads the quiet hours that begin soon.  Between QueryBegin and QueryEnd of
 * the caller's, as the rest.
 */
void
RemindQuietSoon(TimestampTz now, QuietSoon *soon)
{
	Datum		args[2] = {TimestampTzGetDatum(now), TimestampTzGetDatum(now + EARLY_TIME)};

	soon->n = Min((int) QueryRun(&near_quiet, args, NULL), CHANNELS);
	for (int i = 0; i < soon->n; i++)
	{
		struct QuietHours *quiet = &soon->of[i];
		bool		isnull;

		quiet->channel = ChannelRequire(TextDatumGetCString(QueryRequired(i, 1, TEXTOID)));
		quiet->begins = DatumGetTimestampTz(QueryValue(i, 2, &isnull));
		quiet->ends = DatumGetTimestampTz(QueryValue(i, 3, &isnull));
	}
}

/*
 * RemindHasGoneEarly tells whether a reminder with its moment in quiet hours was fired before
 * them, if it has fired.
 */
bool
RemindHasGoneEarly(int channel, TimestampTz moment, TimestampTz now)
{
	Datum		args[3] = {CStringGetTextDatum(ChannelName(channel)), TimestampTzGetDatum(moment),
	TimestampTzGetDatum(now + EARLY_TIME)};

	return QueryRun(&gone_early, args, NULL) > 0;
}

/*
 * RemindQuietBits returns the reminders of a sale whose moments fall into quiet hours.
 */
RemindBitmap
RemindQuietBits(const QuietSoon *soon, TimestampTz start)
{
	RemindBitmap bits = 0;

	for (int i = 0; i < soon->n; i++)
	{
		for (int minutes = REMIND_STEP_MINUTES; minutes <= REMIND_MAX_MINUTES; minutes += REMIND_STEP_MINUTES)
		{
			TimestampTz moment = RemindMoment(start, minutes);

			if (soon->of[i].begins <= moment && moment < soon->of[i].ends)
				bits |= RemindBit(soon->of[i].channel, minutes);
		}
	}
	return bits;
}

/* The fewest minutes among reminders: a row that has one of them left has its next one there or farther. */
static int
FewestMinutes(RemindBitmap bits)
{
	int			minutes = REMIND_STEP_MINUTES;

	while (minutes < REMIND_MAX_MINUTES && (bits & ~RemindFrom(minutes + 1)) == 0)
		minutes += REMIND_STEP_MINUTES;
	return minutes;
}

/* A sale from the result; false: none of its reminders falls into quiet hours. */
static bool
ReadSale(int row, const QuietSoon *soon, RemindSale *sale)
{
	bool		isnull;

	sale->template_id = DatumGetInt64(QueryValue(row, 1, &isnull));
	sale->start = DatumGetTimestampTz(QueryValue(row, 2, &isnull));
	sale->shop_number = DatumGetInt64(QueryValue(row, 3, &isnull));
	sale->farthest = REMIND_MAX_MINUTES;
	sale->early = RemindQuietBits(soon, sale->start);
	sale->goes_on = true;
	sale->position.minutes = FewestMinutes(sale->early);
	return sale->early != 0;
}

static void
BeginPass(Pass *pass, const QuietSoon *soon, const struct QuietHours *quiet, TimestampTz now)
{
	Datum		args[2] = {TimestampTzGetDatum(quiet->begins),
	TimestampTzGetDatum(quiet->ends + REMIND_MAX_MINUTES * USECS_PER_MINUTE)};
	int			n = (int) QueryRun(&next_sales, args, NULL);

	*pass = (Pass) {.begins = quiet->begins, .began_at = now};
	pass->context = AllocSetContextCreate(TopMemoryContext, "coupon early reminders",
										  ALLOCSET_DEFAULT_SIZES);
	pass->sales = MemoryContextAllocZero(pass->context, Max(n, 1) * sizeof(RemindSale));
	pass->left = MemoryContextAllocZero(pass->context, Max(n, 1) * sizeof(RemindDue));
	for (int i = 0; i < n; i++)
	{
		if (ReadSale(i, soon, &pass->sales[pass->nleft]))
		{
			pass->left[pass->nleft].sale = &pass->sales[pass->nleft];
			pass->nleft++;
		}
	}
}

static void
Drop(Pass *pass)
{
	if (pass->context != NULL)
		MemoryContextDelete(pass->context);
	pass->context = NULL;
}

/* It is at its end; when there is to be another. */
static void
EndPass(Pass *pass, TimestampTz now)
{
	Drop(pass);
	pass->next_at = DT_NOEND;
	if (pass->began_at < pass->begins - LAST_TIME)
		pass->next_at = Max(now, pass->begins - LAST_TIME);
	if (pass->held)
		pass->next_at = Min(pass->next_at, now + HELD_PAUSE);
}

/* Go on with a pass for a moment; false: it is at its end. */
static bool
GoOn(Pass *pass, TimestampTz now, RemindCounts *counts)
{
	int			n = 0;

	pass->xid = GetCurrentTransactionId();
	RemindTakeTurns(pass->left, pass->nleft, &pass->last_shop, now, PORTION, counts);
	for (int i = 0; i < pass->nleft; i++)
	{
		const RemindSale *sale = pass->left[i].sale;

		pass->held |= sale->held;
		if (sale->position.minutes <= sale->farthest)
			pass->left[n++] = pass->left[i];
	}
	pass->nleft = n;
	return n > 0;
}

/* Whether what the pass has marked last is not there after all. */
static bool
IsUndone(const Pass *pass)
{
	return TransactionIdIsValid(pass->xid) && !TransactionIdIsCurrentTransactionId(pass->xid) &&
		!TransactionIdDidCommit(pass->xid);
}

/*
 * RemindEarly fires for a moment for channels that will be quiet soon; returns when to come
 * again.
 */
TimestampTz
RemindEarly(TimestampTz now, const QuietSoon *soon, RemindCounts *counts)
{
	TimestampTz next = DT_NOEND;

	for (int i = 0; i < soon->n; i++)
	{
		const struct QuietHours *quiet = &soon->of[i];
		Pass	   *pass = &passes[quiet->channel];
		RemindCounts fired = {0};
		bool		known = pass->begins == quiet->begins && !IsUndone(pass);

		if (known && pass->context == NULL && now < pass->next_at && pass->began_at <= now)
		{
			next = Min(next, pass->next_at);
			continue;
		}
		if (!known || pass->context == NULL)
		{
			Drop(pass);
			BeginPass(pass, soon, quiet, now);
		}
		if (!GoOn(pass, now, &fired))
			EndPass(pass, now);
		next = Min(next, pass->context != NULL ? now : pass->next_at);
		counts->rows += fired.rows;
		counts->fired += fired.fired;
		counts->missed += fired.missed;
	}
	return next;
}
