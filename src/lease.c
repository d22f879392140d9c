/*
 * lease.c
 *		Pushes of the outbox that this process sends: taken for a while.
 *
 *		waiting ── LeaseTake ──► leased ──┬─ delivered ─┐
 *		   ▲                        │     ├─ dead ──────┼──► history
 *		   │                        │     └─ missed ────┘
 *		   └── retry, lease is over ┘
 *
 * A lease is a time in a column that no index has: until then nobody else
 * takes the row, afterwards anybody may.  The number of attempts rises with
 * each lease, and an answer is recorded (lease_record.c) only for the attempt
 * that it belongs to, so that one that comes late changes nothing.
 *
 * LeaseTake walks an index by next_at.  In front lie rows that are leased, and
 * entries of rows that have gone and that an old snapshot somewhere may keep
 * from being cleaned away; the caller keeps where the last look has stopped, so
 * that they need not be read again.  Rows can appear before that place (their
 * transaction was slow, a lease has run out), so he begins anew from time to
 * time.
 *
 * Rows that somebody has changed by hand may be anything.  What cannot be sent
 * is marked as broken, and does not stop the others.
 *
 * What is leased and recorded need not be on disk: if a crash takes it away, the
 * push is sent once more, under the same id.  What a push tells of must be on
 * disk before it leaves; see "asynchronous".
 *
 * Locks: rows of the queue, with SKIP LOCKED; they are held to the end of the
 * transaction, a short one.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "array.h"
#include "catalog.h"
#include "lease.h"
#include "outbox.h"
#include "query.h"

/* Those that are due, not leased, and held by nobody. */
#define FREE_PUSHES \
	" FROM %1$s.coupon_notification w" \
	" WHERE w.channel = $1 AND w.next_at <= $2 AND w.next_at >= $3" \
	" AND (w.leased_until IS NULL OR w.leased_until <= $2)" \
	" ORDER BY w.next_at LIMIT $4 FOR UPDATE SKIP LOCKED"

#define TAKE_NARGS 5
#define TAKE_TYPES {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID}

/* To be leased past the executor. */
static OwnerQuery find = {
	"SELECT w.id, w.next_at, w.attempts + 1, w.attempts + 1 - w.first_attempt, w.kind,"
	"  w.template_id, w.minutes, w.task_id, w.address, w.user_ids, w.ctid"
	FREE_PUSHES,
	TAKE_NARGS - 1, TAKE_TYPES
};

static OwnerQuery take = {
	"UPDATE %1$s.coupon_notification n SET attempts = n.attempts + 1, leased_until = $5"
	" WHERE n.ctid = ANY (ARRAY(SELECT w.ctid" FREE_PUSHES "))"
	" RETURNING n.id, n.next_at, n.attempts, n.attempts - n.first_attempt, n.kind,"
	"  n.template_id, n.minutes, n.task_id, n.address, n.user_ids, n.ctid",
	TAKE_NARGS, TAKE_TYPES
};

static OwnerQuery read_templates = {
	"SELECT t.id, t.name, t.receive_start FROM %1$s.coupon_template t"
	" WHERE t.id = ANY ($1)",
	1, {INT8ARRAYOID}
};

static OwnerQuery read_contacts = {
	"SELECT c.user_id, c.address FROM %1$s.coupon_contact c"
	" WHERE c.channel = $1 AND c.user_id = ANY ($2) ORDER BY c.user_id",
	2, {TEXTOID, INT8ARRAYOID}
};

