/*
 * fire.c
 *		Firing what is due of one sale: read, marked as fired, put into the
 *		outbox, in one transaction.
 *
 * Locks: the rows, of which nobody is waited for; the outbox comes after them,
 * as in remind.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "base/owner_query.h"
#include "notification/outbox.h"
#include "remind/due.h"
#include "remind/fire.h"
#include "remind/remind.h"

/* What fires of a sale in one look. */
typedef struct Firing
{
	const RemindSale *sale;
	bool		missed;
	RemindBitmap from;			/* this and farther is due */
	int			minutes;		/* what is said of reminders that are sent */
	OutboxAdded *added[REMIND_CHANNELS][REMIND_SLOTS];
} Firing;

/* Nothing if the sale is no longer as the tick has read it. */
static OwnerQuery unchanged = {
	"SELECT 1 FROM %1$s.coupon_template WHERE id OPERATOR(pg_catalog.=) $1"
	" AND receive_start OPERATOR(pg_catalog.=) $2"
	" AND (status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	"  OR receive_start OPERATOR(pg_catalog.<=) $3)",
	3, {INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

/*
 * RemindMinutesDue returns the least number of minutes that is due when so much
 * time is left.
 */
int
RemindMinutesDue(TimestampTz left)
{
	if (left <= 0)
		return 0;
	return (int) ((left + USECS_PER_MINUTE - 1) / USECS_PER_MINUTE);
}

/*
 * The sale may have been put off since the tick has read it.  Asked with the
 * snapshot of the rows taken: a backend that has made one of them for another start had
 * read that from the template before.
 */
static bool
IsUnchanged(const RemindSale *sale, TimestampTz now)
{
	Datum		args[3];
	bool		found;

	args[0] = Int64GetDatum(sale->template_id);
	args[1] = TimestampTzGetDatum(sale->start);
	args[2] = TimestampTzGetDatum(now);
	found = QueryRun(&unchanged, args, NULL) > 0;
	SPI_freetuptable(SPI_tuptable);
	return found;
}

/* How long before the start it is, in steps: what a reminder that leaves now has to say. */
static int
MinutesLeft(const RemindSale *sale, TimestampTz now)
{
	int			steps = (RemindMinutesDue(sale->start - now) + REMIND_STEP_MINUTES - 1) / REMIND_STEP_MINUTES;
	int			minutes = Max(steps, 1) * REMIND_STEP_MINUTES;

	return sale->early != 0 ? minutes : Min(minutes, REMIND_MAX_MINUTES);
}

/* Where one kind of reminder is gathered for the outbox. */
static OutboxAdded *
AddedOf(Firing *firing, int channel, int minutes)
{
	OutboxAdded **added = &firing->added[channel][minutes / REMIND_STEP_MINUTES - 1];

	if (*added == NULL)
	{
		OutboxEvent event = {.kind = REMIND_KIND, .channel = ChannelName(channel),
			.template_id = firing->sale->template_id,
			.minutes = firing->missed ? minutes : firing->minutes,
		.due_at = Min(RemindMoment(firing->sale->start, minutes), GetCurrentTimestamp())};

		*added = OutboxBegin(&event, firing->missed);
	}
	return *added;
}

/* The ids of what has fired before, with room between them for what is due. */
static void
PlaceOldIds(const RemindRow *row, RemindBitmap all, int64 *ids)
{
	RemindBitmap fired = row->fired;
	int64		old[REMIND_CHANNELS * REMIND_SLOTS];
	int			channel,
				minutes;

	(void) RemindIds(row->notifications, row->no_notifications, fired, old);
	for (int i = 0; RemindTakeFirst(&fired, &channel, &minutes); i++)
		ids[RemindPlace(all, channel, minutes)] = old[i];
}

/*
 * What is put into the outbox of all that is due: where several of a channel are, since the
 * sale was moved nearer or nobody was there to fire them, the nearest alone.  All that is
 * missed is recorded.
 */
static RemindBitmap
ToSend(const Firing *firing, RemindBitmap due)
{
	RemindBitmap nearest = 0;
	RemindBitmap seen = 0;

	if (firing->missed)
		return due;
	for (int minutes = REMIND_STEP_MINUTES; minutes <= REMIND_MAX_MINUTES; minutes += REMIND_STEP_MINUTES)
	{
		for (int channel = 0; channel < REMIND_CHANNELS; channel++)
		{
			RemindBitmap bit = due & RemindBit(channel, minutes);

			if (bit != 0 && (seen & ((RemindBitmap) 1 << channel)) == 0)
			{
				nearest |= bit;
				seen |= (RemindBitmap) 1 << channel;
			}
		}
	}
	return nearest;
}

/* Returns how many have fired of a row. */
static int
FireRow(Firing *firing, RemindRows *rows, const RemindRow *row, bool *held)
{
	RemindBitmap due = row->bitmap & ~row->fired & firing->from;
	RemindBitmap all = row->fired | due;
	RemindBitmap send = (due & (due - 1)) == 0 ? due : ToSend(firing, due);
	RemindBitmap left;
	int64		ids[REMIND_CHANNELS * REMIND_SLOTS] = {0};
	int			channel,
				minutes;

	if (due == 0)
		return 0;				/* what is left of it is for later */
	PlaceOldIds(row, all, ids);
	for (left = send; RemindTakeFirst(&left, &channel, &minutes);)
		ids[RemindPlace(all, channel, minutes)] =
			OutboxPut(AddedOf(firing, channel, minutes), row->user_id);
	if (RemindRowsMark(rows, all, ids))
		return pg_popcount64(due);
	for (left = send; RemindTakeFirst(&left, &channel, &minutes);)
		OutboxTakeBack(AddedOf(firing, channel, minutes));
	*held = true;
	return 0;
}

/* A look at the rows of the sale that may have something to fire. */
static void
BeginRows(RemindRows *rows, RemindSale *sale, int due, int limit)
{
	if (sale->goes_on)
		RemindRowsGoOn(rows, sale->template_id, &sale->position, sale->farthest, limit);
	else
		RemindRowsBegin(rows, sale->template_id, due, sale->farthest, limit);
}

/*
 * RemindFire fires at most so many rows of a sale, of what is due now or fires early, up to the time in
 * "counts", or records them as missed; returns how many it has taken: less than are due where
 * others hold some, none where the sale has changed meanwhile.  Between QueryBegin
 * and QueryEnd of the caller's.
 *
 * Where it goes on at the sale's position, it is over with the sale when that lies behind the
 * farthest reminders, or where the sale has changed.
 */
int
RemindFire(RemindSale *sale, TimestampTz now, int limit, RemindCounts *counts)
{
	int			due = RemindMinutesDue(sale->start - now);
	Firing		firing = {.sale = sale, .missed = sale->start <= now,
		.from = RemindFrom(due) | sale->early,
	.minutes = MinutesLeft(sale, now)};
	int64		ndue = 0;
	int64		nread = 0;
	RemindRows	rows;
	const RemindRow *row;
	int			n;

	BeginRows(&rows, sale, due, limit);
	if (IsUnchanged(sale, now))
	{
		/*
		 * A look that begins anew each time has to come past the rows that others hold.
		 */
		while (((sale->goes_on ? nread : ndue) == 0 || GetCurrentTimestamp() < counts->until) &&
			   (row = RemindRowsNext(&rows)) != NULL)
		{
			ndue += FireRow(&firing, &rows, row, &sale->held);
			nread++;
		}
	}
	else
		sale->position.minutes = sale->farthest + 1;
	for (int channel = 0; channel < REMIND_CHANNELS; channel++)
	{
		for (int slot = 0; slot < REMIND_SLOTS; slot++)
		{
			if (firing.added[channel][slot] != NULL)
				OutboxEnd(firing.added[channel][slot]);
		}
	}
	n = RemindRowsEnd(&rows);
	if (n == 0)
		return 0;
	/* A crash must not take back what may have been sent: it would fire anew. */
	ForceSyncCommit();
	counts->rows += n;
	*(firing.missed ? &counts->missed : &counts->fired) += ndue;
	return n;
}
