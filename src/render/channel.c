/*
 * channel.c
 *		A channel, checked and taken apart for RenderRequest and RenderMail.
 *
 * coupon_channel_set checks secrets and headers by making what rendering needs
 * of them, and so does the worker when it reads the row: a row that was edited
 * by hand gets the same error, and never a header of its own making.
 */
#include "postgres.h"

#include <ctype.h>

#include "catalog/namespace.h"
#include "common/base64.h"
#include "common/string.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/compat.h"
#include "base/errors.h"
#include "render/request.h"

#define MAX_SECRETS 10
#define MIN_KEY 24
#define SECRET_PREFIX "whsec_"
#define MAX_SECRET_CHARS 88		/* base64 of RENDER_MAX_KEY bytes */

#define MAX_HEADERS 32
#define MAX_HEADER 8000			/* bytes of a value */
#define OWN_HEADERS 2

#define MAX_MAIL_ADDRESS 254

#define JSON_TYPE "application/json"
#define FORM_TYPE "application/x-www-form-urlencoded"

static void
BadSecret(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("secret is malformed"),
			 errdetail("%s", detail),
			 errhint("SELECT coupon_channel_secret() makes one; several are separated by blanks.")));
}

/* One of the secrets: whsec_ and the key in base64. */
static void
ReadSecret(RenderSecret *secret, const char *text, int length)
{
	int			prefix = strlen(SECRET_PREFIX);

	if (length <= prefix || strncmp(text, SECRET_PREFIX, prefix) != 0)
		BadSecret("It must begin with \"" SECRET_PREFIX "\".");
	if (length - prefix > MAX_SECRET_CHARS)
		BadSecret("A key has 24 to 64 bytes.");
	secret->length = CompatB64Decode(text + prefix, length - prefix, secret->key,
									 RENDER_MAX_KEY);
	/* No room for one byte too many looks like an error as well. */
	if (secret->length < 0)
		BadSecret("After \"" SECRET_PREFIX "\" it must be base64, of 24 to 64 bytes.");
	if (secret->length < MIN_KEY)
		BadSecret("A key has 24 to 64 bytes.");
}

static void
ReadSecrets(RenderChannel *channel, const char *text)
{
	channel->secrets = palloc(MAX_SECRETS * sizeof(RenderSecret));
	for (;;)
	{
		int			length;

		text += strspn(text, " ");
		if (*text == '\0')
			break;
		if (channel->nsecrets == MAX_SECRETS)
			BadSecret("There are more than 10.");
		length = strcspn(text, " ");
		ReadSecret(&channel->secrets[channel->nsecrets++], text, length);
		text += length;
	}
	if (channel->nsecrets == 0)
		BadSecret("It is empty.");
}

static void
BadHeader(const char *name, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("header \"%s\" cannot be sent", name),
			 errdetail("%s", detail),
			 errhint("headers is an object like {\"Authorization\": \"Bearer ...\"}.")));
}

static void
CheckHeaderName(const char *name)
{
	static const char *const ours[] = {
		"Content-Length", "Host", "Transfer-Encoding", "Connection", "Expect",
		"Idempotency-Key"
	};

	if (name[0] == '\0')
		BadHeader(name, "It has no name.");
	for (const char *p = name; *p != '\0'; p++)
	{
		if (!isalnum((unsigned char) *p) && strchr("!#$%&'*+-.^_`|~", *p) == NULL)
			BadHeader(name, "The name of a header consists of letters, digits and hyphens.");
		if (IS_HIGHBIT_SET(*p))
			BadHeader(name, "The name of a header is ASCII.");
	}
	if (pg_strncasecmp(name, "webhook-", strlen("webhook-")) == 0)
		BadHeader(name, "Those that begin with \"webhook-\" are made from id and secret.");
	for (int i = 0; i < lengthof(ours); i++)
	{
		if (pg_strcasecmp(name, ours[i]) == 0)
			BadHeader(name, "This one is made for each request.");
	}
}

static void
CheckHeaderValue(const char *name, const char *value)
{
	if (value[strspn(value, " ")] == '\0')
		BadHeader(name, "It has no value.");
	if (strlen(value) > MAX_HEADER)
		BadHeader(name, "Its value is longer than 8000 bytes.");
	for (const char *p = value; *p != '\0'; p++)
	{
		if ((unsigned char) *p < ' ' || *p == 0x7f)
			BadHeader(name, "Its value contains a control character.");
	}
}

/* Is the header named so?  Its value, else NULL. */
static const char *
ValueOf(const char *header, const char *name)
{
	int			length = strlen(name);

	if (pg_strncasecmp(header, name, length) != 0 || header[length] != ':')
		return NULL;
	return header + length + strlen(": ");
}

static const char *
FindHeader(const RenderChannel *channel, const char *name)
{
	for (int i = 0; i < channel->nheaders; i++)
	{
		const char *value = ValueOf(channel->headers[i], name);

		if (value != NULL)
			return value;
	}
	return NULL;
}

static char *
StringOf(const JsonbValue *value)
{
	return pnstrdup(value->val.string.val, value->val.string.len);
}

static void
AddHeader(RenderChannel *channel, const char *name, const JsonbValue *json)
{
	char	   *value;

	if (channel->nheaders == MAX_HEADERS)
		BadHeader(name, "There are more than 32.");
	CheckHeaderName(name);
	if (json->type != jbvString)
		BadHeader(name, "Its value is not a string.");
	if (FindHeader(channel, name) != NULL)
		BadHeader(name, "It is given twice; upper and lower case are the same.");
	value = StringOf(json);
	CheckHeaderValue(name, value);
	channel->headers[channel->nheaders++] =
		RenderUtf8(psprintf("%s: %s", name, value));
}

