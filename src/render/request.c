/*
 * request.c
 *		A notification as an HTTP request: its body, its headers, its signature.
 *
 * Without a body_template a request follows Standard Webhooks 1.0; with one it
 * speaks the dialect of a gateway, with the same id in Idempotency-Key.  What
 * is the same in every request of a channel has been worked out once, by
 * RenderChannelMake.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/id.h"
#include "render/hmac.h"
#include "render/request.h"
#include "render/text.h"

#define UNIX_EPOCH_SECS \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY)

#define SIGNATURE_CHARS 44		/* base64 of 32 bytes */

/* webhook-id, webhook-timestamp, webhook-signature, Idempotency-Key, NULL */
#define MORE_HEADERS 5

/* v1,<base64 of HMAC-SHA256 over id.timestamp.body>, with the i-th secret */
static void
AppendSignature(StringInfo out, const RenderChannel *channel, int i, const char *id,
				const char *timestamp, StringInfo body)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	RenderBytes texts[] = {
		{id, strlen(id)}, {".", 1}, {timestamp, strlen(timestamp)}, {".", 1},
		{body->data, body->len}, {NULL}
	};

	RenderHmac(i, &channel->secrets[i], texts, digest);
	appendBinaryStringInfo(out, "v1,", 3);
	enlargeStringInfo(out, SIGNATURE_CHARS);
	out->len += CompatB64Encode(digest, sizeof(digest), out->data + out->len,
								SIGNATURE_CHARS);
	out->data[out->len] = '\0';
}

/* ,"channel": … "body": …: what a body says of the event */
static void
AppendEventAnew(StringInfo out, const RenderNotification *notification)
{
	const RenderEvent *event = notification->event;
	StringInfoData subject,
				body;

	initStringInfo(&subject);
	initStringInfo(&body);
	RenderTexts(notification, &subject, &body);
	appendStringInfoString(out, ",\"channel\":");
	RenderJsonString(out, event->channel);
	appendStringInfoString(out, ",\"template_id\":");
	RenderJsonId(out, event->template_id);
	appendStringInfoString(out, ",\"name\":");
	RenderJsonString(out, event->name);
	appendStringInfoString(out, ",\"shop_number\":");
	RenderJsonId(out, event->shop_number);
	appendStringInfoString(out, ",\"start\":");
	if (RenderHasStart(event))
	{
		appendStringInfoChar(out, '"');
		RenderUtc(out, event->start);
		appendStringInfoChar(out, '"');
	}
	else
		appendStringInfoString(out, "null");
	appendStringInfoString(out, ",\"minutes\":");
	if (event->minutes != 0)
		RenderInteger(out, event->minutes);
	else
		appendStringInfoString(out, "null");
	appendStringInfoString(out, ",\"task_id\":");
	RenderJsonId(out, event->task_id);
	appendStringInfoString(out, ",\"subject\":");
	RenderJsonString(out, subject.data);
	appendStringInfoString(out, ",\"body\":");
	RenderJsonString(out, body.data);
	pfree(subject.data);
	pfree(body.data);
}

/* The same, made once for all notifications of the event, unless they read differently. */
static void
AppendEvent(StringInfo out, const RenderNotification *notification)
{
	RenderEvent *event = notification->event;
	int			begin = out->len;

	if (event->json != NULL)
	{
		appendBinaryStringInfo(out, event->json, event->json_length);
		return;
	}
	AppendEventAnew(out, notification);
	if (RenderTextsAreShared(event))
	{
		event->json_length = out->len - begin;
		event->json = pnstrdup(out->data + begin, event->json_length);
	}
}

/* {"type": …, "timestamp": …, "data": {…}} */
static void
AppendStandardBody(StringInfo out, const RenderNotification *notification)
{
	appendStringInfoString(out, "{\"type\":\"");
	appendStringInfoString(out, RenderEventType(notification->event));
	/* Of the event, not of the attempt: the body stays what it was. */
	appendStringInfoString(out, "\",\"timestamp\":\"");
	RenderUtc(out, IdTime(notification->id));
	appendStringInfoString(out, "\",\"data\":{\"id\":");
	RenderJsonId(out, notification->id);
	AppendEvent(out, notification);
	appendStringInfoString(out, ",\"recipients\":");
	RenderRecipients(out, notification);
	appendStringInfoString(out, "}}");
}

/* What the channel's body_template makes of it. */
static void
AppendOwnBody(StringInfo out, const RenderNotification *notification,
			  const RenderChannel *channel)
{
	StringInfoData subject,
				body;

	initStringInfo(&subject);
	initStringInfo(&body);
	RenderTexts(notification, &subject, &body);
	RenderTemplate(notification, channel, subject.data, body.data, out);
	pfree(subject.data);
	pfree(body.data);
}

static void
BeginHeader(StringInfo header, const char *name)
{
	initStringInfo(header);
	appendStringInfoString(header, name);
	appendStringInfoString(header, ": ");
}

/* id, timestamp and signatures of Standard Webhooks. */
static int
WebhookHeaders(const RenderNotification *notification,
			const RenderChannel *channel, TimestampTz now,
			   StringInfo body, const char **headers)
{
	StringInfoData id,
				timestamp,
				signature;
	int			n = 0;

	BeginHeader(&id, "webhook-id");
	RenderInteger(&id, notification->id);
	headers[n++] = id.data;
	BeginHeader(&timestamp, "webhook-timestamp");
	RenderInteger(&timestamp, now / USECS_PER_SEC + UNIX_EPOCH_SECS);
	headers[n++] = timestamp.data;
	if (channel->nsecrets == 0)
		return n;

	BeginHeader(&signature, "webhook-signature");
	for (int i = 0; i < channel->nsecrets; i++)
	{
		if (i > 0)
			appendStringInfoChar(&signature, ' ');
		AppendSignature(&signature, channel, i,
						id.data + strlen("webhook-id: "),
						timestamp.data + strlen("webhook-timestamp: "), body);
	}
	headers[n++] = signature.data;
	return n;
}

/*
 * RenderRequest appends the body of a request, and gives its headers, "Name:
 * value", ended by a NULL: both in memory of the current context.
 */
void
RenderRequest(const RenderNotification *notification,
			const RenderChannel *channel, TimestampTz now,
			  StringInfo body, const char ***headers)
{
	const char **list = palloc((channel->nheaders + MORE_HEADERS) * sizeof(char *));
	int			n = channel->nheaders;
	StringInfoData key;

	if (channel->body_template == NULL)
		AppendStandardBody(body, notification);
	else
		AppendOwnBody(body, notification, channel);

	memcpy(list, channel->headers, n * sizeof(char *));
	if (channel->body_template == NULL || channel->nsecrets > 0)
		n += WebhookHeaders(notification, channel, now, body, list + n);
	if (channel->body_template != NULL)
	{
		BeginHeader(&key, "Idempotency-Key");
		RenderInteger(&key, notification->id);
		list[n++] = key.data;
	}
	list[n] = NULL;
	*headers = list;
}
