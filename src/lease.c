/*
 * lease.c
 *		Pushes of the outbox that this process sends: taken for a while, and
 *		what became of them.
 *
 *		waiting ── LeaseTake ──► leased ──┬─ delivered ─┐
 *		   ▲                        │     ├─ dead ──────┼──► history
 *		   │                        │     └─ missed ────┘
 *		   └── retry, lease is over ┘
 *
 * A lease is a time in a column that no index has: until then nobody else
 * takes the row, afterwards anybody may.  The number of attempts rises with
 * each lease, and an answer is recorded only for the attempt that it belongs
 * to, so that one that comes late changes nothing.
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
 * What is recorded need not be on disk: if a crash takes it away, the push is
 * sent once more, under the same id.  What a push tells of must be on disk
 * before it leaves; see "asynchronous".
 *
 * Locks: rows of the queue, with SKIP LOCKED; they are held to the end of the
 * transaction, a short one.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "lease.h"
#include "query.h"

static OwnerQuery take = {
	"UPDATE %1$s.coupon_notification n SET attempts = n.attempts + 1, leased_until = $5"
	" WHERE n.ctid = ANY (ARRAY("
	"  SELECT w.ctid FROM %1$s.coupon_notification w"
	"  WHERE w.channel = $1 AND w.next_at <= $2 AND w.next_at >= $3"
	"  AND (w.leased_until IS NULL OR w.leased_until <= $2)"
	"  ORDER BY w.next_at LIMIT $4 FOR UPDATE SKIP LOCKED))"
	" RETURNING n.id, n.next_at, n.attempts, n.attempts - n.first_attempt, n.kind,"
	"  n.template_id, n.minutes, n.task_id, n.address, n.user_ids",
	5, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID}
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

#define ANSWER_NARGS 7
#define ANSWER_TYPES \
	{INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZARRAYOID, \
	INT4ARRAYOID, TEXTARRAYOID, TEXTARRAYOID}

/* Only for the attempt that is waited for. */
#define OF_ANSWERS \
	" ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5)," \
	"  unnest($6), unnest($7))" \
	" AS a (id, attempts, sent_at, next_at, status, error, state)" \
	" WHERE n.id = a.id AND n.attempts = a.attempts AND n.leased_until IS NOT NULL"

static OwnerQuery record_ends = {
	"WITH gone AS (DELETE FROM %1$s.coupon_notification n USING" OF_ANSWERS
	"  RETURNING n.id, n.channel, n.kind, n.template_id, n.minutes, n.task_id,"
	"  n.user_ids, n.address, a.state, n.due_at, a.sent_at, n.attempts, a.status, a.error)"
	" INSERT INTO %1$s.coupon_notification_history (id, channel, kind, template_id,"
	"  minutes, task_id, user_ids, address, state, due_at, sent_at, ended_at,"
	"  attempts, last_status, last_error)"
	" SELECT g.id, g.channel, g.kind, g.template_id, g.minutes, g.task_id, g.user_ids,"
	"  g.address, g.state, g.due_at, nullif(g.sent_at, '-infinity'),"
	"  pg_catalog.clock_timestamp(), g.attempts, nullif(g.status, 0),"
	"  nullif(g.error, '') FROM gone g"
	/* there already: queued again by hand */
	" ON CONFLICT (id) DO UPDATE SET (channel, kind, template_id, minutes, task_id,"
	"  user_ids, address, state, due_at, sent_at, ended_at, attempts, last_status,"
	"  last_error) = (excluded.channel, excluded.kind, excluded.template_id,"
	"  excluded.minutes, excluded.task_id, excluded.user_ids, excluded.address,"
	"  excluded.state, excluded.due_at, excluded.sent_at, excluded.ended_at,"
	"  excluded.attempts, excluded.last_status, excluded.last_error)",
	ANSWER_NARGS, ANSWER_TYPES
};

