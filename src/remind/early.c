/*
 * early.c
 *		Reminders that fire before the quiet hours of their channel, since their
 *		moment falls into these and the channel says so (quiet_reminders).
 *
 * In the minutes before a channel is quiet, the sales that its reminders may be about are
 * gone through twice: those that begin while it is quiet, or within the hour after.  No index
 * knows whose reminders fall into quiet hours.  So a pass reads all that wait of such a sale,
 * for a moment at a time; shops take turns, and each sale goes on where it has come to.
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
#define PASS_PAUSE (4 * USECS_PER_MINUTE)	/* a pass reads all reminders of a sale that wait */
#define PORTION 10000			/* rows that one look fires */

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
	TimestampTz began_at;
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

/*
 * The reminders of a sale whose moments fall into quiet hours, and the fewest minutes among
 * them: where a row has one of them left, its next one is no nearer.
 */
static RemindBitmap
QuietBits(const Quiet *quiet, TimestampTz start, int *fewest)
{
	RemindBitmap bits = 0;

	for (int minutes = REMIND_MAX_MINUTES; minutes >= REMIND_STEP_MINUTES; minutes -= REMIND_STEP_MINUTES)
	{
		TimestampTz moment = RemindMoment(start, minutes);

		if (quiet->begins <= moment && moment < quiet->ends)
		{
			bits |= RemindBit(quiet->channel, minutes);
			*fewest = minutes;
		}
	}
	return bits;
}

/* A sale from the result; false: none of its reminders falls into quiet hours. */
static bool
ReadSale(int row, const Quiet *quiet, RemindSale *sale)
{
	bool		isnull;

	sale->template_id = DatumGetInt64(QueryValue(row, 1, &isnull));
	sale->start = DatumGetTimestampTz(QueryValue(row, 2, &isnull));
	sale->shop_number = DatumGetInt64(QueryValue(row, 3, &isnull));
	sale->farthest = REMIND_MAX_MINUTES;
	sale->early = QuietBits(quiet, sale->start, &sale->position.minutes);
	return sale->early != 0;
}

static void
BeginPass(Pass *pass, const Quiet *quiet, TimestampTz now)
{
	Datum		args[2] = {TimestampTzGetDatum(quiet->begins),
	TimestampTzGetDatum(quiet->ends + REMIND_MAX_MINUTES * USECS_PER_MINUTE)};
	int			n = (int) QueryRun(&next_sales, args, NULL);

	*pass = (Pass) {quiet->begins, now};
	pass->context = AllocSetContextCreate(TopMemoryContext, "coupon early reminders",
										  ALLOCSET_DEFAULT_SIZES);
	pass->sales = MemoryContextAllocZero(pass->context, Max(n, 1) * sizeof(RemindSale));
	pass->left = MemoryContextAllocZero(pass->context, Max(n, 1) * sizeof(RemindDue));
	for (int i = 0; i < n; i++)
	{
		if (ReadSale(i, quiet, &pass->sales[pass->nleft]))
		{
			pass->left[pass->nleft].sale = &pass->sales[pass->nleft];
			pass->nleft++;
		}
	}
}

static void
EndPass(Pass *pass)
{
	if (pass->context != NULL)
		MemoryContextDelete(pass->context);
	pass->context = NULL;
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
 * RemindEarly fires for a moment for channels that will be quiet soon; true: come again at
 * once.  Between QueryBegin and QueryEnd of the caller's.
 */
bool
RemindEarly(TimestampTz now, RemindCounts *counts)
{
	Quiet		near[CHANNELS];
	int			n = ReadNear(now, near);
	bool		more = false;

	for (int i = 0; i < n; i++)
	{
		Pass	   *pass = &passes[near[i].channel];
		RemindCounts fired = {0};
		bool		known = pass->begins == near[i].begins && !IsUndone(pass);

		if (known && pass->context == NULL &&
			pass->began_at <= now && now < pass->began_at + PASS_PAUSE)
			continue;
		if (!known || pass->context == NULL)
		{
			EndPass(pass);
			BeginPass(pass, &near[i], now);
		}
		if (GoOn(pass, now, &fired))
			more = true;
		else
			EndPass(pass);
		counts->rows += fired.rows;
		counts->fired += fired.fired;
		counts->missed += fired.missed;
	}
	return more;
}
