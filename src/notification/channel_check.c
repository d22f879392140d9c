/*
 * channel_check.c
 *		What a channel, its texts and addresses may look like.
 *
 * Each check raises VC003 and names what is wrong.  Whether an address may be
 * connected to is not decided here: only at connect time is it known.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/channel_names.h"
#include "base/errors.h"
#include "base/shop_role.h"
#include "notification/channel_check.h"
#include "render/request.h"

#define MAX_ENDPOINT 2000
#define MAX_LOGIN 1000
#define MAX_TEXT (100 * 1024)
#define MAX_SUBJECT 1000
#define MAX_ADDRESS 2000
#define MAX_BATCH_SIZE 1000
#define MAX_IN_FLIGHT 1024
#define MAX_STATUSES 20
#define MAX_RULE 2000
#define MAX_PER_SECOND 100000
#define MIN_TIMEOUT_MS 100
#define MAX_TIMEOUT_MINUTES 10

static const char *const kinds[] = {"reminder", "coupon", "test"};

static bool
HasControl(const char *text)
{
	for (; *text != '\0'; text++)
	{
		if ((unsigned char) *text < ' ' || *text == 0x7f)
			return true;
	}
	return false;
}

/*
 * ChannelRequireUnbound raises 42501 for a role that is bound to a shop.  kinds: whom
 * the function is for.
 */
void
ChannelRequireUnbound(RoleKinds kinds)
{
	RoleRequireUnbound(kinds, "Channels, texts and contacts are common to all shops.");
}

/*
 * ChannelArg returns the name of a channel.
 */
const char *
ChannelArg(FunctionCallInfo fcinfo, int arg)
{
	const char *name;

	ArgRequire(fcinfo, arg, "channel");
	name = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	(void) ChannelRequire(name);
	return name;
}

/*
 * ChannelKindArg returns a kind of notification.
 */
const char *
ChannelKindArg(FunctionCallInfo fcinfo, int arg)
{
	const char *kind;

	ArgRequire(fcinfo, arg, "kind");
	kind = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (strcmp(kind, kinds[i]) == 0)
			return kind;
	}
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("\"%s\" is not a kind of notification", kind),
			 errhint("Use reminder, coupon or test.")));
}

/*
 * ChannelAddressArg returns the address of a recipient.
 */
const char *
ChannelAddressArg(FunctionCallInfo fcinfo, int arg)
{
	const char *address;

	ArgRequire(fcinfo, arg, "address");
	address = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	if (address[strspn(address, " ")] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("address must not be empty"),
				 errhint("A telephone number, a mailbox or a device token; NULL for none.")));
	if (strlen(address) > MAX_ADDRESS)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("address of %zu bytes", strlen(address)),
				 errdetail("It may have %d.", MAX_ADDRESS)));
	if (HasControl(address))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("address contains a control character")));
	return address;
}

static void
BadEndpoint(const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("endpoint cannot be used"),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/* Length of scheme:// if it is one of ours, else 0; it becomes lower case. */
static int
TakeScheme(char *endpoint)
{
	static const char *const schemes[] = {"http://", "https://", "smtp://", "smtps://"};

	for (int i = 0; i < lengthof(schemes); i++)
	{
		int			length = strlen(schemes[i]);

		if (pg_strncasecmp(endpoint, schemes[i], length) == 0)
		{
			memcpy(endpoint, schemes[i], length);
			return length;
		}
	}
	return 0;
}

/* host or [address], and a port perhaps, up to end. */
static bool
IsHostAndPort(const char *host, const char *end)
{
	const char *colon;
	int			port = 0;

	if (*host == '[')
	{
		const char *bracket = memchr(host, ']', end - host);

		if (bracket == NULL || bracket == host + 1)
			return false;
		colon = bracket + 1;
		if (colon < end && *colon != ':')
			return false;
	}
	else
	{
		colon = memchr(host, ':', end - host);
		if (colon == NULL)
			colon = end;
		if (colon == host)
			return false;
	}
	if (colon == end)
		return true;
	if (colon + 1 == end || end - colon > 6)
		return false;
	for (const char *p = colon + 1; p < end; p++)
	{
		if (*p < '0' || *p > '9')
			return false;
		port = port * 10 + (*p - '0');
	}
	return port >= 1 && port <= 65535;
}

static void
CheckEndpoint(char *endpoint)
{
	const char *hint = "Give a URL like https://push.example.com/send or smtp://mail.example.com:587.";
	const char *host;
	const char *end;

	if (endpoint[0] == '\0')
		BadEndpoint("It is empty.", hint);
	if (strlen(endpoint) > MAX_ENDPOINT)
		BadEndpoint("It is longer than 2000 bytes.", hint);
	for (const char *p = endpoint; *p != '\0'; p++)
	{
		if (*p <= ' ' || *p >= 0x7f || *p == '\\')
			BadEndpoint("It contains a blank, a control character, a backslash or what is not ASCII.",
						"Write them as %20, or a host name in Punycode.");
	}
	if (TakeScheme(endpoint) == 0)
		BadEndpoint("It begins with none of http://, https://, smtp:// and smtps://.", hint);
	host = endpoint + TakeScheme(endpoint);
	end = host + strcspn(host, "/?#");
	if (memchr(host, '@', end - host) != NULL)
		BadEndpoint("It contains a user name or password.",
					"Give them as username and password.");
	if (!IsHostAndPort(host, end))
		BadEndpoint("It has no host, or no valid port.", hint);
}

/* Every {word} must be known: a wrong one would be sent as it stands. */
static void
CheckPlaceholders(const char *what, const char *text, bool in_message)
{
	const char *name;
	int			length;
	bool		known;

	while (RenderPlaceholder(text, in_message, &name, &length, &known))
	{
		if (!known)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
					 errmsg("unknown placeholder {%.*s} in %s", Min(length, 100), name, what),
					 errhint("Known are %s.", RenderPlaceholderList(in_message))));
		text = name + length;
	}
}