static OwnerQuery record_retries = {
	"UPDATE %1$s.coupon_notification n SET leased_until = NULL, next_at = a.next_at,"
	" last_status = nullif(a.status, 0), last_error = nullif(a.error, '') FROM"
	OF_ANSWERS,
	ANSWER_NARGS, ANSWER_TYPES
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

static Datum
Int64Array(Datum *values, int n)
{
	return PointerGetDatum(construct_array(values, n, INT8OID, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* Put names and starts into pushes: of few templates, as a rule of one. */
static void
AddTemplates(List *pushes, MemoryContext context)
{
	Datum	   *ids = palloc(list_length(pushes) * sizeof(Datum));
	int			nids = 0;
	int			n;
	Datum		arg;
	ListCell   *lc;

	foreach(lc, pushes)
	{
		int64		id = ((LeasedPush *) lfirst(lc))->push.template_id;
		int			i = 0;

		while (i < nids && DatumGetInt64(ids[i]) != id)
			i++;
		if (i == nids && id != 0)
			ids[nids++] = Int64GetDatum(id);
	}
	if (nids == 0)
		return;
	arg = Int64Array(ids, nids);
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
	Datum	   *users;
	int			nusers = 0;
	int			n;
	Datum		args[2];
	ListCell   *lc;

	foreach(lc, pushes)
		nusers += ((LeasedPush *) lfirst(lc))->push.nrecipients;
	users = palloc(nusers * sizeof(Datum));
	nusers = 0;
	foreach(lc, pushes)
	{
		RenderPush *push = &((LeasedPush *) lfirst(lc))->push;

		for (int i = 0; i < push->nrecipients; i++)
			users[nusers++] = Int64GetDatum(push->recipients[i].user_id);
	}
	args[0] = CStringGetTextDatum(channel->name);
	args[1] = Int64Array(users, nusers);
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
	Datum		args[5];
	List	   *pushes = NIL;
	int			n;

	QueryBegin(&scope);
	QueryPlanByIndex();
	args[0] = CStringGetTextDatum(channel->name);
	args[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	args[2] = TimestampTzGetDatum(*from);
	args[3] = Int64GetDatum(limit);
	args[4] = TimestampTzGetDatum(until);
	n = QueryRun(&take, args, NULL);
	for (int i = 0; i < n; i++)
	{
		LeasedPush *push = ReadPush(channel, i, from, context);

		old = MemoryContextSwitchTo(context);
		pushes = lappend(pushes, push);
		MemoryContextSwitchTo(old);
	}
	if (n > 0)
	{
		AddTemplates(pushes, context);
		AddAddresses(pushes, channel, context);
	}
	QueryEnd(&scope);
	return pushes;
}

static const char *
StateName(LeaseVerdict verdict)
{
	switch (verdict)
	{
		case LEASE_DELIVERED:
			return "delivered";
		case LEASE_DEAD:
			return "dead";
		case LEASE_MISSED:
			return "missed";
		case LEASE_RETRY:
			break;
	}
	return "";
}

/* Record those answers that are to be retried, or the others. */
static void
RecordSome(const LeaseAnswer *answers, int nanswers, bool retry)
{
	static const struct
	{
		Oid			type;
		int16		length;
		char		align;
	}			kinds[ANSWER_NARGS] = {
		{INT8OID, 8, TYPALIGN_DOUBLE}, {INT4OID, 4, TYPALIGN_INT},
		{TIMESTAMPTZOID, 8, TYPALIGN_DOUBLE}, {TIMESTAMPTZOID, 8, TYPALIGN_DOUBLE},
		{INT4OID, 4, TYPALIGN_INT}, {TEXTOID, -1, TYPALIGN_INT},
		{TEXTOID, -1, TYPALIGN_INT}
	};
	Datum	   *columns[ANSWER_NARGS];
	Datum		args[ANSWER_NARGS];
	int			n = 0;

	for (int c = 0; c < ANSWER_NARGS; c++)
		columns[c] = palloc(nanswers * sizeof(Datum));
	for (int i = 0; i < nanswers; i++)
	{
		const LeaseAnswer *answer = &answers[i];

		if ((answer->verdict == LEASE_RETRY) != retry)
			continue;
		columns[0][n] = Int64GetDatum(answer->id);
		columns[1][n] = Int32GetDatum(answer->attempts);
		columns[2][n] = TimestampTzGetDatum(answer->sent_at);
		columns[3][n] = TimestampTzGetDatum(answer->next_at);
		columns[4][n] = Int32GetDatum(answer->status);
		columns[5][n] = CStringGetTextDatum(answer->error);
		columns[6][n] = CStringGetTextDatum(StateName(answer->verdict));
		n++;
	}
	if (n == 0)
		return;
	for (int c = 0; c < ANSWER_NARGS; c++)
		args[c] = PointerGetDatum(construct_array(columns[c], n, kinds[c].type,
												  kinds[c].length, kinds[c].length > 0,
												  kinds[c].align));
	QueryRun(retry ? &record_retries : &record_ends, args, NULL);
}

/*
 * LeaseRecord records what became of pushes.  Those that somebody else has
 * taken meanwhile are left alone.
 */
void
LeaseRecord(const LeaseAnswer *answers, int nanswers)
{
	QueryScope	scope;

	QueryBegin(&scope);
	QueryPlanByIndex();
	RecordSome(answers, nanswers, false);
	RecordSome(answers, nanswers, true);
	QueryEnd(&scope);
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
