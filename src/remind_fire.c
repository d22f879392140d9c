/*
 * remind_fire.c
 *		Firing what is due of one sale: read, put into the outbox, marked as
 *		fired, in one transaction.
 *
 * Locks: the rows, with SKIP LOCKED; the outbox comes after them, as in
 * remind.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "query.h"
#include "remind.h"
#include "remind_fire.h"
#include "remind_mark.h"

/* Rows that are due, locked: as they will be, and what of them is new. */
typedef struct Portion
{
	Oid			relation;
	int			n;
	RemindMark *rows;
	RemindBitmap *due;
	int			ndue;			/* bits of all rows */
} Portion;

static OwnerQuery take_due = {
	"SELECT ctid, user_id, bitmap, fired, notifications, tableoid FROM %1$s.coupon_remind"
	" WHERE template_id = $1 AND next_minutes >= $2 AND next_minutes <= $3"
	" LIMIT $4 FOR UPDATE SKIP LOCKED",
	4, {INT8OID, INT2OID, INT2OID, INT4OID}
};

/* Nothing if the sale is no longer as the tick has read it. */
static OwnerQuery unchanged = {
	"SELECT 1 FROM %1$s.coupon_template WHERE id = $1 AND receive_start = $2"
	" AND (status = 'published' OR receive_start <= $3)",
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

/* The ids of what has fired before, with room between them for what is due. */
static int64 *
PlaceOldIds(Datum notifications, bool isnull, RemindBitmap fired, RemindBitmap due)
{
	RemindBitmap all = fired | due;
	int64	   *ids = palloc0(pg_popcount64(all) * sizeof(int64));
	int64		old[REMIND_CHANNELS * REMIND_SLOTS];
	int			channel,
				minutes;

	(void) RemindIds(notifications, isnull, fired, old);
	for (int i = 0; RemindTakeFirst(&fired, &channel, &minutes); i++)
		ids[RemindPlace(all, channel, minutes)] = old[i];
	return ids;
}

/* Reads and locks rows that are due; at most "limit". */
static void
TakeDue(const RemindSale *sale, int minutes, int limit, Portion *portion)
{
	Datum		args[4];
	bool		isnull;

	args[0] = Int64GetDatum(sale->template_id);
	args[1] = Int16GetDatum(minutes);
	args[2] = Int16GetDatum(sale->farthest);
	args[3] = Int32GetDatum(limit);
	portion->n = (int) QueryRun(&take_due, args, NULL);
	portion->rows = palloc(portion->n * sizeof(RemindMark));
	portion->due = palloc(portion->n * sizeof(RemindBitmap));
	portion->ndue = 0;
	for (int i = 0; i < portion->n; i++)
	{
		RemindMark *row = &portion->rows[i];
		RemindBitmap fired = DatumGetRemindBitmap(QueryValue(i, 4, &isnull));
		Datum		notifications;

		row->bitmap = DatumGetRemindBitmap(QueryValue(i, 3, &isnull));
		portion->due[i] = row->bitmap & ~fired & RemindFrom(minutes);
		portion->ndue += pg_popcount64(portion->due[i]);
		row->fired = fired | portion->due[i];
		row->nids = pg_popcount64(row->fired);
		notifications = QueryValue(i, 5, &isnull);
		row->ids = PlaceOldIds(notifications, isnull, fired, portion->due[i]);
		row->tid = *(ItemPointer) DatumGetPointer(QueryValue(i, 1, &isnull));
		row->user_id = DatumGetInt64(QueryValue(i, 2, &isnull));
		portion->relation = DatumGetObjectId(QueryValue(i, 6, &isnull));
	}
}

/*
 * The sale may have been put off since the tick has read it.  Asked with the
 * rows locked: who created one of them for another start has read that from
 * the template before.
 */
static bool
IsUnchanged(const RemindSale *sale, TimestampTz now)
{
	Datum		args[3];

	args[0] = Int64GetDatum(sale->template_id);
	args[1] = TimestampTzGetDatum(sale->start);
	args[2] = TimestampTzGetDatum(now);
	return QueryRun(&unchanged, args, NULL) > 0;
}

/* Puts one kind of reminder into the outbox for all rows that have it due. */
static void
AddToOutbox(const RemindSale *sale, int channel, int minutes, bool missed, Portion *portion)
{
	RemindBitmap bit = RemindBit(channel, minutes);
	int64	   *users = palloc(portion->n * sizeof(int64));
	int64	   *ids = palloc(portion->n * sizeof(int64));
	OutboxEvent event = {0};
	int			n = 0;

	for (int i = 0; i < portion->n; i++)
	{
		if (portion->due[i] & bit)
			users[n++] = portion->rows[i].user_id;
	}
	event.kind = REMIND_KIND;
	event.channel = RemindChannelName(channel);
	event.template_id = sale->template_id;
	event.minutes = minutes;
	event.due_at = RemindMoment(sale->start, minutes);
	if (missed)
		OutboxAddMissed(&event, users, n, ids);
	else
		OutboxAdd(&event, users, n, ids);
	n = 0;
	for (int i = 0; i < portion->n; i++)
	{
		RemindMark *row = &portion->rows[i];

		if (portion->due[i] & bit)
			row->ids[RemindPlace(row->fired, channel, minutes)] = ids[n++];
	}
	pfree(users);
	pfree(ids);
}

/*
 * RemindFire fires at most so many rows of a sale, of what is due now, or
 * records them as missed; returns how many it has taken: less than are due where
 * others hold some, none where the sale has changed meanwhile.  Between QueryBegin
 * and QueryEnd of the caller's.
 */
int
RemindFire(const RemindSale *sale, TimestampTz now, int limit, RemindCounts *counts)
{
	bool		missed = sale->start <= now;
	Portion		portion = {0};
	RemindBitmap all = 0;
	int			channel,
				minutes;

	TakeDue(sale, RemindMinutesDue(sale->start - now), limit, &portion);
	if (portion.n == 0 || !IsUnchanged(sale, now))
		return 0;
	for (int i = 0; i < portion.n; i++)
		all |= portion.due[i];
	while (RemindTakeFirst(&all, &channel, &minutes))
		AddToOutbox(sale, channel, minutes, missed, &portion);
	RemindMarkFired(portion.relation, sale->template_id, portion.rows, portion.n);
	/* A crash must not take back what may have been sent: it would fire anew. */
	ForceSyncCommit();
	counts->rows += portion.n;
	*(missed ? &counts->missed : &counts->fired) += portion.ndue;
	return portion.n;
}
