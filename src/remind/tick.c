/*
 * tick.c
 *		What fires reminders: the worker's job, and coupon_remind_tick.
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
 * Locks: rows that others hold are passed over, so that a tick waits for nobody and
 * two ticks divide the work; a sale of which another transaction holds something
 * is asked again a moment later, it alone.  The outbox comes after the row, as
 * in remind.c.
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
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/errors.h"
#include "base/id.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "remind/early.h"
#include "remind/remind.h"
#include "remind/tick.h"
#include "remind/turns.h"

PG_FUNCTION_INFO_V1(coupon_remind_tick);

#define PORTION 10000			/* rows of a tick of the worker's */
#define SWEEP_TIME (200 * INT64CONST(1000))	/* microseconds for one sale of the sweep */
#define LOOK_AHEAD (REMIND_MAX_MINUTES * USECS_PER_MINUTE)
#define LOOK_BACK (5 * USECS_PER_MINUTE)
#define LAST_SLEEP 60000		/* ms: so late are rows that wake nobody */
#define LOCKED_SLEEP 250		/* ms until we look again at locked rows */
#define SWEEP_EVERY USECS_PER_HOUR
#define ALL_PAUSE 1000			/* ms between two looks at all, or ... */
#define ALL_SHARE 10			/* ... so many times what such a look takes */

/* What this worker knows of the sales near. */
static TimestampTz drained = 0; /* what was due then has fired, but for held sales; 0: unknown */
static TimestampTz all_looked_at = 0;
static int	all_pause;			/* ms until that is to be done again */
static bool all_wanted = false;

static QuietSoon soon;			/* as this look finds it */

/* Sales of which others held what was due: they are asked for all of it. */
static int64 *held = NULL;
static int	nheld = 0;
static int	max_held = 0;

static OwnerQuery near_sales = {
	"SELECT t.id, t.receive_start, (SELECT pg_catalog.max(r.next_minutes)"
	"  FROM ONLY %1$s.coupon_remind r WHERE r.template_id OPERATOR(pg_catalog.=) t.id), t.shop_number"
	" FROM %1$s.coupon_template t WHERE t.receive_start OPERATOR(pg_catalog.>) $1"
	"  AND t.receive_start OPERATOR(pg_catalog.<=) $2"
	" AND (t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	"  OR t.receive_start OPERATOR(pg_catalog.<=) $3)",
	3, {TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

/* The same sales; what is left of them is not asked. */
static OwnerQuery near_starts = {
	"SELECT t.id, t.receive_start, 0::pg_catalog.int2, t.shop_number FROM %1$s.coupon_template t"
	" WHERE t.receive_start OPERATOR(pg_catalog.>) $1"
	"  AND t.receive_start OPERATOR(pg_catalog.<=) $2"
	" AND (t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	"  OR t.receive_start OPERATOR(pg_catalog.<=) $3)",
	3, {TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

static OwnerQuery farthest_between = {
	"SELECT pg_catalog.max(next_minutes) FROM ONLY %1$s.coupon_remind"
	" WHERE template_id OPERATOR(pg_catalog.=) $1 AND next_minutes OPERATOR(pg_catalog.>=) $2"
	"  AND next_minutes OPERATOR(pg_catalog.<) $3",
	3, {INT8OID, INT2OID, INT2OID}
};

/*
 * The first sale after a template that has begun with reminders left.  Not
 * those of templates that are not there: a restore may yet bring them.
 */
static OwnerQuery begun_sale = {
	REMIND_TEMPLATES_AFTER_1
	" SELECT t.id, t.receive_start, t.farthest, 0::pg_catalog.int8 FROM reminded CROSS JOIN LATERAL"
	"  (SELECT c.id, c.receive_start, (SELECT pg_catalog.max(r.next_minutes)"
	"   FROM ONLY %1$s.coupon_remind r WHERE r.template_id OPERATOR(pg_catalog.=) c.id) AS farthest"
	"  FROM %1$s.coupon_template c WHERE c.id OPERATOR(pg_catalog.=) reminded.id OFFSET 0) t"
	" WHERE t.receive_start OPERATOR(pg_catalog.<=) $2 AND t.farthest IS NOT NULL LIMIT 1",
	2, {INT8OID, TIMESTAMPTZOID}
};

static OwnerQuery subscribed = {
	"SELECT 1 FROM pg_catalog.pg_subscription_rel s JOIN pg_catalog.pg_class c"
	" ON c.oid OPERATOR(pg_catalog.=) s.srrelid"
	" JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
	" WHERE n.nspname OPERATOR(pg_catalog.=) $1"
	"  AND c.relname OPERATOR(pg_catalog.=) 'coupon_remind'::pg_catalog.name",
	1, {NAMEOID}
};

/* The sales of the result with something left, in memory of SPI's. */
static int
ReadSales(int rows, RemindSale **sales)
{
	int			n = 0;

	*sales = palloc(Max(rows, 1) * sizeof(RemindSale));
	for (int i = 0; i < rows; i++)
	{
		RemindSale *sale = *sales + n;
		Datum		shop;
		bool		isnull;

		sale->template_id = DatumGetInt64(QueryValue(i, 1, &isnull));
		sale->start = DatumGetTimestampTz(QueryValue(i, 2, &isnull));
		shop = QueryValue(i, 4, &isnull);
		sale->shop_number = isnull ? 0 : DatumGetInt64(shop);
		sale->early = 0;
		sale->goes_on = sale->held = false;
		sale->farthest = DatumGetInt16(QueryValue(i, 3, &isnull));
		if (!isnull)
			n++;
	}
	return n;
}

/* The sales that begin within the hour, or have begun just now. */
static int
ReadNear(OwnerQuery *query, TimestampTz now, RemindSale **sales)
{
	Datum		args[3];

	args[0] = TimestampTzGetDatum(now - LOOK_BACK);
	/* A sale may come within the hour while we sleep. */
	args[1] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, LAST_SLEEP) + LOOK_AHEAD);
	args[2] = TimestampTzGetDatum(now);
	return ReadSales((int) QueryRun(query, args, NULL), sales);
}

