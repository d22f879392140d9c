/*
 * text.c
 *		Texts with {placeholders}, and how values are written into them.
 *
 * A {placeholder} is letters and underscores between braces, and one that we
 * know; every other brace stands for itself, JSON is full of them.
 *
 * Bytes are appended, nothing is formatted: this runs some 10,000 times a
 * second.  It is called outside transactions, so nothing here may look into a
 * catalog.
 */
#include "postgres.h"

#include "pgtime.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "render/request.h"
#include "render/text.h"

#define MAX_INTEGER 24			/* characters, and a zero */
#define MOST_RENDERED (1024 * 1024) /* bytes of a notification */
#define MAX_UTC 24				/* characters of a moment, as a rule */

/* Kinds of notification: the event's type, and what is said unless coupon_message
 * says something else. */
typedef struct Kind
{
	const char *name;
	const char *type;
	const char *subject;
	const char *body;
} Kind;

static const Kind kinds[] = {
	{"reminder", "coupon.reminder",
		"{name} starts soon",
	"{name} starts at {start}, in {minutes} minutes."},
	{"coupon", "coupon.received",
		"A coupon for you: {name}",
	"You have received a coupon: {name}."},
	{"test", "coupon.test",
		"Test of channel {channel}",
	"This is a test of channel {channel}. Notification {id}."},
};

typedef enum Placeholder
{
	PH_ID, PH_KIND, PH_CHANNEL, PH_USER_ID, PH_ADDRESS, PH_NAME, PH_TEMPLATE_ID,
	PH_START, PH_MINUTES, PH_TASK_ID, PH_SHOP_NUMBER,
	/* not within a message: they contain one, or are for machines */
	PH_SUBJECT, PH_BODY, PH_RECIPIENTS, PH_ADDRESSES,
	PH_UNKNOWN
} Placeholder;

#define PH_IN_MESSAGE PH_SUBJECT	/* those below */

static const char *const placeholder_names[PH_UNKNOWN] = {
	[PH_ID] = "id",
	[PH_KIND] = "kind",
	[PH_CHANNEL] = "channel",
	[PH_USER_ID] = "user_id",
	[PH_ADDRESS] = "address",
	[PH_NAME] = "name",
	[PH_TEMPLATE_ID] = "template_id",
	[PH_START] = "start",
	[PH_MINUTES] = "minutes",
	[PH_TASK_ID] = "task_id",
	[PH_SHOP_NUMBER] = "shop_number",
	[PH_SUBJECT] = "subject",
	[PH_BODY] = "body",
	[PH_RECIPIENTS] = "recipients",
	[PH_ADDRESSES] = "addresses",
};

/* Length of the word in braces at text, 0 if that is none. */
static int
WordInBraces(const char *text)
{
	int			n = 1;

	while ((text[n] >= 'a' && text[n] <= 'z') ||
		   (text[n] >= 'A' && text[n] <= 'Z') || text[n] == '_')
		n++;
	return text[n] == '}' ? n - 1 : 0;
}

static Placeholder
PlaceholderOf(const char *word, int length, bool in_message)
{
	int			end = in_message ? PH_IN_MESSAGE : PH_UNKNOWN;

	for (int i = 0; i < end; i++)
	{
		if (strncmp(placeholder_names[i], word, length) == 0 &&
			placeholder_names[i][length] == '\0')
			return (Placeholder) i;
	}
	return PH_UNKNOWN;
}

/*
 * RenderPlaceholder finds the first {word} in a text and tells whether it is
 * known; false: there is none.
 */
bool
RenderPlaceholder(const char *text, bool in_message, const char **name,
				  int *length, bool *known)
{
	for (; (text = strchr(text, '{')) != NULL; text++)
	{
		*length = WordInBraces(text);
		if (*length == 0)
			continue;
		*name = text + 1;
		*known = PlaceholderOf(*name, *length, in_message) != PH_UNKNOWN;
		return true;
	}
	return false;
}

