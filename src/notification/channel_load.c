/*
 * channel_load.c
 *		The channels that are set up, as the worker needs them.
 *
 * A row that cannot be used, since somebody has written it by hand, is switched
 * off with the reason in it: one channel does not stop the others.
 *
 * Locks: the row of a channel that is switched off, with SKIP LOCKED.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/errors.h"
#include "base/owner_query.h"
#include "base/secret.h"
#include "base/subxact.h"
#include "notification/lease.h"

/*
 * None where the notifications arrive by subscription: the publisher sends them, and
 * what were moved here would conflict with what he moves.
 */
static OwnerQuery read_channels = {
	"SELECT channel, endpoint, username,"
	" enabled AND installation OPERATOR(pg_catalog.=) %1$s.coupon_installation(), max_in_flight,"
	" (extract(epoch FROM timeout) OPERATOR(pg_catalog.*) 1000)::int,"
	" updated_at, body_template, mail_from, require_tls, user_id_is_address,"
	" " SECRET_OF("channel_secret", "channel") ","
	" " SECRET_OF("channel_password", "channel") ","
	" " SECRET_OF("channel_headers", "channel") ", recipient_status,"
	" success_when, dead_recipients, retry_recipients, per_second,"
	" (SELECT pg_catalog.min(q.begins) FROM %1$s.coupon_quiet_hours q"
	"  WHERE q.channel OPERATOR(pg_catalog.=) coupon_channel.channel),"
	" (SELECT pg_catalog.min(q.ends) FROM %1$s.coupon_quiet_hours q"
	"  WHERE q.channel OPERATOR(pg_catalog.=) coupon_channel.channel)"
	" FROM %1$s.coupon_channel WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel s"
	"  JOIN pg_catalog.pg_class q ON q.oid OPERATOR(pg_catalog.=) s.srrelid"
	"   AND q.relname OPERATOR(pg_catalog.=) 'coupon_notification'::pg_catalog.name"
	"  JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) q.relnamespace"
	"  WHERE c.oid OPERATOR(pg_catalog.=) coupon_channel.tableoid)"
	" ORDER BY channel"
};

static OwnerQuery read_messages = {
	"SELECT m.kind, m.subject, m.body FROM %1$s.coupon_message m"
	" WHERE m.channel OPERATOR(pg_catalog.=) $1",
	1, {TEXTOID}
};

static OwnerQuery disable_channel = {
	"UPDATE %1$s.coupon_channel SET enabled = false, disabled_reason = $3"
	" WHERE channel OPERATOR(pg_catalog.=) (SELECT c.channel FROM %1$s.coupon_channel c"
	"  WHERE c.channel OPERATOR(pg_catalog.=) $1 AND c.updated_at OPERATOR(pg_catalog.=) $2"
	"   AND c.enabled FOR UPDATE SKIP LOCKED)",
	3, {TEXTOID, TIMESTAMPTZOID, TEXTOID}
};

/*
 * LeaseTextOf returns a text as UTF-8, in the memory context given.
 */
const char *
LeaseTextOf(Datum value, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	const char *result = RenderUtf8(TextDatumGetCString(value));

	MemoryContextSwitchTo(old);
	return result;
}

/*
 * LeaseText returns a text of the last result as UTF-8, in memory of the
 * caller's; NULL for null.
 */
const char *
LeaseText(int row, int column, MemoryContext context)
{
	bool		isnull;
	Datum		value = QueryText(row, column, &isnull);

	return isnull ? NULL : LeaseTextOf(value, context);
}

static bool
IsMail(const char *endpoint)
{
	return pg_strncasecmp(endpoint, "smtp", 4) == 0;
}

static void
ReadStatuses(LeaseChannel *channel, Datum value, MemoryContext context)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	int			n = ARR_HASNULL(array) ? 0 : ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	int32	   *statuses = MemoryContextAlloc(context, Max(n, 1) * sizeof(int32));

	memcpy(statuses, ARR_DATA_PTR(array), n * sizeof(int32));
	channel->recipient_statuses = statuses;
	channel->nrecipient_statuses = n;
}

