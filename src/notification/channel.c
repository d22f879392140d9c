/*
 * channel.c
 *		How, what and where to send, as administrators say it; tests and
 *		replays.
 *
 * Channels, texts and contacts belong to all shops together: a role that is
 * bound to one may not change them, since it would change what others send, and
 * where to.  What is wrong is told before anything is written.
 *
 * Locks: rows of our tables, one per call; a replay holds the rows that it
 * moves.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/commit_wakeup.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "base/secret.h"
#include "notification/channel_check.h"
#include "notification/outbox.h"
#include "render/request.h"

PG_FUNCTION_INFO_V1(coupon_channel_set);
PG_FUNCTION_INFO_V1(coupon_channel_enable);
PG_FUNCTION_INFO_V1(coupon_message_set);
PG_FUNCTION_INFO_V1(coupon_contact_set);
PG_FUNCTION_INFO_V1(coupon_contact_mute);
PG_FUNCTION_INFO_V1(coupon_channel_test);
PG_FUNCTION_INFO_V1(coupon_notification_replay);
PG_FUNCTION_INFO_V1(coupon_channel_secret);

#define SECRET_BYTES 32
#define SECRET_CHARS 44			/* in base64 */

/* Of a test nobody is the user. */
#define NO_USER INT64CONST(0)

/* Arguments of coupon_channel_set. */
enum
{
	ARG_CHANNEL, ARG_ENDPOINT, ARG_SECRET, ARG_HEADERS, ARG_BODY_TEMPLATE,
	ARG_MAIL_FROM, ARG_USERNAME, ARG_PASSWORD, ARG_BATCH_SIZE, ARG_MAX_IN_FLIGHT,
	ARG_TIMEOUT, ARG_ENABLED, ARG_REQUIRE_TLS, ARG_USER_ID_IS_ADDRESS,
	ARG_RECIPIENT_STATUS, ARG_SUCCESS_WHEN, ARG_DEAD_RECIPIENTS, ARG_RETRY_RECIPIENTS,
	ARG_PER_SECOND, ARG_QUIET_FROM, ARG_QUIET_UNTIL, ARG_TIME_ZONE,
	ARG_QUIET_REMINDERS
};

static OwnerQuery set_channel = {
	"INSERT INTO %1$s.coupon_channel (channel, endpoint,"
	" body_template, mail_from, username, batch_size, max_in_flight,"
	" timeout, enabled, require_tls, user_id_is_address, recipient_status,"
	" success_when, dead_recipients, retry_recipients, per_second, quiet_from, quiet_until, time_zone, quiet_reminders,"
	" updated_at, installation)"
	" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::pg_catalog.text, $14::pg_catalog.text,"
	"  $15::pg_catalog.text, $16, $17, $18, $19, $20, pg_catalog.clock_timestamp(),"
	"  %1$s.coupon_installation())"
	" ON CONFLICT (channel) DO UPDATE SET endpoint = excluded.endpoint,"
	" body_template = excluded.body_template, mail_from = excluded.mail_from,"
	" username = excluded.username, batch_size = excluded.batch_size, max_in_flight = excluded.max_in_flight,"
	" timeout = excluded.timeout, enabled = excluded.enabled,"
	" require_tls = excluded.require_tls, user_id_is_address = excluded.user_id_is_address,"
	" recipient_status = excluded.recipient_status, success_when = excluded.success_when,"
	" dead_recipients = excluded.dead_recipients, retry_recipients = excluded.retry_recipients,"
	" per_second = excluded.per_second, quiet_from = excluded.quiet_from,"
	" quiet_until = excluded.quiet_until, time_zone = excluded.time_zone,"
	" quiet_reminders = excluded.quiet_reminders,"
	" disabled_reason = NULL, updated_at = excluded.updated_at,"
	" installation = excluded.installation",
	20,
	{TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, INT4OID, INTERVALOID,
	BOOLOID, BOOLOID, BOOLOID, INT4ARRAYOID, JSONPATHOID, JSONPATHOID, JSONPATHOID,
	INT4OID, TIMEOID, TIMEOID, TEXTOID, TEXTOID}
};