/* What is due lies before what is not. */
static OwnerQuery look_ahead = {
	"SELECT EXISTS (SELECT FROM %1$s.coupon_notification w"
	"  WHERE w.channel = $1 AND w.next_at <= $2 AND w.next_at >= $3),"
	" (SELECT w.next_at FROM %1$s.coupon_notification w"
	"  WHERE w.channel = $1 AND w.next_at > $2 ORDER BY w.next_at LIMIT 1)",
	3, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

/* The users of a row, without addresses yet. */
static void
ReadRecipients(LeasedPush *leased, ArrayType *users, const char *address)
{
	const int64 *values = (const int64 *) ARR_DATA_PTR(users);
	int			n = ArrayGetNItems(ARR_NDIM(users), ARR_DIMS(users));
	RenderRecipient *recipients;

	if (n == 0 || ARR_HASNULL(users))
	{
		leased->broken = "it has no recipient, or a null among them";
		return;
	}
	recipients = palloc(n * sizeof(RenderRecipient));
	for (int i = 0; i < n; i++)
	{
		recipients[i].user_id = values[i];
		recipients[i].address = address;
	}
	leased->recipients = recipients;
	leased->push.recipients = recipients;
	leased->push.nrecipients = n;
}

static LeasedPush *
ReadPush(const LeaseChannel *channel, int row, TimestampTz *from, MemoryContext context)
{
	LeasedPush *leased = MemoryContextAllocZero(context, sizeof(LeasedPush));
	RenderPush *push = &leased->push;
	MemoryContext old;
	bool		isnull;
	Datum		users;

	leased->tid = *(ItemPointer) DatumGetPointer(QueryValue(row, 11, &isnull));
	push->id = DatumGetInt64(QueryValue(row, 1, &isnull));
	*from = Max(*from, DatumGetTimestampTz(QueryValue(row, 2, &isnull)));
	leased->attempts = DatumGetInt32(QueryValue(row, 3, &isnull));
	leased->tries = DatumGetInt32(QueryValue(row, 4, &isnull));
	push->kind = LeaseText(row, 5, context);
	push->channel = channel->name;
	leased->asynchronous = strcmp(push->kind, "coupon") == 0;
	push->template_id = DatumGetInt64(QueryValue(row, 6, &isnull));
	push->minutes = DatumGetInt16(QueryValue(row, 7, &isnull));
	push->task_id = DatumGetInt64(QueryValue(row, 8, &isnull));
	users = QueryValue(row, 10, &isnull);
	old = MemoryContextSwitchTo(context);
	ReadRecipients(leased, DatumGetArrayTypeP(users), LeaseText(row, 9, context));
	MemoryContextSwitchTo(old);
	for (int i = 0; i < channel->nmessages; i++)
	{
		if (strcmp(channel->messages[i].kind, push->kind) == 0)
		{
			push->subject = channel->messages[i].subject;
			push->body = channel->messages[i].body;
		}
	}
	return leased;
}

/* Put names and starts into pushes: of few templates, as a rule of one. */
static void
AddTemplates(List *pushes, MemoryContext context)
{
	int64	   *ids = palloc(list_length(pushes) * sizeof(int64));
	int			nids = 0;
	int			n;
	Datum		arg;
	ListCell   *lc;

	foreach(lc, pushes)
	{
		int64		id = ((LeasedPush *) lfirst(lc))->push.template_id;
		int			i = 0;

		while (i < nids && ids[i] != id)
			i++;
		if (i == nids && id != 0)
			ids[nids++] = id;
	}
	if (nids == 0)
		return;
	arg = ArrayOfInt8(ids, nids);
	n = QueryRun(&read_templates, &arg, NULL);
	for (int i = 0; i < n; i++)
	{
		bool		isnull;
		int64		id = DatumGetInt64(QueryValue(i, 1, &isnull));
		const char *name = LeaseText(i, 2, context);
		TimestampTz start = DatumGetTimestampTz(QueryValue(i, 3, &isnull));

		foreach(lc, pushes)
		{
			RenderPush *push = &((LeasedPush *) lfirst(lc))->push;

			if (push->template_id != id)
				continue;
			push->name = name;
			push->start = start;
			push->has_start = true;
		}
	}
}

/* The row of the last result for a user, -1: none; they are in his order. */
static int
FindContact(int64 user_id, int n)
{
	int			low = 0;
	int			high = n;
	bool		isnull;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (DatumGetInt64(QueryValue(middle, 1, &isnull)) < user_id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < n && DatumGetInt64(QueryValue(low, 1, &isnull)) == user_id ? low : -1;
}

static void
AddAddresses(List *pushes, const LeaseChannel *channel, MemoryContext context)
{
	int64	   *users;
	int			nusers = 0;
	int			n;
	Datum		args[2];
	ListCell   *lc;

	foreach(lc, pushes)
		nusers += ((LeasedPush *) lfirst(lc))->push.nrecipients;
	users = palloc(nusers * sizeof(int64));
	nusers = 0;
	foreach(lc, pushes)
	{
		RenderPush *push = &((LeasedPush *) lfirst(lc))->push;

		for (int i = 0; i < push->nrecipients; i++)
			users[nusers++] = push->recipients[i].user_id;
	}
	args[0] = CStringGetTextDatum(channel->name);
	args[1] = ArrayOfInt8(users, nusers);
	n = QueryRun(&read_contacts, args, NULL);

	foreach(lc, pushes)
	{
		LeasedPush *leased = lfirst(lc);

		for (int i = 0; n > 0 && i < leased->push.nrecipients; i++)
		{
			RenderRecipient *recipient = &leased->recipients[i];
			int			row = FindContact(recipient->user_id, n);

			if (recipient->address == NULL && row >= 0)
				recipient->address = LeaseText(row, 2, context);
		}
	}
}

/* Write the lease of a push that this transaction has locked. */
static void
WriteLease(DirectTable *queue, LeasedPush *leased, TimestampTz until)
{
	TupleTableSlot *row;

	if (DirectFetch(queue, &leased->tid) == NULL)
		elog(ERROR, "a push that was locked has gone");
	row = DirectNewVersion(queue);
	DirectSet(row, QUEUE_ATTEMPTS, Int32GetDatum(leased->attempts));
	DirectSet(row, QUEUE_LEASED_UNTIL, TimestampTzGetDatum(until));
	if (!DirectUpdate(queue, &leased->tid))
		elog(ERROR, "a push that was locked has changed");
}

/*
 * LeaseTake takes up to limit pushes that were due at "from" or later, until
 * the time given, and moves "from" to the last of them; a List of LeasedPush,
 * in the memory context of the caller, valid as long as the channel.
 */
List *
LeaseTake(const LeaseChannel *channel, int limit, TimestampTz *from, TimestampTz until)
{
	MemoryContext context = CurrentMemoryContext;
	MemoryContext old;
	QueryScope	scope;
	DirectTable queue;
	bool		direct;
	Datum		args[TAKE_NARGS];
	List	   *pushes = NIL;
	int			n;

	QueryBegin(&scope);
	QueryPlanByIndex();
	args[0] = CStringGetTextDatum(channel->name);
	args[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	args[2] = TimestampTzGetDatum(*from);
	args[3] = Int64GetDatum(limit);
	args[4] = TimestampTzGetDatum(until);
	direct = DirectOpen(&queue, CatalogGet()->queue_table, &OutboxQueueLayout);
	n = QueryRun(direct ? &find : &take, args, NULL);
	for (int i = 0; i < n; i++)
	{
		LeasedPush *push = ReadPush(channel, i, from, context);

		if (direct)
			WriteLease(&queue, push, until);
		old = MemoryContextSwitchTo(context);
		pushes = lappend(pushes, push);
		MemoryContextSwitchTo(old);
	}
	if (direct)
		DirectClose(&queue);
	if (n > 0)
	{
		AddTemplates(pushes, context);
		AddAddresses(pushes, channel, context);
	}
	QueryEnd(&scope);
	return pushes;
}

/*
 * LeaseLookAhead returns when the next push of a channel will be due, DT_NOEND:
 * none waits.  any_due: there are some already, due at "from" or later, be it
 * that they are leased.
 */
TimestampTz
LeaseLookAhead(const char *channel, TimestampTz from, bool *any_due)
{
	QueryScope	scope;
	Datum		args[3];
	TimestampTz next_at;
	bool		isnull;

	QueryBegin(&scope);
	QueryPlanByIndex();
	args[0] = CStringGetTextDatum(channel);
	args[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	args[2] = TimestampTzGetDatum(from);
	QueryRun(&look_ahead, args, NULL);
	*any_due = DatumGetBool(QueryValue(0, 1, &isnull));
	next_at = DatumGetTimestampTz(QueryValue(0, 2, &isnull));
	if (isnull)
		next_at = DT_NOEND;
	QueryEnd(&scope);
	return next_at;
}
