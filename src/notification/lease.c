/*
 * lease.c
 *		Notifications of the outbox that this process sends: taken for a while.
 *
 *		waiting ── LeaseLane ──► leased ──┬─ delivered ─┐
 *		   ▲                        │     ├─ dead ──────┼──► history
 *		   │                        │     └─ missed ────┘
 *		   └── retry, lease is over ┘
 *
 * A lease is a time in a column that no index has: until then nobody else
 * takes the row, afterwards anybody may.  The number of attempts rises with
 * each lease, and an answer is recorded (lease_complete.c) only for the attempt
 * that it belongs to, so that one that comes late changes nothing.
 *
 * LeaseLane walks an index by next_at, within a lane (outbox.h).  In front lie rows
 * that are leased, and entries of rows that have gone and that an old snapshot
 * somewhere may keep from being cleaned away; the caller keeps where the last look
 * has stopped, so that they need not be read again.  Rows can appear before that place (their
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

#define NO_CONTACT "the user has no contact, and user ids are no addresses of this channel"

static OwnerQuery read_templates = {
	"SELECT t.id, t.name, t.receive_start, t.shop_number,"
	" t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text FROM %1$s.coupon_template t"
	" WHERE t.id OPERATOR(pg_catalog.=) ANY ($1)",
	1, {INT8ARRAYOID}
};

static OwnerQuery read_contacts = {
	"SELECT c.user_id, c.address FROM %1$s.coupon_contact c"
	" WHERE c.channel OPERATOR(pg_catalog.=) $1"
	"  AND c.user_id OPERATOR(pg_catalog.=) ANY ($2) ORDER BY c.user_id",
	2, {TEXTOID, INT8ARRAYOID}
};

static OwnerQuery read_muted = {
	"SELECT m.user_id FROM %1$s.coupon_mute m WHERE m.channel OPERATOR(pg_catalog.=) $1"
	" AND m.user_id OPERATOR(pg_catalog.=) ANY ($2) ORDER BY m.user_id",
	2, {TEXTOID, INT8ARRAYOID}
};

/* Some users of a notification that is leased go to the history, under an id of their own. */
static OwnerQuery leave_out = {
	"WITH o AS (UPDATE %1$s.coupon_notification SET user_ids = ARRAY("
	"  SELECT u.id FROM pg_catalog.unnest(user_ids) WITH ORDINALITY AS u (id, place)"
	"  WHERE u.id OPERATOR(pg_catalog.<>) ALL ($2) ORDER BY u.place)"
	"  WHERE id OPERATOR(pg_catalog.=) $1 RETURNING *)"
	" INSERT INTO %1$s.coupon_notification_history (id, channel, kind, template_id, minutes, task_id,"
	"  user_ids, state, due_at, ended_at, attempts, last_error)"
	" SELECT %1$s.coupon_next_id(), o.channel, o.kind, o.template_id, o.minutes, o.task_id, $2, $3,"
	"  o.due_at, pg_catalog.clock_timestamp(), o.attempts, $4 FROM o",
	4, {INT8OID, INT8ARRAYOID, TEXTOID, TEXTOID}
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
EventOf(Lease *lease, const Datum *values, const bool *isnull)
{
	const LeaseChannel *channel = lease->channel;
	int64		template_id = isnull[NOTIFICATION_TEMPLATE_ID] ? 0 : DatumGetInt64(values[NOTIFICATION_TEMPLATE_ID]);
	int64		task_id = isnull[NOTIFICATION_TASK_ID] ? 0 : DatumGetInt64(values[NOTIFICATION_TASK_ID]);
	int			minutes = isnull[NOTIFICATION_MINUTES] ? 0 : DatumGetInt16(values[NOTIFICATION_MINUTES]);
	RenderEvent *event;
	ListCell   *lc;

	foreach(lc, lease->events)
	{
		event = lfirst(lc);
		if (event->template_id == template_id && event->task_id == task_id &&
			event->minutes == minutes && IsText(values[NOTIFICATION_KIND], event->kind))
			return event;
	}
	event = palloc0(sizeof(RenderEvent));
	event->kind = LeaseTextOf(values[NOTIFICATION_KIND], lease->context);
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
	lease->events = lappend(lease->events, event);
	return event;
}

/* Add a notification, the same way. */
static void
AddLeased(Lease *lease, const Datum *values, const bool *isnull)
{
	MemoryContext old = MemoryContextSwitchTo(lease->context);
	LeasedNotification *leased = palloc0(sizeof(LeasedNotification));
	RenderEvent *event = EventOf(lease, values, isnull);

	leased->notification.id = DatumGetInt64(values[NOTIFICATION_ID]);
	leased->notification.event = event;
	leased->attempts = DatumGetInt32(values[NOTIFICATION_ATTEMPTS]);
	leased->tries = leased->attempts - DatumGetInt32(values[QUEUE_FIRST_ATTEMPT]);
	leased->due_at = DatumGetTimestampTz(values[NOTIFICATION_DUE_AT]);
	leased->class = DatumGetInt16(values[QUEUE_LANE]) / OUTBOX_LANES;
	leased->asynchronous = strcmp(event->kind, "coupon") == 0;
	ReadRecipients(leased, DatumGetArrayTypeP(values[NOTIFICATION_USER_IDS]),
				   isnull[NOTIFICATION_ADDRESS] ? NULL :
				   LeaseTextOf(values[NOTIFICATION_ADDRESS], lease->context));
	lease->notifications = lappend(lease->notifications, leased);
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
		bool		published = DatumGetBool(QueryValue(i, 5, &isnull));
		Datum		shop = QueryValue(i, 4, &isnull);
		int64		shop_number = isnull ? 0 : DatumGetInt64(shop);

		foreach(lc, events)
		{
			RenderEvent *event = lfirst(lc);

			if (event->template_id != id)
				continue;
			event->template_found = true;
			event->published = published;
			event->shop_number = shop_number;
			event->name = name;
			event->start = start;
			event->has_start = true;
		}
	}
}