/*
 * RenderPlaceholderList returns the known ones, for a hint.
 */
const char *
RenderPlaceholderList(bool in_message)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < (in_message ? PH_IN_MESSAGE : PH_UNKNOWN); i++)
		appendStringInfo(&list, "%s{%s}", i > 0 ? ", " : "", placeholder_names[i]);
	return list.data;
}

/*
 * RenderInteger appends a number.
 */
void
RenderInteger(StringInfo out, int64 value)
{
	enlargeStringInfo(out, MAX_INTEGER);
	out->len += pg_lltoa(value, out->data + out->len);
}

static void
AppendPadded(StringInfo out, int value, int width)
{
	enlargeStringInfo(out, MAX_INTEGER);
	out->len = pg_ultostr_zeropad(out->data + out->len, value, width) - out->data;
	out->data[out->len] = '\0';
}

static void
AppendDate(StringInfo out, const struct pg_tm *tm, char separator)
{
	AppendPadded(out, tm->tm_year, 4);
	appendStringInfoChar(out, '-');
	AppendPadded(out, tm->tm_mon, 2);
	appendStringInfoChar(out, '-');
	AppendPadded(out, tm->tm_mday, 2);
	appendStringInfoChar(out, separator);
	AppendPadded(out, tm->tm_hour, 2);
	appendStringInfoChar(out, ':');
	AppendPadded(out, tm->tm_min, 2);
}

static void
AppendUtc(StringInfo out, TimestampTz at)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(at, NULL, &tm, &fsec, NULL, NULL) != 0 || tm.tm_year <= 0)
		return;					/* nothing that a year of four digits could say */
	AppendDate(out, &tm, 'T');
	appendStringInfoChar(out, ':');
	AppendPadded(out, tm.tm_sec, 2);
	appendStringInfoChar(out, 'Z');
}

/*
 * RenderUtc appends a moment as 2024-05-01T10:00:00Z, in whole seconds.  Many
 * notifications have few moments between them: the last ones are kept.
 */
void
RenderUtc(StringInfo out, TimestampTz at)
{
	static struct
	{
		int64		second;		/* 0: none */
		int			length;
		char		text[MAX_UTC];
	}			kept[4];
	int64		second = Max(at, 0) / USECS_PER_SEC;
	int			slot = second % lengthof(kept);
	int			begin = out->len;

	if (second != 0 && kept[slot].second == second)
	{
		appendBinaryStringInfo(out, kept[slot].text, kept[slot].length);
		return;
	}
	AppendUtc(out, at);
	if (out->len - begin > MAX_UTC)
		return;
	kept[slot].second = second;
	kept[slot].length = out->len - begin;
	memcpy(kept[slot].text, out->data + begin, out->len - begin);
}

/* For people: 2024-05-01 18:00 CST, in the TimeZone of the session. */
static void
AppendLocal(StringInfo out, TimestampTz at)
{
	struct pg_tm tm;
	fsec_t		fsec;
	const char *zone = NULL;
	int			offset;

	if (timestamp2tm(at, &offset, &tm, &fsec, &zone, NULL) != 0 || tm.tm_year <= 0)
		return;
	AppendDate(out, &tm, ' ');
	appendStringInfoChar(out, ' ');
	if (zone != NULL)
		appendStringInfoString(out, zone);
	else
		appendStringInfoString(out, "UTC");
}

/*
 * RenderHasStart tells whether there is a moment to tell.
 */
bool
RenderHasStart(const RenderEvent *event)
{
	return event->has_start && !TIMESTAMP_NOT_FINITE(event->start);
}

static void
AppendAddress(StringInfo out, const RenderRecipient *recipient, RenderEscape escape)
{
	if (recipient->address != NULL)
		RenderEscaped(out, recipient->address, escape);
	else
		RenderInteger(out, recipient->user_id);
}