/* Its arguments: those of coupon_channel_set that are columns of the row. */
static const int column_args[] = {
	ARG_CHANNEL, ARG_ENDPOINT, ARG_BODY_TEMPLATE, ARG_MAIL_FROM, ARG_USERNAME,
	ARG_BATCH_SIZE, ARG_MAX_IN_FLIGHT, ARG_TIMEOUT, ARG_ENABLED, ARG_REQUIRE_TLS,
	ARG_USER_ID_IS_ADDRESS, ARG_RECIPIENT_STATUS, ARG_SUCCESS_WHEN, ARG_DEAD_RECIPIENTS,
	ARG_RETRY_RECIPIENTS, ARG_PER_SECOND, ARG_QUIET_FROM, ARG_QUIET_UNTIL, ARG_TIME_ZONE,
	ARG_QUIET_REMINDERS
};

static OwnerQuery enable_channel = {
	"UPDATE %1$s.coupon_channel SET enabled = $2, disabled_reason = NULL,"
	" updated_at = pg_catalog.clock_timestamp(), installation = %1$s.coupon_installation()"
	" WHERE channel OPERATOR(pg_catalog.=) $1",
	2, {TEXTOID, BOOLOID}
};

static OwnerQuery set_message = {
	"INSERT INTO %1$s.coupon_message (kind, channel, subject, body)"
	" VALUES ($1, $2, $3, $4) ON CONFLICT (kind, channel)"
	" DO UPDATE SET subject = excluded.subject, body = excluded.body",
	4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
};

static OwnerQuery delete_message = {
	"DELETE FROM %1$s.coupon_message WHERE kind OPERATOR(pg_catalog.=) $1"
	" AND channel OPERATOR(pg_catalog.=) $2",
	2, {TEXTOID, TEXTOID}
};

static OwnerQuery set_contact = {
	"INSERT INTO %1$s.coupon_contact (user_id, channel, address)"
	" VALUES ($1, $2, $3) ON CONFLICT (user_id, channel)"
	" DO UPDATE SET address = excluded.address",
	3, {INT8OID, TEXTOID, TEXTOID}
};

static OwnerQuery delete_contact = {
	"DELETE FROM %1$s.coupon_contact WHERE user_id OPERATOR(pg_catalog.=) $1"
	" AND channel OPERATOR(pg_catalog.=) $2",
	2, {INT8OID, TEXTOID}
};

static OwnerQuery mute = {
	"INSERT INTO %1$s.coupon_mute (user_id, channel)"
	" SELECT $1, c.name FROM pg_catalog.unnest(%1$s.coupon_channel_names()) AS c (name)"
	" WHERE $2 IS NULL OR c.name OPERATOR(pg_catalog.=) $2 ON CONFLICT (user_id, channel) DO NOTHING",
	2, {INT8OID, TEXTOID}
};

static OwnerQuery unmute = {
	"DELETE FROM %1$s.coupon_mute WHERE user_id OPERATOR(pg_catalog.=) $1"
	" AND ($2 IS NULL OR channel OPERATOR(pg_catalog.=) $2)",
	2, {INT8OID, TEXTOID}
};

static OwnerQuery state_of_channel = {
	"SELECT enabled, disabled_reason FROM %1$s.coupon_channel_state"
	" WHERE channel OPERATOR(pg_catalog.=) $1",
	1, {TEXTOID}
};

/* The id stays, and with it the webhook-id; attempts are counted anew. */
static OwnerQuery replay_dead = {
	"WITH dead AS ("
	" DELETE FROM %1$s.coupon_notification_history WHERE state OPERATOR(pg_catalog.=) 'dead'::pg_catalog.text"
	" AND ($1 IS NULL OR id OPERATOR(pg_catalog.=) $1)"
	" AND ($2 IS NULL OR channel OPERATOR(pg_catalog.=) $2) RETURNING *)"
	" INSERT INTO %1$s.coupon_notification (id, channel, kind, template_id, minutes,"
	" task_id, user_ids, address, due_at, next_at, attempts, first_attempt,"
	" last_status, last_error, last_answer, lane)"
	" SELECT id, channel, kind, template_id, minutes, task_id, user_ids, address,"
	" due_at, pg_catalog.clock_timestamp(), attempts, attempts, last_status, last_error, last_answer,"
	" (CASE WHEN kind OPERATOR(pg_catalog.=) 'coupon'::pg_catalog.text THEN " CppAsString2(OUTBOX_LANES) "::pg_catalog.int8 ELSE 0 END"
	"  OPERATOR(pg_catalog.+) (COALESCE((SELECT t.shop_number FROM %1$s.coupon_template t"
	"   WHERE t.id OPERATOR(pg_catalog.=) template_id), 0::pg_catalog.int8)"
	"  OPERATOR(pg_catalog.%%) " CppAsString2(OUTBOX_LANES) "::pg_catalog.int8))::pg_catalog.int2"
	" FROM dead",
	2, {INT8OID, TEXTOID}
};