/* The row of the last result for a user, -1: none; they are in his order. */
static int
FindUser(int64 user_id, int n)
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

/* Whether a recipient is to be left out. */
typedef bool (*LeaveOutIf) (const RenderRecipient *recipient);

/*
 * Leave out some of the recipients of a notification: they are over, with that state and
 * error.  False: nobody would be left, and nothing is done.
 */
static bool
LeaveOut(LeasedNotification *leased, LeaveOutIf is_out, const char *state, const char *error)
{
	int			all = leased->notification.nrecipients;
	int64	   *out = palloc(Max(all, 1) * sizeof(int64));
	int			nout = 0;
	int			n = 0;
	Datum		args[4];
	char		nulls[4] = {' ', ' ', ' ', error == NULL ? 'n' : ' '};

	for (int i = 0; i < all; i++)
	{
		if (is_out(&leased->recipients[i]))
			out[nout++] = leased->recipients[i].user_id;
	}
	if (nout == all)
		return false;
	if (nout == 0)
		return true;
	for (int i = 0; i < all; i++)
	{
		if (!is_out(&leased->recipients[i]))
			leased->recipients[n++] = leased->recipients[i];
	}
	leased->notification.nrecipients = n;
	args[0] = Int64GetDatum(leased->notification.id);
	args[1] = ArrayOfInt8(out, nout);
	args[2] = CStringGetTextDatum(state);
	args[3] = error == NULL ? (Datum) 0 : CStringGetTextDatum(error);
	QueryRun(&leave_out, args, nulls);
	return true;
}

static bool
IsMuted(const RenderRecipient *recipient)
{
	return recipient->muted;
}

static bool
IsUnknown(const RenderRecipient *recipient)
{
	return recipient->address == NULL;
}

/*
 * Leave out who wants nothing by this channel, and who has no contact, where a user id is
 * no address: it may look like the telephone number of a stranger.
 */
static void
LeaveOutSome(LeasedNotification *leased, const LeaseChannel *channel)
{
	if (leased->broken != NULL)
		return;
	if (!LeaveOut(leased, IsMuted, "muted", NULL))
		leased->muted = true;
	else if (!channel->user_id_is_address && !channel->is_mail &&
			 !LeaveOut(leased, IsUnknown, "dead", NO_CONTACT))
		leased->broken = NO_CONTACT;
}