/* Messages repeat what they like, and many are in memory at a time. */
static void
RequireSize(StringInfo out)
{
	if (out->len > MOST_RENDERED)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the notification is larger than 1 MB"),
				 errhint("Shorten the message or body_template of its channel, or lower batch_size.")));
}

/*
 * RenderRecipients appends [{"user_id":"1","address":"…"}, …]
 */
void
RenderRecipients(StringInfo out, const RenderNotification *notification)
{
	appendStringInfoChar(out, '[');
	for (int i = 0; i < notification->nrecipients; i++)
	{
		const RenderRecipient *recipient = &notification->recipients[i];

		appendStringInfoString(out, i > 0 ? ",{\"user_id\":" : "{\"user_id\":");
		RenderJsonId(out, recipient->user_id);
		appendStringInfoString(out, ",\"address\":\"");
		AppendAddress(out, recipient, RENDER_JSON);
		appendStringInfoString(out, "\"}");
		RequireSize(out);
	}
	appendStringInfoChar(out, ']');
}

/* ["…", …], or with commas alone where that is not JSON. */
static void
AppendAddresses(StringInfo out, const RenderNotification *notification, RenderEscape escape)
{
	bool		json = escape == RENDER_JSON;

	if (json)
		appendStringInfoChar(out, '[');
	for (int i = 0; i < notification->nrecipients; i++)
	{
		if (i > 0)
			RenderEscaped(out, ",", json ? RENDER_RAW : escape);
		if (json)
			appendStringInfoChar(out, '"');
		AppendAddress(out, &notification->recipients[i], escape);
		if (json)
			appendStringInfoChar(out, '"');
	}
	if (json)
		appendStringInfoChar(out, ']');
}

/* What expanding a text needs to know. */
typedef struct Expansion
{
	const RenderNotification *notification;
	RenderEscape escape;
	bool		in_message;
	const char *subject;		/* not within a message */
	const char *body;
} Expansion;

/*
 * Those that name one recipient; empty in a message to many.  A body_template
 * that was made for one still names them all.
 */
static void
AppendOneRecipient(StringInfo out, const Expansion *x, Placeholder which)
{
	const RenderNotification *notification = x->notification;

	if (notification->nrecipients == 1 && which == PH_USER_ID)
	{
		if (notification->recipients[0].user_id != 0)
			RenderInteger(out, notification->recipients[0].user_id);
	}
	else if (notification->nrecipients == 1)
		AppendAddress(out, &notification->recipients[0], x->escape);
	else if (!x->in_message && which == PH_ADDRESS)
	{
		for (int i = 0; i < notification->nrecipients; i++)
		{
			if (i > 0)
				RenderEscaped(out, ",", x->escape);
			AppendAddress(out, &notification->recipients[i], x->escape);
		}
	}
}

static void
AppendStart(StringInfo out, const Expansion *x)
{
	const RenderEvent *event = x->notification->event;
	StringInfoData start;

	if (!RenderHasStart(event))
		return;
	initStringInfo(&start);
	if (x->in_message)
		AppendLocal(&start, event->start);
	else
		RenderUtc(&start, event->start);
	RenderEscaped(out, start.data, x->escape);
	pfree(start.data);
}

static void
AppendRecipientsEscaped(StringInfo out, const Expansion *x)
{
	StringInfoData list;

	initStringInfo(&list);
	RenderRecipients(&list, x->notification);
	RenderEscaped(out, list.data, x->escape == RENDER_JSON ? RENDER_RAW : x->escape);
	pfree(list.data);
}