static char *
TextArg(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(arg));
}

static void
ReadSpec(FunctionCallInfo fcinfo, ChannelSpec *spec)
{
	Jsonb	   *headers = NULL;

	ArgRequire(fcinfo, ARG_ENDPOINT, "endpoint");
	ArgRequire(fcinfo, ARG_BATCH_SIZE, "batch_size");
	ArgRequire(fcinfo, ARG_MAX_IN_FLIGHT, "max_in_flight");
	ArgRequire(fcinfo, ARG_TIMEOUT, "timeout");
	ArgRequire(fcinfo, ARG_ENABLED, "enabled");
	ArgRequire(fcinfo, ARG_REQUIRE_TLS, "require_tls");
	ArgRequire(fcinfo, ARG_RECIPIENT_STATUS, "recipient_status");
	ChannelCheckStatuses(PG_GETARG_ARRAYTYPE_P(ARG_RECIPIENT_STATUS));
	if (!PG_ARGISNULL(ARG_HEADERS))
		headers = PG_GETARG_JSONB_P(ARG_HEADERS);
	spec->endpoint = TextArg(fcinfo, ARG_ENDPOINT);
	spec->secret = TextArg(fcinfo, ARG_SECRET);
	if (headers != NULL && !(JB_ROOT_IS_OBJECT(headers) && JB_ROOT_COUNT(headers) == 0))
		spec->headers = JsonbToCString(NULL, &headers->root, VARSIZE(headers));
	else
		spec->headers = NULL;
	spec->body_template = TextArg(fcinfo, ARG_BODY_TEMPLATE);
	spec->mail_from = TextArg(fcinfo, ARG_MAIL_FROM);
	spec->username = TextArg(fcinfo, ARG_USERNAME);
	spec->password = TextArg(fcinfo, ARG_PASSWORD);
	spec->batch_size = PG_GETARG_INT32(ARG_BATCH_SIZE);
	spec->max_in_flight = PG_GETARG_INT32(ARG_MAX_IN_FLIGHT);
	spec->require_tls = PG_GETARG_BOOL(ARG_REQUIRE_TLS);
	ChannelCheckSpec(spec);
	ChannelCheckTimeout(PG_GETARG_DATUM(ARG_TIMEOUT));
	for (int arg = ARG_SUCCESS_WHEN; arg <= ARG_RETRY_RECIPIENTS; arg++)
	{
		if (!PG_ARGISNULL(arg))
			ChannelCheckRule(spec, PG_GETARG_DATUM(arg));
	}
	if (!PG_ARGISNULL(ARG_PER_SECOND))
		ChannelCheckRate(PG_GETARG_INT32(ARG_PER_SECOND));
	ArgRequire(fcinfo, ARG_QUIET_REMINDERS, "quiet_reminders");
	ChannelCheckQuietReminders(text_to_cstring(PG_GETARG_TEXT_PP(ARG_QUIET_REMINDERS)));
	ChannelCheckQuiet(!PG_ARGISNULL(ARG_QUIET_FROM), !PG_ARGISNULL(ARG_QUIET_UNTIL),
					  PG_GETARG_TIMEADT(ARG_QUIET_FROM), PG_GETARG_TIMEADT(ARG_QUIET_UNTIL),
					  PG_ARGISNULL(ARG_TIME_ZONE) ? NULL : PG_GETARG_TEXT_PP(ARG_TIME_ZONE));
	/* What the worker will make of it. */
	ChannelCheckPlain(spec, RenderChannelMake(spec->secret, spec->headers, spec->body_template,
											  spec->mail_from));
}

/*
 * coupon_channel_set(channel, endpoint, …): set the whole row of a channel, and
 * what is secret of it.
 */
