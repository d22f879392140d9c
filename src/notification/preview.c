/*
 * preview.c
 *		coupon_channel_preview: a notification as a channel would send it, without
 *		sending it.
 *
 * It is rendered by what the worker uses, from the channel's row and texts and
 * a user's contact; template and times are made up.  What an administrator has
 * put into headers is masked: it may be a key.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/errors.h"
#include "base/id.h"
#include "base/owner_query.h"
#include "base/secret.h"
#include "notification/channel_check.h"
#include "render/request.h"

PG_FUNCTION_INFO_V1(coupon_channel_preview);

#define SAMPLE_MINUTES 10
#define SAMPLE_ID 1				/* of template and task */

static OwnerQuery read_channel = {
	"SELECT c.endpoint,"
	" " SECRET_OF("channel_secret", "c.channel") ","
	" " SECRET_OF("channel_headers", "c.channel") ","
	" c.body_template, c.mail_from,"
	" m.subject, m.body, k.address, c.username"
	" FROM %1$s.coupon_channel c"
	" LEFT JOIN %1$s.coupon_message m ON m.kind OPERATOR(pg_catalog.=) $1"
	"  AND m.channel OPERATOR(pg_catalog.=) c.channel"
	" LEFT JOIN %1$s.coupon_contact k ON k.user_id OPERATOR(pg_catalog.=) $3"
	"  AND k.channel OPERATOR(pg_catalog.=) c.channel"
	" WHERE c.channel OPERATOR(pg_catalog.=) $2",
	3, {TEXTOID, TEXTOID, INT8OID}
};

/* A text of the row, NULL where it is null. */
static const char *
Column(int column)
{
	bool		isnull;
	Datum		value = QueryText(0, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

static const char *
Utf8Column(int column)
{
	const char *text = Column(column);

	return text == NULL ? NULL : RenderUtf8(text);
}

/* Scheme and host of a URL; what follows them may be a token. */
static const char *
Receiver(const char *endpoint)
{
	const char *host = strstr(endpoint, "://");

	if (host == NULL)
		return "";
	host += strlen("://");
	return pnstrdup(endpoint, host - endpoint + strcspn(host, "/?#"));
}

/* For people: in the encoding of the database, lines ended as they are here. */
static Datum
Shown(const char *utf8, int length)
{
	char	   *copy = palloc(length + 1);
	int			n = 0;

	for (int i = 0; i < length; i++)
	{
		if (utf8[i] != '\r')
			copy[n++] = utf8[i];
	}
	copy[n] = '\0';
	return CStringGetTextDatum(pg_any_to_server(copy, n, PG_UTF8));
}

static void
MakeSample(RenderNotification *notification, const char *kind, TimestampTz now)
{
	RenderEvent *event = notification->event;

	notification->id = IdFirstAt(now);
	event->kind = kind;
	if (strcmp(kind, "test") == 0)
		return;
	event->template_id = SAMPLE_ID;
	event->name = "Sample";
	if (strcmp(kind, "coupon") == 0)
	{
		event->task_id = SAMPLE_ID;
		return;
	}
	event->minutes = SAMPLE_MINUTES;
	event->has_start = true;
	event->start = now - now % USECS_PER_MINUTE + SAMPLE_MINUTES * USECS_PER_MINUTE;
}

static void
PreviewMail(const RenderNotification *notification,
			const RenderChannel *channel, TimestampTz now,
			Datum *values)
{
	StringInfoData mail;
	const char *text;

	initStringInfo(&mail);
	RenderMail(notification, channel, now, &mail);
	text = strstr(mail.data, "\r\n\r\n");
	values[1] = Shown(mail.data, text - mail.data);
	values[2] = Shown(text + 4, strlen(text + 4));
}

/* Not what an administrator has given, but for types of bodies. */
static void
AppendMasked(StringInfo list, const char *header)
{
	const char *colon = strchr(header, ':');

	if (pg_strncasecmp(header, "Content-Type:", strlen("Content-Type:")) == 0)
		appendStringInfoString(list, header);
	else
		appendStringInfo(list, "%.*s: ***", (int) (colon - header), header);
}

static void
PreviewRequest(const RenderNotification *notification,
			const RenderChannel *channel, TimestampTz now,
			   bool has_login, Datum *values)
{
	StringInfoData body,
				list;
	const char **headers;

	initStringInfo(&body);
	initStringInfo(&list);
	RenderRequest(notification, channel, now, &body, &headers);
	if (has_login)
		appendStringInfoString(&list, "Authorization: ***\n");
	for (int i = 0; headers[i] != NULL; i++)
	{
		if (i > 0)
			appendStringInfoChar(&list, '\n');
		if (i < channel->nheaders - channel->nown)
			AppendMasked(&list, headers[i]);
		else
			appendStringInfoString(&list, headers[i]);
	}
	values[1] = Shown(list.data, list.len);
	values[2] = CStringGetTextDatum(pg_any_to_server(body.data, body.len, PG_UTF8));
}

/*
 * coupon_channel_preview(kind, channel, user_id) → endpoint, headers, body
 */
Datum
coupon_channel_preview(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TimestampTz now = GetCurrentTimestamp();
	RenderEvent event = {0};
	RenderRecipient recipient;
	RenderNotification notification = {.event = &event, .recipients = &recipient,
	.nrecipients = 1};
	RenderChannel *channel;
	const char *endpoint;
	Datum		values[3];
	bool		nulls[3] = {false};
	Datum		args[3];
	QueryScope	scope;

	MakeSample(&notification, ChannelKindArg(fcinfo, 0), now);
	event.channel = ChannelArg(fcinfo, 1);
	ArgRequire(fcinfo, 2, "user_id");
	recipient.user_id = PG_GETARG_INT64(2);
	ArgCheckUserId(recipient.user_id);
	ChannelRequireUnbound(ROLE_OPERATOR);
	InitMaterializedSRF(fcinfo, 0);

	args[0] = CStringGetTextDatum(event.kind);
	args[1] = CStringGetTextDatum(event.channel);
	args[2] = Int64GetDatum(recipient.user_id);
	QueryBegin(&scope);
	if (QueryRun(&read_channel, args, NULL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("channel \"%s\" is not set up", event.channel),
				 errhint("SELECT coupon_channel_set('%s', 'https://...')", event.channel)));
	endpoint = Column(1);
	channel = RenderChannelMake(Column(2), Column(3), Column(4), Column(5));
	event.subject = Utf8Column(6);
	event.body = Utf8Column(7);
	recipient.address = Utf8Column(8);
	values[0] = CStringGetTextDatum(Receiver(endpoint));
	if (strncmp(endpoint, "smtp", 4) == 0)
		PreviewMail(&notification, channel, now, values);
	else
		PreviewRequest(&notification, channel, now, Column(9) != NULL, values);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	QueryEnd(&scope);
	return (Datum) 0;
}