/* The last result lists the users of these notifications who are muted. */
static void
MarkMuted(List *notifications, int n)
{
	ListCell   *lc;

	foreach(lc, notifications)
	{
		LeasedNotification *leased = lfirst(lc);

		for (int i = 0; i < leased->notification.nrecipients; i++)
			leased->recipients[i].muted = FindUser(leased->recipients[i].user_id, n) >= 0;
	}
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
	MarkMuted(notifications, (int) QueryRun(&read_muted, args, NULL));
	n = QueryRun(&read_contacts, args, NULL);

	foreach(lc, notifications)
	{
		LeasedNotification *leased = lfirst(lc);

		for (int i = 0; n > 0 && i < leased->notification.nrecipients; i++)
		{
			RenderRecipient *recipient = &leased->recipients[i];
			int			row = FindUser(recipient->user_id, n);

			if (recipient->address == NULL && row >= 0)
				recipient->address = LeaseText(row, 2, context);
		}
	}
	foreach(lc, notifications)
		LeaveOutSome(lfirst(lc), channel);
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

/* Lease the row that the walk has come to, and add it; false: it is another's. */
static bool
TakeRow(Lease *lease, RowWriter *queue)
{
	int32		attempts;

	if (!queue->isnull[QUEUE_LEASED_UNTIL] &&
		DatumGetTimestampTz(queue->values[QUEUE_LEASED_UNTIL]) > lease->now)
		return false;
	if (!RowWriterLock(queue, LockTupleNoKeyExclusive, true))
		return false;
	CheckRow(queue);
	if (pg_add_s32_overflow(DatumGetInt32(queue->values[NOTIFICATION_ATTEMPTS]), 1, &attempts))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("integer out of range")));
	RowWriterSet(queue, NOTIFICATION_ATTEMPTS, Int32GetDatum(attempts));
	RowWriterSet(queue, QUEUE_LEASED_UNTIL, TimestampTzGetDatum(lease->until));
	if (!RowWriterUpdate(queue))
		return false;
	AddLeased(lease, queue->values, queue->isnull);
	return true;
}

/*
 * LeaseBegin begins to take notifications of a channel, until the time given, which
 * live in the memory context of the caller, and as long as the channel.  LeaseEnd
 * returns them: a List of LeasedNotification.
 */
void
LeaseBegin(Lease *lease, const LeaseChannel *channel, TimestampTz until)
{
	lease->channel = channel;
	lease->now = GetCurrentTimestamp();
	lease->until = until;
	lease->context = CurrentMemoryContext;
	lease->notifications = NIL;
	lease->events = NIL;
	QueryBegin(&lease->scope);
	QueryPlanByIndex();
	OutboxOpenQueue(&lease->queue);
}

/*
 * LeaseLane takes up to limit notifications of a lane that were due at "from" or later,
 * moves "from" to the last of them, and returns how many: if less, "ahead" tells
 * when to ask again.
 */
int
LeaseLane(Lease *lease, int lane, int limit, TimestampTz *from, LeaseAhead *ahead)
{
	static const int columns[] = {NOTIFICATION_CHANNEL, QUEUE_LANE, QUEUE_NEXT_AT};
	ScanKeyData keys[3];
	int			n = 0;

	ahead->any_due = false;
	ahead->next_at = DT_NOEND;
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(lease->channel->name));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(lane));
	ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(*from));
	RowWriterScan(&lease->queue, columns, lengthof(columns), keys, lengthof(keys));
	while (n < limit && RowWriterNext(&lease->queue))
	{
		TimestampTz next_at = DatumGetTimestampTz(lease->queue.values[QUEUE_NEXT_AT]);

		/* What is due lies before what is not. */
		if (next_at > lease->now)
		{
			ahead->next_at = next_at;
			break;
		}
		if (TakeRow(lease, &lease->queue))
		{
			*from = next_at;
			n++;
		}
		else
			ahead->any_due = true;
	}
	return n;
}

/*
 * LeaseEnd completes what was taken, with names and addresses.
 */
List *
LeaseEnd(Lease *lease)
{
	RowWriterClose(&lease->queue);
	if (lease->notifications != NIL)
	{
		AddTemplates(lease->events, lease->context);
		AddAddresses(lease->notifications, lease->channel, lease->context);
	}
	QueryEnd(&lease->scope);
	return lease->notifications;
}
