/*
 * lease.c
 *		Notifications of the outbox that this process sends: taken for a while.
 *
 *		waiting ── LeaseTake ──► leased ──┬─ delivered ─┐
 *		   ▲                        │     ├─ dead ──────┼──► history
 *		   │                        │     └─ missed ────┘
 *		   └── retry, lease is over ┘
 *
 * A lease is a time in a column that no index has: until then nobody else
 * takes the row, afterwards anybody may.  The number of attempts rises with
 * each lease, and an answer is recorded (lease_complete.c) only for the attempt
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
 * notification is sent once more, under the same id.  What a notification tells of must be on
 * disk before it leaves; see "asynchronous".
 *
 * A row that another transaction has locked, or changed meanwhile, is passed over.
 *
 * Locks: rows of the queue, of which nobody is waited for; they are held to the end of the
 * transaction, a short one.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/array.h"
#include "base/catalog.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "notification/lease.h"
#include "notification/outbox.h"

/* What to take, and how much of it is there. */
typedef struct Taking
{
	const LeaseChannel *channel;
	int			limit;
	TimestampTz now;
	TimestampTz *from;
	TimestampTz until;
	MemoryContext context;		/* of the notifications */
	List	   *notifications;
	List	   *events;			/* that they tell of, each once */
} Taking;

static OwnerQuery read_templates = {
	"SELECT t.id, t.name, t.receive_start FROM %1$s.coupon_template t"
	" WHERE t.id OPERATOR(pg_catalog.=) ANY ($1)",
	1, {INT8ARRAYOID}
};

static OwnerQuery read_contacts = {
	"SELECT c.user_id, c.address FROM %1$s.coupon_contact c"
	" WHERE c.channel OPERATOR(pg_catalog.=) $1"
	"  AND c.user_id OPERATOR(pg_catalog.=) ANY ($2) ORDER BY c.user_id",
	2, {TEXTOID, INT8ARRAYOID}
};

/* What is due lies before what is not. */
static OwnerQuery look_ahead = {
	"SELECT EXISTS (SELECT FROM ONLY %1$s.coupon_notification w"
	"  WHERE w.channel OPERATOR(pg_catalog.=) $1 AND w.next_at OPERATOR(pg_catalog.<=) $2"
	"   AND w.next_at OPERATOR(pg_catalog.>=) $3),"
	" (SELECT w.next_at FROM ONLY %1$s.coupon_notification w"
	"  WHERE w.channel OPERATOR(pg_catalog.=) $1"
	"   AND w.next_at OPERATOR(pg_catalog.>) $2 ORDER BY w.next_at LIMIT 1)",
	3, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
};

/* The users of a row, without addresses yet. */
static void
ReadRecipients(LeasedNotification *leased, ArrayType *users, const char *address)
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
	leased->notification.recipients = recipients;
	leased->notification.nrecipients = n;
}

static bool
IsText(Datum datum, const char *string)
{
	text	   *value = DatumGetTextPP(datum);

	return VARSIZE_ANY_EXHDR(value) == strlen(string) &&
		memcmp(VARDATA_ANY(value), string, strlen(string)) == 0;
}

/* What a notification tells of, of columns by their place in the queue. */
static RenderEvent *
EventOf(Taking *taking, const Datum *values, const bool *isnull)
{
	const LeaseChannel *channel = taking->channel;
	int64		template_id = isnull[NOTIFICATION_TEMPLATE_ID] ? 0 : DatumGetInt64(values[NOTIFICATION_TEMPLATE_ID]);
	int64		task_id = isnull[NOTIFICATION_TASK_ID] ? 0 : DatumGetInt64(values[NOTIFICATION_TASK_ID]);
	int			minutes = isnull[NOTIFICATION_MINUTES] ? 0 : DatumGetInt16(values[NOTIFICATION_MINUTES]);
	RenderEvent *event;
	ListCell   *lc;

	foreach(lc, taking->events)
	{
		event = lfirst(lc);
		if (event->template_id == template_id && event->task_id == task_id &&
			event->minutes == minutes && IsText(values[NOTIFICATION_KIND], event->kind))
			return event;
	}
	event = palloc0(sizeof(RenderEvent));
	event->kind = LeaseTextOf(values[NOTIFICATION_KIND], taking->context);
	event->channel = channel->name;
	event->template_id = template_id;
	event->task_id = task_id;
	event->minutes = minutes;
	for (int i = 0; i < channel->nmessages; i++)
	{
		if (strcmp(channel->messages[i].kind, event->kind) == 0)
		{
			event->subject = channel->messages[i].subject;
			event->body = channel->messages[i].body;
		}
	}
	taking->events = lappend(taking->events, event);
	return event;
}

/* Add a notification, the same way. */
static void
AddLeased(Taking *taking, const Datum *values, const bool *isnull)
{
	MemoryContext old = MemoryContextSwitchTo(taking->context);
	LeasedNotification *leased = palloc0(sizeof(LeasedNotification));
	RenderEvent *event = EventOf(taking, values, isnull);

	leased->notification.id = DatumGetInt64(values[NOTIFICATION_ID]);
	leased->notification.event = event;
	*taking->from = Max(*taking->from, DatumGetTimestampTz(values[QUEUE_NEXT_AT]));
	leased->attempts = DatumGetInt32(values[NOTIFICATION_ATTEMPTS]);
	leased->tries = leased->attempts - DatumGetInt32(values[QUEUE_FIRST_ATTEMPT]);
	leased->asynchronous = strcmp(event->kind, "coupon") == 0;
	ReadRecipients(leased, DatumGetArrayTypeP(values[NOTIFICATION_USER_IDS]),
				   isnull[NOTIFICATION_ADDRESS] ? NULL :
				   LeaseTextOf(values[NOTIFICATION_ADDRESS], taking->context));
	taking->notifications = lappend(taking->notifications, leased);
	MemoryContextSwitchTo(old);
}

