/*
 * mail.c
 *		A notification as a mail: RFC 5322, plain text in UTF-8.
 *
 * Nothing that texts hold can add a header: a subject loses its control
 * characters, or is encoded as a whole, and an address that is none is left
 * out.  The text goes in base64, so that no line is too long and none begins
 * with a dot.
 */
#include "postgres.h"

#include "common/base64.h"
#include "mb/pg_wchar.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/errors.h"
#include "render/request.h"
#include "render/text.h"

#define PLAIN_SUBJECT 66		/* characters, so that the line has at most 78 */
#define WORD_BYTES 45			/* of text in an encoded word: 60 in base64 */
#define LINE_BYTES 57			/* of text in a line of 76 */

static void
AppendBase64(StringInfo out, const char *data, int length)
{
	enlargeStringInfo(out, pg_b64_enc_len(length) + 1);
	out->len += CompatB64Encode(data, length, out->data + out->len,
								pg_b64_enc_len(length));
	out->data[out->len] = '\0';
}

/* Control characters become blanks. */
static void
Flatten(char *text)
{
	for (; *text != '\0'; text++)
	{
		if ((unsigned char) *text < ' ' || *text == 0x7f)
			*text = ' ';
	}
}

/* A subject of ASCII as it is, any other in encoded words, see RFC 2047. */
static void
AppendSubject(StringInfo mail, const char *subject, int length)
{
	bool		plain = length <= PLAIN_SUBJECT && strstr(subject, "=?") == NULL;

	for (int i = 0; i < length; i++)
		plain &= !IS_HIGHBIT_SET(subject[i]);
	if (plain)
	{
		appendBinaryStringInfo(mail, subject, length);
		return;
	}
	while (length > 0)
	{
		int			n = Min(length, WORD_BYTES);

		/* not within a character */
		while (n > 1 && n < length && ((unsigned char) subject[n] & 0xC0) == 0x80)
			n--;
		appendStringInfoString(mail, "=?UTF-8?B?");
		AppendBase64(mail, subject, n);
		appendStringInfoString(mail, "?=");
		subject += n;
		length -= n;
		if (length > 0)
			appendStringInfoString(mail, "\r\n ");
	}
}

/* Wed, 1 May 2024 10:00:00 +0000 */
static void
AppendMailDate(StringInfo mail, TimestampTz at)
{
	static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
	static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
	"Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(at, NULL, &tm, &fsec, NULL, NULL) != 0)
		elog(ERROR, "a mail is sent at no time");
	appendStringInfo(mail, "%s, %d %s %d %02d:%02d:%02d +0000",
					 days[j2day(date2j(tm.tm_year, tm.tm_mon, tm.tm_mday))], tm.tm_mday,
					 months[tm.tm_mon - 1], tm.tm_year, tm.tm_hour, tm.tm_min, tm.tm_sec);
}

static void
AppendTo(StringInfo mail, const RenderNotification *notification)
{
	const char *address = notification->nrecipients == 1 ?
		notification->recipients[0].address : NULL;

	/* Cut for a channel that took many at a time; nobody is told of another. */
	if (address == NULL || !RenderIsMailAddress(address))
		appendStringInfoString(mail, "undisclosed-recipients:;");
	else
		appendStringInfo(mail, "<%s>", address);
}

/* Lines end in CR LF, before they are encoded. */
static void
AppendText(StringInfo mail, const char *text)
{
	StringInfoData canonical;

	initStringInfo(&canonical);
	for (; *text != '\0'; text++)
	{
		if (*text == '\r' && text[1] == '\n')
			continue;
		if (*text == '\n' || *text == '\r')
			appendStringInfoString(&canonical, "\r\n");
		else
			appendStringInfoChar(&canonical, *text);
	}
	for (int at = 0; at < canonical.len; at += LINE_BYTES)
	{
		AppendBase64(mail, canonical.data + at, Min(LINE_BYTES, canonical.len - at));
		appendStringInfoString(mail, "\r\n");
	}
	pfree(canonical.data);
}

/*
 * RenderMail appends a whole mail.
 */
void
RenderMail(const RenderNotification *notification,
			const RenderChannel *channel, TimestampTz now,
		   StringInfo mail)
{
	const char *domain;
	StringInfoData subject,
				body;

	if (channel->mail_from == NULL) /* a row that was made by hand */
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a mail needs a sender")));
	domain = strchr(channel->mail_from, '@');
	initStringInfo(&subject);
	initStringInfo(&body);
	RenderTexts(notification, &subject, &body);
	Flatten(subject.data);

	appendStringInfo(mail, "From: <%s>\r\nTo: ", channel->mail_from);
	AppendTo(mail, notification);
	appendStringInfoString(mail, "\r\nSubject: ");
	AppendSubject(mail, subject.data, subject.len);
	appendStringInfoString(mail, "\r\nDate: ");
	AppendMailDate(mail, now);
	appendStringInfo(mail, "\r\nMessage-ID: <" INT64_FORMAT "@coupon.%s>\r\n",
					 notification->id, domain != NULL ? domain + 1 : "invalid");
	appendStringInfoString(mail,
						   "MIME-Version: 1.0\r\n"
						   "Content-Type: text/plain; charset=utf-8\r\n"
						   "Content-Transfer-Encoding: base64\r\n"
						   "Auto-Submitted: auto-generated\r\n"
						   "\r\n");
	AppendText(mail, body.data);
	pfree(subject.data);
	pfree(body.data);
}