static LeaseChannel *
ReadChannel(int row, MemoryContext context)
{
	LeaseChannel *channel = MemoryContextAllocZero(context, sizeof(LeaseChannel));
	MemoryContext old;
	bool		isnull;
	Datum		headers;
	bool		no_headers;

	channel->name = LeaseText(row, 1, context);
	channel->endpoint = LeaseText(row, 2, context);
	channel->username = LeaseText(row, 3, context);
	channel->is_mail = IsMail(channel->endpoint);
	channel->enabled = DatumGetBool(QueryValue(row, 4, &isnull));
	channel->max_in_flight = DatumGetInt32(QueryValue(row, 5, &isnull));
	channel->timeout = DatumGetInt32(QueryValue(row, 6, &isnull));
	channel->updated_at = DatumGetTimestampTz(QueryValue(row, 7, &isnull));
	channel->require_tls = DatumGetBool(QueryValue(row, 10, &isnull));
	channel->user_id_is_address = DatumGetBool(QueryValue(row, 11, &isnull));
	channel->password = LeaseText(row, 13, context);
	channel->per_second = DatumGetInt32(QueryValue(row, 19, &isnull));
	channel->quiet_from = DatumGetTimestampTz(QueryValue(row, 20, &isnull));
	channel->quiet_until = DatumGetTimestampTz(QueryValue(row, 21, &isnull));
	channel->success_when = LeaseText(row, 16, context);
	channel->dead_recipients = LeaseText(row, 17, context);
	channel->retry_recipients = LeaseText(row, 18, context);
	ReadStatuses(channel, QueryValue(row, 15, &isnull), context);
	headers = QueryText(row, 14, &no_headers);
	old = MemoryContextSwitchTo(context);
	channel->render = RenderChannelMake(LeaseText(row, 12, context),
										no_headers ? NULL : TextDatumGetCString(headers),
										LeaseText(row, 8, context),
										LeaseText(row, 9, context));
	MemoryContextSwitchTo(old);
	if (channel->is_mail && channel->render->mail_from == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a mail needs a sender")));
	return channel;
}

/* A row of channels to be read, and what becomes of it. */
typedef struct ChannelRow
{
	int			row;
	MemoryContext context;
	LeaseChannel *channel;
} ChannelRow;

static bool
TryReadChannel(void *arg)
{
	ChannelRow *x = arg;

	x->channel = ReadChannel(x->row, x->context);
	return true;
}

/*
 * A channel whose row was made by hand, and cannot be used, is switched off:
 * the others go on.  NULL then.
 */
static LeaseChannel *
ReadOrDisable(int row, MemoryContext context)
{
	ChannelRow	x = {row, context, NULL};
	ErrorData  *error;
	const char *name;
	const char *reason;
	TimestampTz updated_at;
	bool		isnull;

	if (SubxactRun(TryReadChannel, &x, &error))
		return x.channel;
	if (error->sqlerrcode != ERRCODE_COUPON_BAD_ARGUMENT &&
		error->sqlerrcode != ERRCODE_INVALID_TEXT_REPRESENTATION)	/* no JSON */
		ReThrowError(error);
	name = TextDatumGetCString(QueryRequired(row, 1, TEXTOID));
	updated_at = DatumGetTimestampTz(QueryValue(row, 7, &isnull));
	reason = error->detail == NULL ? error->message :
		psprintf("%s: %s", error->message, error->detail);
	if (LeaseDisable(name, updated_at, reason))
		ereport(LOG,
				(errmsg("coupon channel \"%s\" is switched off: %s", name, reason),
				 errhint("Set it anew with coupon_channel_set.")));
	return NULL;
}

static void
ReadMessages(LeaseChannel *channel, MemoryContext context)
{
	Datum		arg = CStringGetTextDatum(channel->name);
	MemoryContext old;

	channel->nmessages = QueryRun(&read_messages, &arg, NULL);
	old = MemoryContextSwitchTo(context);
	channel->messages = palloc(channel->nmessages * sizeof(LeaseMessage));
	MemoryContextSwitchTo(old);
	for (int i = 0; i < channel->nmessages; i++)
	{
		channel->messages[i].kind = LeaseText(i, 1, context);
		channel->messages[i].subject = LeaseText(i, 2, context);
		channel->messages[i].body = LeaseText(i, 3, context);
	}
}

/*
 * LeaseChannels reads all channels that are set up; a List of LeaseChannel, in
 * the memory context of the caller.
 */
List *
LeaseChannels(void)
{
	MemoryContext context = CurrentMemoryContext;
	MemoryContext old;
	QueryScope	scope;
	List	   *channels = NIL;
	ListCell   *lc;
	int			n;

	QueryBegin(&scope);
	QueryPlanByIndex();
	n = QueryRun(&read_channels, NULL, NULL);
	for (int i = 0; i < n; i++)
	{
		LeaseChannel *channel = ReadOrDisable(i, context);

		if (channel == NULL)
			continue;
		old = MemoryContextSwitchTo(context);
		channels = lappend(channels, channel);
		MemoryContextSwitchTo(old);
	}
	foreach(lc, channels)
		ReadMessages(lfirst(lc), context);
	QueryEnd(&scope);
	return channels;
}

/*
 * LeaseIsQuiet tells whether only tests may be sent now.
 */
bool
LeaseIsQuiet(const LeaseChannel *channel, TimestampTz now)
{
	return channel->quiet_from <= now && now < channel->quiet_until;
}

/*
 * LeaseDisable switches a channel off for the reason given, unless it is or has
 * been set anew since, or somebody holds it; tells whether it did.
 */
bool
LeaseDisable(const char *channel, TimestampTz updated_at, const char *reason)
{
	QueryScope	scope;
	Datum		args[3];
	bool		done;

	QueryBegin(&scope);
	QueryPlanByIndex();
	args[0] = CStringGetTextDatum(channel);
	args[1] = TimestampTzGetDatum(updated_at);
	args[2] = CStringGetTextDatum(reason);
	done = QueryRun(&disable_channel, args, NULL) > 0;
	QueryEnd(&scope);
	return done;
}