static void
CheckLength(const char *what, const char *text, int max)
{
	if (strlen(text) > max)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s of %zu bytes", what, strlen(text)),
				 errdetail("It may have %d.", max)));
}

static bool
Uses(const char *text, const char *placeholder)
{
	return strstr(text, placeholder) != NULL;
}

static void
CheckBodyTemplate(const ChannelSpec *spec)
{
	const char *text = spec->body_template;

	if (text[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("body_template must not be empty"),
				 errhint("NULL sends the body of Standard Webhooks.")));
	CheckLength("body_template", text, MAX_TEXT);
	CheckPlaceholders("body_template", text, false);
	if (spec->batch_size > 1 && !Uses(text, "{recipients}") && !Uses(text, "{addresses}"))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("body_template does not name all recipients of a request"),
				 errdetail("With a batch_size of %d there may be so many.", spec->batch_size),
				 errhint("Use {recipients} or {addresses} in it, or a batch_size of 1.")));
}

static void
CheckLogin(const ChannelSpec *spec)
{
	if ((spec->username == NULL) != (spec->password == NULL))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("username and password must be given together")));
	if (spec->username == NULL)
		return;
	CheckLength("username", spec->username, MAX_LOGIN);
	CheckLength("password", spec->password, MAX_LOGIN);
	if (HasControl(spec->username) || HasControl(spec->password))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("username or password contains a control character")));
	if (spec->username[0] == '\0' ||
		(strncmp(spec->endpoint, "http", 4) == 0 && strchr(spec->username, ':') != NULL))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("username is empty or contains a colon")));
}

static void
CheckRange(const char *what, int value, int max)
{
	if (value < 1 || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s %d is out of range", what, value),
				 errdetail("It may be 1 to %d.", max)));
}

static void
CheckMailChannel(const ChannelSpec *spec)
{
	if (spec->mail_from == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a mail needs a sender"),
				 errhint("Give the address of a mailbox as mail_from.")));
	if (spec->batch_size != 1)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("batch_size %d is not possible for mail", spec->batch_size),
				 errdetail("A mail goes to one recipient.")));
	if (spec->secret != NULL || spec->headers != NULL || spec->body_template != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("secret, headers and body_template are for HTTP"),
				 errhint("coupon_message_set sets subject and text of a mail.")));
}

/*
 * ChannelCheckSpec checks all but secret, headers and sender, which
 * RenderChannelMake does; the endpoint's scheme becomes lower case.
 */
void
ChannelCheckSpec(ChannelSpec *spec)
{
	CheckEndpoint(spec->endpoint);
	CheckRange("batch_size", spec->batch_size, MAX_BATCH_SIZE);
	CheckRange("max_in_flight", spec->max_in_flight, MAX_IN_FLIGHT);
	CheckLogin(spec);
	if (strncmp(spec->endpoint, "smtp", 4) == 0)
		CheckMailChannel(spec);
	else if (spec->require_tls)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("require_tls is for smtp"),
				 errhint("Use https:// for a server that speaks HTTP.")));
	else if (spec->mail_from != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("mail_from is for smtp and smtps")));
	if (spec->body_template != NULL)
		CheckBodyTemplate(spec);
}

/* Whether a host, with or without a port, is this machine by its name alone. */
static bool
IsLoopback(const char *host)
{
	size_t		length = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");

	return pg_strncasecmp(host, "localhost", Max(length, strlen("localhost"))) == 0 ||
		strncmp(host, "[::1]", Max(length, strlen("[::1]"))) == 0 ||
		(strncmp(host, "127.", strlen("127.")) == 0 && strspn(host, "0123456789.") == length);
}

/* Whether a header is one to log in with, by what its name says. */
static bool
IsCredential(const char *header)
{
	static const char *const words[] = {
		"auth", "bearer", "cookie", "cred", "jwt", "key", "pass", "pwd", "secret", "session", "sig", "token"
	};
	char	   *name = pnstrdup(header, strcspn(header, ":"));

	for (char *p = name; *p != '\0'; p++)
		*p = pg_tolower((unsigned char) *p);
	for (int i = 0; i < lengthof(words); i++)
	{
		if (strstr(name, words[i]) != NULL)
			return true;
	}
	return false;
}