Datum
coupon_channel_set(PG_FUNCTION_ARGS)
{
	ChannelSpec spec;
	const char *channel;
	Datum		args[lengthof(column_args)];
	char		nulls[lengthof(column_args)];
	QueryScope	scope;

	ChannelRequireUnbound(ROLE_OPERATOR);
	channel = ChannelArg(fcinfo, ARG_CHANNEL);
	ReadSpec(fcinfo, &spec);
	for (int i = 0; i < lengthof(column_args); i++)
	{
		int			arg = column_args[i];

		nulls[i] = PG_ARGISNULL(arg) ? 'n' : ' ';
		if (arg == ARG_ENDPOINT)
			args[i] = CStringGetTextDatum(spec.endpoint);	/* its scheme in lower case */
		else if (arg == ARG_USER_ID_IS_ADDRESS && PG_ARGISNULL(arg))
		{
			/* An id that looks like a telephone number would text a stranger. */
			args[i] = BoolGetDatum(strcmp(channel, "sms") != 0);
			nulls[i] = ' ';
		}
		else
			args[i] = PG_ARGISNULL(arg) ? (Datum) 0 : PG_GETARG_DATUM(arg);
	}
	QueryBegin(&scope);
	QueryRun(&set_channel, args, nulls);
	SecretSet("channel_secret", channel, spec.secret);
	SecretSet("channel_password", channel, spec.password);
	SecretSet("channel_headers", channel, spec.headers);
	QueryEnd(&scope);
	WakeWorkerAtCommit(WAKE_DELIVER);
	PG_RETURN_VOID();
}

static void
NotSetUp(const char *channel)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("channel \"%s\" is not set up", channel),
			 errhint("SELECT coupon_channel_set('%s', 'https://...')", channel)));
}

/*
 * coupon_channel_enable(channel, enabled): switch a channel on or off.
 */
Datum
coupon_channel_enable(PG_FUNCTION_ARGS)
{
	const char *channel;
	Datum		args[2];
	QueryScope	scope;

	ChannelRequireUnbound(ROLE_OPERATOR);
	channel = ChannelArg(fcinfo, 0);
	ArgRequire(fcinfo, 1, "enabled");
	args[0] = CStringGetTextDatum(channel);
	args[1] = PG_GETARG_DATUM(1);
	QueryBegin(&scope);
	if (QueryRun(&enable_channel, args, NULL) == 0)
		NotSetUp(channel);
	QueryEnd(&scope);
	WakeWorkerAtCommit(WAKE_DELIVER);
	PG_RETURN_VOID();
}

/*
 * coupon_message_set(kind, channel, subject, body): set what is sent; two
 * nulls bring the built-in text back.
 */
Datum
coupon_message_set(PG_FUNCTION_ARGS)
{
	bool		remove = PG_ARGISNULL(2) && PG_ARGISNULL(3);
	Datum		args[4];
	QueryScope	scope;

	ChannelRequireUnbound(ROLE_OPERATOR);
	args[0] = CStringGetTextDatum(ChannelKindArg(fcinfo, 0));
	args[1] = CStringGetTextDatum(ChannelArg(fcinfo, 1));
	if (!remove)
	{
		ArgRequire(fcinfo, 2, "subject");
		ArgRequire(fcinfo, 3, "body");
		ChannelCheckMessage(TextArg(fcinfo, 2), TextArg(fcinfo, 3));
		args[2] = PG_GETARG_DATUM(2);
		args[3] = PG_GETARG_DATUM(3);
	}
	QueryBegin(&scope);
	QueryRun(remove ? &delete_message : &set_message, args, NULL);
	QueryEnd(&scope);
	WakeWorkerAtCommit(WAKE_DELIVER);
	PG_RETURN_VOID();
}

/*
 * coupon_contact_set(user_id, channel, address): where a user is reached; null
 * forgets it.
 */
Datum
coupon_contact_set(PG_FUNCTION_ARGS)
{
	bool		remove = PG_ARGISNULL(2);
	Datum		args[3];
	QueryScope	scope;

	ChannelRequireUnbound(ROLE_APPLICATION | ROLE_OPERATOR);
	ArgRequire(fcinfo, 0, "user_id");
	ArgCheckUserId(PG_GETARG_INT64(0));
	args[0] = PG_GETARG_DATUM(0);
	args[1] = CStringGetTextDatum(ChannelArg(fcinfo, 1));
	if (!remove)
		args[2] = CStringGetTextDatum(ChannelAddressArg(fcinfo, 2));
	QueryBegin(&scope);
	QueryRun(remove ? &delete_contact : &set_contact, args, NULL);
	QueryEnd(&scope);
	PG_RETURN_VOID();
}