/* Put names and starts into events. */
static void
AddTemplates(List *events, MemoryContext context)
{
	int64	   *ids = palloc(list_length(events) * sizeof(int64));
	int			nids = 0;
	int			n;
	Datum		arg;
	ListCell   *lc;

	foreach(lc, events)
	{
		int64		id = ((RenderEvent *) lfirst(lc))->template_id;

		if (id != 0)
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

		foreach(lc, events)
		{
			RenderEvent *event = lfirst(lc);

			if (event->template_id != id)
				continue;
			event->name = name;
			event->start = start;
			event->has_start = true;
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

/*
 * Leave out who has no contact, where a user id is no address: it may look like the
 * telephone number of a stranger.
 */
static void
LeaveOutUnknown(LeasedNotification *leased)
{
	int			n = 0;

	for (int i = 0; i < leased->notification.nrecipients; i++)
	{
		if (leased->recipients[i].address != NULL)
			leased->recipients[n++] = leased->recipients[i];
	}
	leased->notification.nrecipients = n;
	if (n == 0 && leased->broken == NULL)
		leased->broken = "none of its users has a contact, and user ids are no addresses of this channel";
}

static void
AddAddresses(List *notifications, const LeaseChannel *channel, MemoryContext context)
{
	int64	   *users;
	int			nusers = 0;
	int			n;
	Datum		args[2];
	ListCell   *lc;

	foreach(lc, notifications)
		nusers += ((LeasedNotification *) lfirst(lc))->notification.nrecipients;
	users = palloc(nusers * sizeof(int64));
	nusers = 0;
	foreach(lc, notifications)
	{
		RenderNotification *notification = &((LeasedNotification *) lfirst(lc))->notification;

		for (int i = 0; i < notification->nrecipients; i++)
			users[nusers++] = notification->recipients[i].user_id;
	}
	args[0] = CStringGetTextDatum(channel->name);
	args[1] = ArrayOfInt8(users, nusers);
	n = QueryRun(&read_contacts, args, NULL);

	foreach(lc, notifications)
	{
		LeasedNotification *leased = lfirst(lc);

		for (int i = 0; n > 0 && i < leased->notification.nrecipients; i++)
		{
			RenderRecipient *recipient = &leased->recipients[i];
			int			row = FindContact(recipient->user_id, n);

			if (recipient->address == NULL && row >= 0)
				recipient->address = LeaseText(row, 2, context);
		}
		if (!channel->user_id_is_address && !channel->is_mail)
			LeaveOutUnknown(leased);
	}
}

/* Raises an error for a row that only a changed table can have. */
static void
CheckRow(const RowWriter *queue)
{
	static const int never_null[] = {
		NOTIFICATION_KIND, NOTIFICATION_USER_IDS, NOTIFICATION_ATTEMPTS,
		QUEUE_FIRST_ATTEMPT
	};

	for (int i = 0; i < lengthof(never_null); i++)
	{
		if (queue->isnull[never_null[i]])
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_NOT_INSTALLED),
					 errmsg("a row of \"coupon_notification\" has a null where none can be as installed"),
					 errhint("Delete it, and restore NOT NULL.")));
	}
}

/* Lease the row that the walk has come to, and add it; but not if it is another's. */
static void
TakeRow(Taking *taking, RowWriter *queue)
{
	int32		attempts;

	if (!queue->isnull[QUEUE_LEASED_UNTIL] &&
		DatumGetTimestampTz(queue->values[QUEUE_LEASED_UNTIL]) > taking->now)
		return;
	if (!RowWriterLock(queue, LockTupleNoKeyExclusive, true))
		return;
	CheckRow(queue);
	if (pg_add_s32_overflow(DatumGetInt32(queue->values[NOTIFICATION_ATTEMPTS]), 1, &attempts))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("integer out of range")));
	RowWriterSet(queue, NOTIFICATION_ATTEMPTS, Int32GetDatum(attempts));
	RowWriterSet(queue, QUEUE_LEASED_UNTIL, TimestampTzGetDatum(taking->until));
	if (RowWriterUpdate(queue))
		AddLeased(taking, queue->values, queue->isnull);
}

static void
TakeRows(Taking *taking)
{
	static const int columns[] = {NOTIFICATION_CHANNEL, QUEUE_NEXT_AT};
	RowWriter	queue;
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(taking->channel->name));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(*taking->from));
	ScanKeyInit(&keys[2], 2, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(taking->now));
	OutboxOpenQueue(&queue);
	RowWriterScan(&queue, columns, lengthof(columns), keys, lengthof(keys));
	while (list_length(taking->notifications) < taking->limit && RowWriterNext(&queue))
		TakeRow(taking, &queue);
	RowWriterClose(&queue);
}

/*
 * LeaseTake takes up to limit notifications that were due at "from" or later, until
 * the time given, and moves "from" to the last of them; a List of LeasedNotification,
 * in the memory context of the caller, valid as long as the channel.
 */
List *
LeaseTake(const LeaseChannel *channel, int limit, TimestampTz *from, TimestampTz until)
{
	Taking		taking = {channel, limit, GetCurrentTimestamp(), from, until,
	CurrentMemoryContext, NIL, NIL};
	QueryScope	scope;

	QueryBegin(&scope);
	QueryPlanByIndex();
	TakeRows(&taking);
	if (taking.notifications != NIL)
	{
		AddTemplates(taking.events, taking.context);
		AddAddresses(taking.notifications, channel, taking.context);
	}
	QueryEnd(&scope);
	return taking.notifications;
}

/*
 * LeaseLookAhead returns when the next notification of a channel will be due, DT_NOEND:
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