static void
ReadHeaders(RenderChannel *channel, Jsonb *headers)
{
	JsonbIterator *it = JsonbIteratorInit(&headers->root);
	JsonbValue	v;
	JsonbIteratorToken token;
	const char *name = NULL;

	if (!JB_ROOT_IS_OBJECT(headers))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("headers is not an object"),
				 errhint("headers is an object like {\"Authorization\": \"Bearer ...\"}.")));
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			name = StringOf(&v);
		else if (token == WJB_VALUE)
			AddHeader(channel, name, &v);
	}
}

/* In which way the type of the body wants values to be written. */
static RenderEscape
EscapeOf(const char *type)
{
	int			length = strcspn(type, "; ");

	if (length == strlen(FORM_TYPE) && pg_strncasecmp(type, FORM_TYPE, length) == 0)
		return RENDER_FORM;
	if (length == strlen(JSON_TYPE) && pg_strncasecmp(type, JSON_TYPE, length) == 0)
		return RENDER_JSON;
	if (length > 5 && pg_strncasecmp(type + length - 5, "+json", 5) == 0)
		return RENDER_JSON;
	/* application/xml, text/xml, application/soap+xml */
	if (length >= 4 && pg_strncasecmp(type + length - 3, "xml", 3) == 0 &&
		strchr("/+", type[length - 4]) != NULL)
		return RENDER_XML;
	return RENDER_RAW;
}

/*
 * RenderChannelMake takes a channel apart, in memory of the current context.
 * headers is a JSON object.  Raises VC003 for a secret, headers or sender that cannot
 * be used, 22P02 for headers that are not JSON.  NULL: none.
 */
RenderChannel *
RenderChannelMake(const char *secret, const char *headers, const char *body_template,
				  const char *mail_from)
{
	RenderChannel *channel = palloc0(sizeof(RenderChannel));
	const char *type;

	channel->headers = palloc((MAX_HEADERS + OWN_HEADERS) * sizeof(char *));
	if (body_template != NULL)
		channel->body_template = RenderUtf8(pstrdup(body_template));
	if (mail_from != NULL)
	{
		if (!RenderIsMailAddress(mail_from))
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
					 errmsg("mail_from is not the address of a mailbox"),
					 errhint("Give the address alone, like shop@example.com.")));
		channel->mail_from = RenderUtf8(pstrdup(mail_from));
	}
	if (secret != NULL)
		ReadSecrets(channel, secret);
	if (headers != NULL)
		ReadHeaders(channel, DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(headers))));

	type = FindHeader(channel, "Content-Type");
	channel->escape = type == NULL ? RENDER_JSON : EscapeOf(type);
	if (type == NULL)
	{
		channel->headers[channel->nheaders++] = "Content-Type: " JSON_TYPE;
		channel->nown++;
	}
	if (FindHeader(channel, "User-Agent") == NULL)
	{
		channel->headers[channel->nheaders++] = "User-Agent: coupon/" COUPON_VERSION;
		channel->nown++;
	}
	return channel;
}

/*
 * RenderUtf8 returns a text of this database in UTF-8, the same pointer where
 * it is already; what UTF-8 does not know becomes a question mark, so that no
 * text can stop a queue.  In a transaction, since it may read a catalog.
 */
const char *
RenderUtf8(const char *text)
{
	int			encoding = GetDatabaseEncoding();
	Oid			conversion;
	StringInfoData out;
	int			length = strlen(text);

	if (encoding == PG_UTF8 || pg_is_ascii(text))
		return text;
	/* SQL_ASCII: whatever it is, only UTF-8 passes. */
	conversion = encoding == PG_SQL_ASCII ? InvalidOid :
		FindDefaultConversionProc(encoding, PG_UTF8);
	initStringInfo(&out);
	while (length > 0)
	{
		int			done;

		if (OidIsValid(conversion))
		{
			enlargeStringInfo(&out, length * MAX_CONVERSION_GROWTH + 1);
			done = pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8,
												 (unsigned char *) text, length,
												 (unsigned char *) out.data + out.len,
												 out.maxlen - out.len, true);
			out.len += strlen(out.data + out.len);
		}
		else
		{
			done = pg_encoding_verifymbstr(PG_UTF8, text, length);
			appendBinaryStringInfo(&out, text, done);
		}
		text += done;
		length -= done;
		if (length > 0)
		{
			int			skip = pg_encoding_mblen(encoding, text);

			appendStringInfoChar(&out, '?');
			text += Min(skip, length);
			length -= Min(skip, length);
		}
	}
	return out.data;
}

/*
 * RenderIsMailAddress tells whether mail can be addressed so: one @ with
 * something on both sides, and nothing that could end it.
 */
bool
RenderIsMailAddress(const char *address)
{
	const char *at = strchr(address, '@');

	if (at == NULL || at == address || at[1] == '\0' || strchr(at + 1, '@') != NULL ||
		strlen(address) > MAX_MAIL_ADDRESS)
		return false;
	for (const char *p = address; *p != '\0'; p++)
	{
		if ((unsigned char) *p <= ' ' || *p == 0x7f || strchr("<>()[]\\,;:\"", *p) != NULL)
			return false;
	}
	return true;
}