/*
 * ChannelCheckPlain refuses to send a password or token over plain http to another
 * machine.
 */
void
ChannelCheckPlain(const ChannelSpec *spec, const RenderChannel *channel)
{
	bool		tells = spec->username != NULL;

	if (strncmp(spec->endpoint, "http://", strlen("http://")) != 0 ||
		IsLoopback(spec->endpoint + strlen("http://")))
		return;
	for (int i = 0; i < channel->nheaders - channel->nown; i++)
		tells = tells || IsCredential(channel->headers[i]);
	if (tells)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a password or token would be sent in plain text"),
				 errhint("Use https://; http:// with one is for this machine alone.")));
}

/*
 * ChannelCheckStatuses raises VC003 for what cannot be HTTP statuses of refusals.
 */
void
ChannelCheckStatuses(ArrayType *statuses)
{
	int			n = ArrayGetNItems(ARR_NDIM(statuses), ARR_DIMS(statuses));
	const int32 *values = (const int32 *) ARR_DATA_PTR(statuses);
	bool		good = ARR_NDIM(statuses) <= 1 && n <= MAX_STATUSES && !array_contains_nulls(statuses);

	for (int i = 0; good && i < n; i++)
		good = values[i] >= 400 && values[i] <= 599;
	if (!good)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("recipient_status must be HTTP statuses from 400 to 599"),
				 errdetail("At most %d, none of them null.", MAX_STATUSES),
				 errhint("'{410,429}', say.")));
}

/*
 * ChannelCheckTimeout checks an interval.
 */
void
ChannelCheckTimeout(Datum timeout)
{
	Interval   *interval = DatumGetIntervalP(timeout);

	if (interval->month != 0 || interval->day != 0 ||
		interval->time < MIN_TIMEOUT_MS * INT64CONST(1000) ||
		interval->time > MAX_TIMEOUT_MINUTES * USECS_PER_MINUTE)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("timeout is out of range"),
				 errdetail("It may be 100 ms to 10 min.")));
}

/*
 * ChannelCheckRate checks how many requests may begin in a second.
 */
void
ChannelCheckRate(int per_second)
{
	CheckRange("per_second", per_second, MAX_PER_SECOND);
}

/*
 * ChannelCheckQuiet checks quiet hours: all of it or nothing; NULL: no time zone.
 */
void
ChannelCheckQuiet(bool has_from, bool has_until, TimeADT from, TimeADT until, text *time_zone)
{
	if (has_from != has_until || has_from != (time_zone != NULL))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("quiet_from, quiet_until and time_zone must be given together"),
				 errhint("quiet_from => '22:00', quiet_until => '08:00', time_zone => 'Asia/Shanghai'")));
	if (!has_from)
		return;
	if (from == until || (from == USECS_PER_DAY && until == 0))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("quiet_from and quiet_until are the same"),
				 errhint("coupon_channel_enable(…, false) has a channel send nothing.")));
	/* Raises 22023 for one that is not known. */
	(void) DirectFunctionCall2(timestamptz_zone, PointerGetDatum(time_zone),
							   TimestampTzGetDatum(GetCurrentTimestamp()));
}

/*
 * ChannelCheckQuietReminders checks what becomes of reminders in quiet hours.
 */
void
ChannelCheckQuietReminders(const char *what)
{
	if (strcmp(what, "skip") != 0 && strcmp(what, "before") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("quiet_reminders \"%s\" is not known", what),
				 errhint("Use skip or before.")));
}

/*
 * ChannelCheckRule checks a jsonpath that answers are judged by.
 */
void
ChannelCheckRule(const ChannelSpec *spec, Datum rule)
{
	Datum		nothing = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));

	if (strncmp(spec->endpoint, "smtp", 4) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("success_when, dead_recipients and retry_recipients are for HTTP")));
	if (toast_raw_datum_size(rule) > MAX_RULE)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a jsonpath of %zu bytes", (size_t) toast_raw_datum_size(rule)),
				 errdetail("It may have %d.", MAX_RULE)));
	/* Each level of nesting would be copied: of 64 kB a receiver could make a gigabyte. */
	if (strstr(DatumGetCString(DirectFunctionCall1(jsonpath_out, rule)), "**") != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a jsonpath with .** is not possible here"),
				 errhint("Name the keys, as in $.result[*].token.")));
	/* Raises an error of its own for a variable that nobody gives. */
	(void) DirectFunctionCall4(jsonb_path_exists, nothing, rule, nothing, BoolGetDatum(true));
}

/*
 * ChannelCheckMessage checks subject and body of what is sent.
 */
void
ChannelCheckMessage(const char *subject, const char *body)
{
	CheckLength("subject", subject, MAX_SUBJECT);
	CheckLength("body", body, MAX_TEXT);
	if (HasControl(subject))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("subject contains a control character"),
				 errdetail("It is one line.")));
	if (body[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("body must not be empty"),
				 errhint("NULL for both brings the built-in texts back.")));
	CheckPlaceholders("subject", subject, true);
	CheckPlaceholders("body", body, true);
}