/*
 * coupon_contact_mute(user_id, channel, muted): a user wants nothing by a channel, null: by
 * any; or wants it again.
 */
Datum
coupon_contact_mute(PG_FUNCTION_ARGS)
{
	Datum		args[2] = {(Datum) 0, (Datum) 0};
	char		nulls[2] = {' ', 'n'};
	QueryScope	scope;

	ChannelRequireUnbound(ROLE_APPLICATION | ROLE_OPERATOR);
	ArgRequire(fcinfo, 0, "user_id");
	ArgCheckUserId(PG_GETARG_INT64(0));
	ArgRequire(fcinfo, 2, "muted");
	args[0] = PG_GETARG_DATUM(0);
	if (!PG_ARGISNULL(1))
	{
		args[1] = CStringGetTextDatum(ChannelArg(fcinfo, 1));
		nulls[1] = ' ';
	}
	QueryBegin(&scope);
	QueryRun(PG_GETARG_BOOL(2) ? &mute : &unmute, args, nulls);
	QueryEnd(&scope);
	PG_RETURN_VOID();
}

static void
PutInteger(FunctionCallInfo fcinfo, int64 value)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		datum = Int64GetDatum(value);
	bool		isnull = false;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &datum, &isnull);
}

/* A test of a channel that sends nothing would wait without an answer. */
static void
RequireSending(const char *channel)
{
	Datum		arg = CStringGetTextDatum(channel);
	bool		isnull;
	Datum		reason;

	if (QueryRun(&state_of_channel, &arg, NULL) == 0)
		NotSetUp(channel);
	if (DatumGetBool(QueryValue(0, 1, &isnull)))
		return;
	reason = QueryText(0, 2, &isnull);
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("channel \"%s\" is switched off", channel),
			 isnull ? 0 : errdetail("%s", TextDatumGetCString(reason)),
			 errhint("SELECT coupon_channel_enable('%s')", channel)));
}

/*
 * coupon_channel_test(channel, address) → notification_id: one notification, in the
 * ordinary way.
 */
Datum
coupon_channel_test(PG_FUNCTION_ARGS)
{
	OutboxEvent event = {"test"};
	OutboxAdded *added;
	int64		id;
	QueryScope	scope;

	ChannelRequireUnbound(ROLE_OPERATOR);
	event.channel = ChannelArg(fcinfo, 0);
	event.address = ChannelAddressArg(fcinfo, 1);
	event.due_at = GetCurrentTimestamp();
	QueryBegin(&scope);
	RequireSending(event.channel);
	added = OutboxBegin(&event, false);
	id = OutboxPut(added, NO_USER);
	OutboxEnd(added);
	QueryEnd(&scope);
	PutInteger(fcinfo, id);
	return (Datum) 0;
}

/*
 * coupon_notification_replay(id, channel) → replayed: put what was given up
 * back into the queue.
 */
Datum
coupon_notification_replay(PG_FUNCTION_ARGS)
{
	Datum		args[2] = {(Datum) 0, (Datum) 0};
	char		nulls[2] = {'n', 'n'};
	QueryScope	scope;
	uint64		n;

	ChannelRequireUnbound(ROLE_OPERATOR);
	if (!PG_ARGISNULL(0))
	{
		args[0] = PG_GETARG_DATUM(0);
		nulls[0] = ' ';
	}
	if (!PG_ARGISNULL(1))
	{
		args[1] = CStringGetTextDatum(ChannelArg(fcinfo, 1));
		nulls[1] = ' ';
	}
	QueryBegin(&scope);
	n = QueryRun(&replay_dead, args, nulls);
	QueryEnd(&scope);
	WakeWorkerAtCommit(WAKE_DELIVER);
	PutInteger(fcinfo, n);
	return (Datum) 0;
}

/*
 * coupon_channel_secret() → a new secret.
 */
Datum
coupon_channel_secret(PG_FUNCTION_ARGS)
{
	uint8		key[SECRET_BYTES];
	char		text[SECRET_CHARS + 1];
	int			length;

	if (!pg_strong_random(key, sizeof(key)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	length = CompatB64Encode(key, sizeof(key), text, SECRET_CHARS);
	text[length] = '\0';
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("whsec_%s", text)));
}