static void
AppendValue(StringInfo out, const Expansion *x, Placeholder which)
{
	const RenderNotification *notification = x->notification;
	const RenderEvent *event = notification->event;

	switch (which)
	{
		case PH_ID:
			RenderInteger(out, notification->id);
			break;
		case PH_KIND:
			appendStringInfoString(out, event->kind);
			break;
		case PH_CHANNEL:
			appendStringInfoString(out, event->channel);
			break;
		case PH_USER_ID:
		case PH_ADDRESS:
			AppendOneRecipient(out, x, which);
			break;
		case PH_NAME:
			if (event->name != NULL)
				RenderEscaped(out, event->name, x->escape);
			break;
		case PH_TEMPLATE_ID:
			if (event->template_id != 0)
				RenderInteger(out, event->template_id);
			break;
		case PH_START:
			AppendStart(out, x);
			break;
		case PH_MINUTES:
			if (event->minutes != 0)
				RenderInteger(out, event->minutes);
			break;
		case PH_TASK_ID:
			if (event->task_id != 0)
				RenderInteger(out, event->task_id);
			break;
		case PH_SHOP_NUMBER:
			if (event->shop_number != 0)
				RenderInteger(out, event->shop_number);
			break;
		case PH_SUBJECT:
			RenderEscaped(out, x->subject, x->escape);
			break;
		case PH_BODY:
			RenderEscaped(out, x->body, x->escape);
			break;
		case PH_RECIPIENTS:
			AppendRecipientsEscaped(out, x);
			break;
		case PH_ADDRESSES:
			AppendAddresses(out, notification, x->escape);
			break;
		case PH_UNKNOWN:
			break;
	}
}

static void
Expand(StringInfo out, const char *text, const Expansion *x)
{
	const char *brace;

	while ((brace = strchr(text, '{')) != NULL)
	{
		int			length = WordInBraces(brace);
		Placeholder which = PH_UNKNOWN;

		if (length > 0)
			which = PlaceholderOf(brace + 1, length, x->in_message);
		if (which == PH_UNKNOWN)
		{
			appendBinaryStringInfo(out, text, brace + 1 - text);
			text = brace + 1;
			continue;
		}
		appendBinaryStringInfo(out, text, brace - text);
		AppendValue(out, x, which);
		RequireSize(out);
		text = brace + length + 2;
	}
	appendStringInfoString(out, text);
}

static const Kind *
KindOf(const RenderEvent *event)
{
	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (strcmp(kinds[i].name, event->kind) == 0)
			return &kinds[i];
	}
	elog(ERROR, "unknown kind \"%s\" of a notification", event->kind);
}

/*
 * RenderEventType returns the type of the event in Standard Webhooks.
 */
const char *
RenderEventType(const RenderEvent *event)
{
	return KindOf(event)->type;
}

/*
 * RenderTemplate appends a body_template with its placeholders filled in.
 */
void
RenderTemplate(const RenderNotification *notification, const RenderChannel *channel,
			   const char *subject, const char *body, StringInfo out)
{
	Expansion	x = {notification, channel->escape, false, subject, body};

	Expand(out, channel->body_template, &x);
}

static const char *
SubjectOf(const RenderEvent *event)
{
	return event->subject != NULL ? event->subject : KindOf(event)->subject;
}

static const char *
BodyOf(const RenderEvent *event)
{
	return event->body != NULL ? event->body : KindOf(event)->body;
}

/*
 * RenderTexts appends what people read.
 */
void
RenderTexts(const RenderNotification *notification, StringInfo subject, StringInfo body)
{
	Expansion	x = {notification, RENDER_RAW, true};

	Expand(subject, SubjectOf(notification->event), &x);
	Expand(body, BodyOf(notification->event), &x);
}

/* Whether a message names what each notification has of its own. */
static bool
IsPersonal(const char *message)
{
	for (; (message = strchr(message, '{')) != NULL; message++)
	{
		switch (PlaceholderOf(message + 1, WordInBraces(message), true))
		{
			case PH_ID:
			case PH_USER_ID:
			case PH_ADDRESS:
				return true;
			default:
				break;
		}
	}
	return false;
}

/*
 * RenderTextsAreShared tells whether people read the same in all notifications of an
 * event.
 */
bool
RenderTextsAreShared(const RenderEvent *event)
{
	return !IsPersonal(SubjectOf(event)) && !IsPersonal(BodyOf(event));
}