static void
Hold(int64 template_id)
{
	if (nheld == max_held)
	{
		int			wanted = Max(2 * max_held, 16);

		if (held == NULL)
			held = MemoryContextAlloc(AllocSetContextCreate(TopMemoryContext,
															"coupon held reminders",
															ALLOCSET_SMALL_SIZES),
									  wanted * sizeof(int64));
		else
			held = repalloc(held, wanted * sizeof(int64));
		max_held = wanted;
	}
	held[nheld++] = template_id;
}

static int
CompareIds(const void *a, const void *b)
{
	int64		left = *(const int64 *) a;
	int64		right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/*
 * Fire of the sales that are due, at most "limit" rows and for a moment.  Returns when to
 * come again.  A sale that was held, or has changed meanwhile, stays so until nothing of it
 * is due.
 */
static TimestampTz
FireDue(RemindDue *due, int ndue, TimestampTz now, int limit, RemindCounts *counts)
{
	static int64 last_shop = 0;
	TimestampTz next = DT_NOEND;

	for (int i = 0; i < ndue; i++)
		due[i].sale->early = RemindQuietBits(&soon, due[i].sale->start);
	RemindTakeTurns(due, ndue, &last_shop, now, limit, counts);
	for (int i = 0; i < ndue; i++)
	{
		bool		is_held = due[i].marked == 0;

		if (is_held || due[i].was_held)
			Hold(due[i].sale->template_id);
		next = Min(next, is_held ? TimestampTzPlusMilliseconds(now, LOCKED_SLEEP) : now);
	}
	return next;
}

/*
 * Fire what is due now of the sales near, at most "limit" rows.  Returns when
 * to come again.
 */
static TimestampTz
FireNear(TimestampTz now, int limit, RemindCounts *counts)
{
	TimestampTz next = TimestampTzPlusMilliseconds(now, LAST_SLEEP);
	TimestampTz begin = GetCurrentTimestamp();
	RemindSale *sales;
	int			n = ReadNear(&near_sales, now, &sales);
	RemindDue  *due = palloc(Max(n, 1) * sizeof(RemindDue));
	int			ndue = 0;

	all_pause = Max(ALL_PAUSE, ALL_SHARE *
					TimestampDifferenceMilliseconds(begin, GetCurrentTimestamp()));
	all_pause = Min(all_pause, LAST_SLEEP);
	nheld = 0;
	for (int i = 0; i < n; i++)
	{
		TimestampTz moment = RemindMoment(sales[i].start, sales[i].farthest);

		if (moment <= now)
			due[ndue++] = (RemindDue) {&sales[i]};
		else
			next = Min(next, moment);
	}
	return Min(next, FireDue(due, ndue, now, limit, counts));
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

/*
 * Learn the farthest that is due now and was not when all was drained, or any
 * that is due; 0: none.
 */
static void
AskForDue(RemindSale *sale, int due, bool any)
{
	int			most = any ? REMIND_MAX_MINUTES : SlotBelow(RemindMinutesDue(sale->start - drained));
	Datum		args[3];
	bool		isnull;

	sale->farthest = 0;
	if (most == 0 || most < due)
		return;
	args[0] = Int64GetDatum(sale->template_id);
	args[1] = Int16GetDatum(due);
	args[2] = Int16GetDatum(most + 1);
	(void) QueryRun(&farthest_between, args, NULL);
	sale->farthest = DatumGetInt16(QueryValue(0, 1, &isnull));
	if (isnull)
		sale->farthest = 0;
	SPI_freetuptable(SPI_tuptable); /* sales are many */
}

/*
 * FireNear, but only of what has become due since all was drained, and of what
 * was held then.
 */
static TimestampTz
FireSince(TimestampTz now, int limit, RemindCounts *counts)
{
	TimestampTz next = TimestampTzPlusMilliseconds(all_looked_at, all_pause + 1);
	int			nbefore = nheld;
	int64	   *before = palloc(Max(nbefore, 1) * sizeof(int64));
	RemindSale *sales;
	int			n = ReadNear(&near_starts, now, &sales);
	RemindDue  *due = palloc(Max(n, 1) * sizeof(RemindDue));
	int			ndue = 0;

	if (nbefore > 0)
		memcpy(before, held, nbefore * sizeof(int64));
	qsort(before, nbefore, sizeof(int64), CompareIds);
	nheld = 0;
	for (int i = 0; i < n; i++)
	{
		RemindSale *sale = &sales[i];
		bool		was_held = bsearch(&sale->template_id, before, nbefore,
									   sizeof(int64), CompareIds) != NULL;
		int			left = RemindMinutesDue(sale->start - now);

		AskForDue(sale, left, was_held);
		if (sale->farthest > 0)
			due[ndue++] = (RemindDue) {sale, was_held};
		if (SlotBelow(left) > 0)
			next = Min(next, RemindMoment(sale->start, SlotBelow(left)));
	}
	return Min(next, FireDue(due, ndue, now, limit, counts));
}

/* A worker's look at the sales near; returns when to come again. */
static TimestampTz
Look(TimestampTz now, int limit, RemindCounts *counts)
{
	TimestampTz next;

	/* A clock that was set back tells nothing about what was due before. */
	bool		all = all_wanted || now < drained || drained == 0 ||
		TimestampDifferenceExceeds(all_looked_at, now, all_pause);

	all_wanted = true;			/* unless we come to the end */
	if (all)
	{
		next = FireNear(now, limit, counts);
		all_looked_at = now;
	}
	else
		next = FireSince(now, limit, counts);
	/* It may have been found late; so until it has fired. */
	all_wanted = all && (counts->rows > 0 || counts->cut);
	if (counts->rows == 0 && !counts->cut)
		drained = now;
	return next;
}

/*
 * Record what is left of the first sale after a template that has begun.
 * False: there is none.
 */
static bool
FireBegun(int64 *after, TimestampTz now, int limit, RemindCounts *counts)
{
	Datum		args[2] = {Int64GetDatum(*after), TimestampTzGetDatum(now)};
	RemindSale *sale;

	counts->until = GetCurrentTimestamp() + SWEEP_TIME;
	if (ReadSales((int) QueryRun(&begun_sale, args, NULL), &sale) == 0)
		return false;
	/* Drained, it is not found again. */
	if (RemindFire(sale, now, limit, counts) == 0)
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
Sweep(TimestampTz now, RemindCounts *counts)
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
 * RemindTick is the worker's job: fires a portion of what is due.  Returns
 * after how many milliseconds to come again although nobody wakes us.
 */
long
RemindTick(bool woken)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = TimestampTzPlusMilliseconds(now, LAST_SLEEP);
	RemindCounts counts = {0};
	QueryScope	scope;

	QueryBegin(&scope);
	QueryPlanByIndex();
	if (IsSubscribed())
		drained = 0;
	else
	{
		RemindQuietSoon(now, &soon);
		next = Look(now, PORTION, &counts);
		if (counts.rows == 0 && Sweep(now, &counts))
			next = now;
		next = Min(next, RemindEarly(now, &soon, &counts));
	}
	QueryEnd(&scope);
	/* A look may have taken long. */
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next);
}

/*
 * RemindTickAll, a job before that, makes it look at all that is due, also at
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
FirePortion(int64 *after, RemindCounts *all)
{
	TimestampTz now = GetCurrentTimestamp();
	RemindCounts counts = {0};
	QueryScope	scope;
	bool		more = false;

	QueryBegin(&scope);
	QueryPlanByIndex();
	if (!IsSubscribed())
	{
		RemindQuietSoon(now, &soon);
		(void) FireNear(now, PORTION, &counts);
		more = counts.rows > 0 || counts.cut || RemindEarly(now, &soon, &counts) <= now ||
			FireBegun(after, now, PORTION, &counts);
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
	RemindCounts all = {0};
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
	RoleRequireUnbound(ROLE_OPERATOR, "It fires reminders of all shops.");	/* see coupon_expire */
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	while (FirePortion(&after, &all))
		CHECK_FOR_INTERRUPTS();
	values[0] = Int64GetDatum(all.fired);
	values[1] = Int64GetDatum(all.missed);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
