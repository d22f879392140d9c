/*
 * remind_tick.c
 *		What fires reminders: the worker's duty, and coupon_remind_tick.
 *
 * A tick looks at the sales that begin within the hour, one probe each into
 * the index on (template, next minutes): the farthest reminder that has not
 * fired tells whether any is due, and if not, when.  What is due is read by
 * that index, put into the outbox and marked as fired in one transaction.  So
 * a tick costs what is due, not what is stored, and what dies in the middle
 * has not happened.  The start is read from the template at each tick: a sale
 * that is moved needs no other change.
 *
 * A probe steps over the index entries of what has fired as long as an old
 * snapshot somewhere keeps them.  So a worker remembers a moment up to which
 * nothing due was left, and asks only those sales of which a slot of five
 * minutes has begun since, and only for that slot.  It looks at all again
 * - when a reminder is committed after its moment: its transaction, visible by
 *   then, reads the clock, so either our look has seen it or it tells us;
 * - when a template changes, or coupon_worker_wake asks;
 * - in any case from time to time, the more seldom the longer it takes, for
 *   what nobody tells: rows written by hand or by PREPARE TRANSACTION, or made
 *   for a start that was moved in the same moment.
 *
 * A reminder is due from its moment on, by the clock, until the sale begins;
 * then it is recorded as missed.  A tick sees such reminders of sales that have
 * begun in the last minutes.  Older ones, after the server was down or a start
 * was moved far into the past, are looked for when a worker starts and once an
 * hour: template by template through the index, never row by row.
 *
 * Locks: rows are taken with SKIP LOCKED, so that a tick waits for nobody and
 * two ticks divide the work; what another transaction holds is looked at again
 * a moment later.  The outbox comes after the row, as in remind.c.
 *
 * Where the reminders arrive by subscription nothing fires: the publisher does
 * it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "errors.h"
#include "id.h"
#include "outbox.h"
#include "query.h"
#include "remind.h"
#include "remind_mark.h"
#include "remind_tick.h"

PG_FUNCTION_INFO_V1(coupon_remind_tick);

#define PORTION 10000			/* rows of a tick of the worker's */
#define LOOK_AHEAD (REMIND_MAX_MINUTES * USECS_PER_MINUTE)
#define LOOK_BACK (5 * USECS_PER_MINUTE)
#define LAST_SLEEP 60000		/* ms: so late are rows that wake nobody */
#define LOCKED_SLEEP 250		/* ms until we look again at locked rows */
#define SWEEP_EVERY USECS_PER_HOUR
#define ALL_PAUSE 1000			/* ms between two looks at all, or ... */
#define ALL_SHARE 10			/* ... so many times what such a look takes */

/* A sale with reminders that have not fired. */
typedef struct Sale
{
	int64		template_id;
	TimestampTz start;
	int			farthest;		/* minutes */
} Sale;

/* Rows that are due, locked: as they will be, and what of them is new. */
typedef struct Portion
{
	Oid			relation;
	int			n;
	RemindMark *rows;
	RemindBitmap *due;
	int			ndue;			/* bits of all rows */
} Portion;

/* What a tick has done. */
typedef struct Counts
{
	int64		rows;
	int64		fired;
	int64		missed;
	bool		any_due;		/* when we looked */
} Counts;

/* What this worker knows of the sales near. */
static TimestampTz drained = 0; /* what was due then has fired; 0: unknown */
static TimestampTz all_looked_at = 0;
static int	all_pause;			/* ms until that is to be done again */
static bool all_wanted = false;

static OwnerQuery near_sales = {
	"SELECT t.id, t.receive_start, (SELECT max(r.next_minutes)"
	"  FROM %1$s.coupon_remind r WHERE r.template_id = t.id)"
	" FROM %1$s.coupon_template t WHERE t.receive_start > $1 AND t.receive_start <= $2"
	" AND (t.status = 'published' OR t.receive_start <= $3)",
	3, {TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

/* The same sales; what is left of them is not asked. */
static OwnerQuery near_starts = {
	"SELECT t.id, t.receive_start, 0::int2 FROM %1$s.coupon_template t"
	" WHERE t.receive_start > $1 AND t.receive_start <= $2"
	" AND (t.status = 'published' OR t.receive_start <= $3)",
	3, {TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

static OwnerQuery farthest_between = {
	"SELECT max(next_minutes) FROM %1$s.coupon_remind"
	" WHERE template_id = $1 AND next_minutes >= $2 AND next_minutes < $3",
	3, {INT8OID, INT2OID, INT2OID}
};

/*
 * The first sale after a template that has begun with reminders left.  Not
 * those of templates that are not there: a restore may yet bring them.
 */
static OwnerQuery begun_sale = {
	REMIND_TEMPLATES_AFTER_1
	" SELECT t.id, t.receive_start, t.farthest FROM reminded CROSS JOIN LATERAL"
	"  (SELECT c.id, c.receive_start, (SELECT max(r.next_minutes)"
	"   FROM %1$s.coupon_remind r WHERE r.template_id = c.id) AS farthest"
	"  FROM %1$s.coupon_template c WHERE c.id = reminded.id OFFSET 0) t"
	" WHERE t.receive_start <= $2 AND t.farthest IS NOT NULL LIMIT 1",
	2, {INT8OID, TIMESTAMPTZOID}
};

static OwnerQuery take_due = {
	"SELECT ctid, user_id, bitmap, fired, notifications, tableoid FROM %1$s.coupon_remind"
	" WHERE template_id = $1 AND next_minutes >= $2 AND next_minutes <= $3"
	" LIMIT $4 FOR UPDATE SKIP LOCKED",
	4, {INT8OID, INT2OID, INT2OID, INT4OID}
};

static OwnerQuery subscribed = {
	"SELECT 1 FROM pg_subscription_rel s JOIN pg_class c ON c.oid = s.srrelid"
	" JOIN pg_namespace n ON n.oid = c.relnamespace"
	" WHERE n.nspname = $1 AND c.relname = 'coupon_remind'",
	1, {NAMEOID}
};

/* The least number of minutes that is due when so much time is left. */
static int
MinutesDue(TimestampTz left)
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
TakeDue(const Sale *sale, int minutes, int limit, Portion *portion)
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

/* Puts one kind of reminder into the outbox for all rows that have it due. */
static void
AddToOutbox(const Sale *sale, int channel, int minutes, bool missed, Portion *portion)
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

/* Fires at most so many rows of a sale; returns how many it has taken. */
static int
Fire(const Sale *sale, TimestampTz now, int limit, Counts *counts)
{
	bool		missed = sale->start <= now;
	Portion		portion = {0};
	RemindBitmap all = 0;
	int			channel,
				minutes;

	TakeDue(sale, MinutesDue(sale->start - now), limit, &portion);
	if (portion.n == 0)
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

/* The sales of the result with something left, in memory of SPI's. */
static int
ReadSales(int rows, Sale **sales)
{
	int			n = 0;

	*sales = palloc(Max(rows, 1) * sizeof(Sale));
	for (int i = 0; i < rows; i++)
	{
		Sale	   *sale = *sales + n;
		bool		isnull;

		sale->template_id = DatumGetInt64(QueryValue(i, 1, &isnull));
		sale->start = DatumGetTimestampTz(QueryValue(i, 2, &isnull));
		sale->farthest = DatumGetInt16(QueryValue(i, 3, &isnull));
		if (!isnull)
			n++;
	}
	return n;
}

/* The sales that begin within the hour, or have begun just now. */
static int
ReadNear(OwnerQuery *query, TimestampTz now, Sale **sales)
{
	Datum		args[3];

	args[0] = TimestampTzGetDatum(now - LOOK_BACK);
	/* A sale may come within the hour while we sleep. */
	args[1] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, LAST_SLEEP) + LOOK_AHEAD);
	args[2] = TimestampTzGetDatum(now);
	return ReadSales((int) QueryRun(query, args, NULL), sales);
}

/* Fire what is due of a sale that has something due; returns when to come again. */
static TimestampTz
FireSale(const Sale *sale, TimestampTz now, int limit, Counts *counts)
{
	counts->any_due = true;
	if (Fire(sale, now, limit - (int) counts->rows, counts) == 0)
		return TimestampTzPlusMilliseconds(now, LOCKED_SLEEP);
	return now;
}

/*
 * Fire what is due now of the sales near, at most "limit" rows.  Returns when
 * to come again.
 */
static TimestampTz
FireNear(TimestampTz now, int limit, Counts *counts)
{
	TimestampTz next = TimestampTzPlusMilliseconds(now, LAST_SLEEP);
	TimestampTz begin = GetCurrentTimestamp();
	Sale	   *sales;
	int			n = ReadNear(&near_sales, now, &sales);

	all_pause = Max(ALL_PAUSE, ALL_SHARE *
					TimestampDifferenceMilliseconds(begin, GetCurrentTimestamp()));
	all_pause = Min(all_pause, LAST_SLEEP);
	for (int i = 0; i < n && counts->rows < limit; i++)
	{
		TimestampTz moment = RemindMoment(sales[i].start, sales[i].farthest);

		if (moment <= now)
			moment = FireSale(&sales[i], now, limit, counts);
		next = Min(next, moment);
	}
	return next;
}

/* The farthest slot, in minutes, that is nearer to the start; 0: none. */
static int
SlotBelow(int minutes)
{
	if (minutes <= 0)
		return 0;
	return Min((minutes - 1) / REMIND_STEP_MINUTES * REMIND_STEP_MINUTES,
			   REMIND_MAX_MINUTES);
}

/* Learn the farthest that is due now and was not when all was drained; 0: none. */
static void
AskSince(Sale *sale, int due)
{
	int			known = MinutesDue(sale->start - drained);
	Datum		args[3];
	bool		isnull;

	sale->farthest = 0;
	if (SlotBelow(known) == 0 || SlotBelow(known) < due)
		return;
	args[0] = Int64GetDatum(sale->template_id);
	args[1] = Int16GetDatum(due);
	args[2] = Int16GetDatum(SlotBelow(known) + 1);
	(void) QueryRun(&farthest_between, args, NULL);
	sale->farthest = DatumGetInt16(QueryValue(0, 1, &isnull));
	if (isnull)
		sale->farthest = 0;
}

/* FireNear, but only of what has become due since all was drained. */
static TimestampTz
FireSince(TimestampTz now, int limit, Counts *counts)
{
	TimestampTz next = TimestampTzPlusMilliseconds(all_looked_at, all_pause + 1);
	Sale	   *sales;
	int			n = ReadNear(&near_starts, now, &sales);

	for (int i = 0; i < n && counts->rows < limit; i++)
	{
		int			due = MinutesDue(sales[i].start - now);

		AskSince(&sales[i], due);
		if (sales[i].farthest > 0)
			next = Min(next, FireSale(&sales[i], now, limit, counts));
		if (SlotBelow(due) > 0)
			next = Min(next, RemindMoment(sales[i].start, SlotBelow(due)));
	}
	return next;
}

/* A worker's look at the sales near; returns when to come again. */
static TimestampTz
Look(TimestampTz now, int limit, Counts *counts)
{
	TimestampTz next;

	/* A clock that was set back tells nothing about what was due before. */
	if (all_wanted || now < drained || drained == 0 ||
		TimestampDifferenceExceeds(all_looked_at, now, all_pause))
	{
		next = FireNear(now, limit, counts);
		all_looked_at = now;
		/* It may have been found late; so until it has fired. */
		all_wanted = counts->any_due;
	}
	else
		next = FireSince(now, limit, counts);
	if (!counts->any_due)
		drained = now;
	return next;
}

/*
 * Record what is left of the first sale after a template that has begun.
 * False: there is none.
 */
static bool
FireBegun(int64 *after, TimestampTz now, int limit, Counts *counts)
{
	Datum		args[2] = {Int64GetDatum(*after), TimestampTzGetDatum(now)};
	Sale	   *sale;

	if (ReadSales((int) QueryRun(&begun_sale, args, NULL), &sale) == 0)
		return false;
	/* Drained, it is not found again. */
	if (Fire(sale, now, limit, counts) == 0)
		*after = sale->template_id;
	return true;
}

static bool
IsSubscribed(void)
{
	Datum		arg = CStringGetDatum(CatalogGet()->schema);

	return QueryRun(&subscribed, &arg, NULL) > 0;
}

/* One portion of the sweep over sales that have begun; false: it is over. */
static bool
Sweep(TimestampTz now, Counts *counts)
{
	static TimestampTz next = 0;
	static int64 after = 0;

	if (now < next)
		return false;
	if (FireBegun(&after, now, PORTION, counts))
		return true;
	after = 0;
	next = now + SWEEP_EVERY;
	return false;
}

/*
 * RemindTick is the worker's duty: fires a portion of what is due.  Returns
 * after how many milliseconds to come again although nobody wakes us.
 */
long
RemindTick(bool woken)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = TimestampTzPlusMilliseconds(now, LAST_SLEEP);
	Counts		counts = {0};
	QueryScope	scope;

	QueryBegin(&scope);
	QueryPlanByIndex();
	if (IsSubscribed())
		drained = 0;
	else
	{
		next = Look(now, PORTION, &counts);
		if (counts.rows == 0 && Sweep(now, &counts))
			next = now;
	}
	QueryEnd(&scope);
	/* A look may have taken long. */
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next);
}

/*
 * RemindTickAll, a duty before that, makes it look at all that is due, also at
 * what has been looked for before.
 */
long
RemindTickAll(bool woken)
{
	all_wanted = true;
	return -1;
}

/* Fire a portion, of what is near or else of what has begun; false: no more. */
static bool
FirePortion(int64 *after, Counts *all)
{
	TimestampTz now = GetCurrentTimestamp();
	Counts		counts = {0};
	QueryScope	scope;
	bool		more = false;

	QueryBegin(&scope);
	QueryPlanByIndex();
	if (!IsSubscribed())
	{
		(void) FireNear(now, PORTION, &counts);
		more = counts.rows > 0 || FireBegun(after, now, PORTION, &counts);
	}
	QueryEnd(&scope);
	all->fired += counts.fired;
	all->missed += counts.missed;
	return more;
}

/*
 * coupon_remind_tick() → fired, missed: fire all that is due, for those who
 * have no worker.
 *
 * Raises VC010 unless the transaction is READ COMMITTED: with an old snapshot
 * it would fail on rows that were fired since.
 */
Datum
coupon_remind_tick(PG_FUNCTION_ARGS)
{
	Counts		all = {0};
	TupleDesc	desc;
	int64		after = 0;
	Datum		values[2];
	bool		nulls[2] = {false};

	IdRequireUsable();
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_WRONG_ISOLATION),
				 errmsg("coupon_remind_tick needs a READ COMMITTED transaction"),
				 errhint("Run it in a transaction of its own.")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	while (FirePortion(&after, &all))
		CHECK_FOR_INTERRUPTS();
	values[0] = Int64GetDatum(all.fired);
	values[1] = Int64GetDatum(all.missed);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
