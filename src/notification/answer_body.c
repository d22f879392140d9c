/*
 * answer_body.c
 *		What the body of an answer says: by the rules of its channel, and to operators.
 *
 * Many gateways answer 200 and say in a JSON body that they have failed, or whom of several
 * recipients they did not reach.  A channel tells by three jsonpaths where to look.  A
 * body that cannot be read as JSON is no success: whoever gives a rule relies on it.
 *
 * What a receiver has said is kept for people, up to a limit.  It may repeat what was sent to
 * it, so that what is secret of the channel is taken out.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/owner_query.h"
#include "base/subxact.h"
#include "notification/lease.h"

#define KEPT_TEXT 2048			/* bytes */
#define SHORTEST_SECRET 4		/* bytes: less is everywhere */
#define SHORTEST_PART 8			/* of the path of an endpoint */
#define LONGEST_SECRET 2000		/* of those that are hidden */
#define MOST_NAMES 10000
#define LONGEST_NAME 2000		/* bytes, of an address */
#define HIDDEN "***"

/*
 * Recipients that a body names under a path: strings and whole numbers.  A receiver may write
 * what it likes into 64 kB: so many names at most, none longer than an address, and a number
 * becomes a text only if it can be a user id (1e131071 would have as many digits).
 */
#define NAMES_UNDER(path) \
	"ARRAY(SELECT DISTINCT w.who FROM (SELECT CASE pg_catalog.jsonb_typeof(i.item)" \
	"  WHEN 'string'::pg_catalog.text THEN i.item OPERATOR(pg_catalog.#>>) '{}'::pg_catalog.text[]" \
	"  WHEN 'number'::pg_catalog.text THEN CASE WHEN i.item::pg_catalog.numeric OPERATOR(pg_catalog.>) 0::pg_catalog.numeric" \
	"   AND i.item::pg_catalog.numeric OPERATOR(pg_catalog.<) 9223372036854775808::pg_catalog.numeric" \
	"   THEN pg_catalog.trunc(i.item::pg_catalog.numeric)::pg_catalog.text END END AS who" \
	"  FROM pg_catalog.jsonb_path_query(a.body, " path "::pg_catalog.jsonpath, '{}'::pg_catalog.jsonb, true) AS i (item)" \
	"  LIMIT " CppAsString2(MOST_NAMES) ") AS w" \
	" WHERE pg_catalog.octet_length(w.who) OPERATOR(pg_catalog.<=) " CppAsString2(LONGEST_NAME) ")"

/* Whether it is a success, and whom it names as dead, and to be tried again. */
static OwnerQuery read_body = {
	"SELECT $2 IS NULL OR COALESCE(pg_catalog.jsonb_path_match(a.body, $2::pg_catalog.jsonpath,"
	"  '{}'::pg_catalog.jsonb, true), false), " NAMES_UNDER("$3") ", " NAMES_UNDER("$4")
	" FROM (SELECT $1::pg_catalog.jsonb) AS a (body)",
	4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
};

/* The users of a notification, and where they are reached. */
static OwnerQuery read_users = {
	"SELECT u.id, COALESCE(o.address, c.address)"
	" FROM %1$s.coupon_notification o CROSS JOIN LATERAL pg_catalog.unnest(o.user_ids) AS u (id)"
	" LEFT JOIN %1$s.coupon_contact c ON c.user_id OPERATOR(pg_catalog.=) u.id"
	"  AND c.channel OPERATOR(pg_catalog.=) o.channel"
	" WHERE o.id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

typedef struct Reading
{
	const LeaseChannel *channel;
	LeaseAnswer *answer;
	MemoryContext context;
	bool		success;
} Reading;

/*
 * AnswerIsJudged tells whether a channel has a rule for the bodies of answers.
 */
bool
AnswerIsJudged(const LeaseChannel *channel)
{
	return channel->success_when != NULL || channel->dead_recipients != NULL ||
		channel->retry_recipients != NULL;
}

static Datum
RuleArg(const char *rule, char *null)
{
	*null = rule == NULL ? 'n' : ' ';
	return rule == NULL ? (Datum) 0 : CStringGetTextDatum(rule);
}

/* Names in order, to be searched. */
typedef struct Names
{
	int			n;
	char	  **names;
} Names;

static int
CompareNames(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

/* A text[] of the last result. */
static Names
NamesOf(int column)
{
	Names		names;
	Datum	   *texts;
	bool		isnull;

	deconstruct_array(DatumGetArrayTypeP(QueryValue(0, column, &isnull)), TEXTOID, -1, false, TYPALIGN_INT,
					  &texts, NULL, &names.n);
	names.names = palloc(Max(names.n, 1) * sizeof(char *));
	for (int i = 0; i < names.n; i++)
		names.names[i] = TextDatumGetCString(texts[i]);
	qsort(names.names, names.n, sizeof(char *), CompareNames);
	return names;
}

static bool
IsNamed(const Names *names, const char *name)
{
	return bsearch(&name, names->names, names->n, sizeof(char *), CompareNames) != NULL;
}

/* Of the users of a notification those who are named, by id or address; who is dead is not tried again. */
static void
FindUsers(LeaseAnswer *answer, const Names *dead, const Names *again, MemoryContext context)
{
	Datum		arg = Int64GetDatum(answer->id);
	int			n = (int) QueryRun(&read_users, &arg, NULL);
	int64	   *dead_ids = MemoryContextAlloc(context, Max(n, 1) * sizeof(int64));
	int64	   *again_ids = MemoryContextAlloc(context, Max(n, 1) * sizeof(int64));

	answer->dead.ids = dead_ids;
	answer->again.ids = again_ids;
	for (int i = 0; i < n; i++)
	{
		bool		isnull;
		int64		id = DatumGetInt64(QueryValue(i, 1, &isnull));
		const char *user = psprintf(INT64_FORMAT, id);
		Datum		value = QueryText(i, 2, &isnull);
		const char *address = isnull ? user : TextDatumGetCString(value);

		if (IsNamed(dead, user) || IsNamed(dead, address))
			dead_ids[answer->dead.n++] = id;
		else if (IsNamed(again, user) || IsNamed(again, address))
			again_ids[answer->again.n++] = id;
	}
}

/* Raises an error for what is not JSON, or no text of this database. */
static bool
ReadBody(void *arg)
{
	Reading    *reading = arg;
	const LeaseChannel *channel = reading->channel;
	LeaseAnswer *answer = reading->answer;
	char	   *body = pnstrdup(answer->body == NULL ? "" : answer->body, answer->body_length);
	Datum		args[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};
	Names		dead,
				again;
	QueryScope	scope;
	bool		isnull;

	if (strlen(body) != answer->body_length)
		return false;
	args[0] = CStringGetTextDatum(pg_any_to_server(body, strlen(body), PG_UTF8));
	args[1] = RuleArg(channel->success_when, &nulls[1]);
	args[2] = RuleArg(channel->dead_recipients, &nulls[2]);
	args[3] = RuleArg(channel->retry_recipients, &nulls[3]);
	QueryBegin(&scope);
	QueryPlanByIndex();
	QueryRun(&read_body, args, nulls);
	reading->success = DatumGetBool(QueryValue(0, 1, &isnull));
	dead = NamesOf(2);
	again = NamesOf(3);
	if (reading->success && dead.n + again.n > 0)
		FindUsers(answer, &dead, &again, reading->context);
	QueryEnd(&scope);
	return true;
}

/*
 * AnswerJudgeBody tells whether an answer 2xx is a success by the rules of its channel; the
 * answer's error says why it is not.  It sets whom the body names.
 */
bool
AnswerJudgeBody(const LeaseChannel *channel, LeaseAnswer *answer)
{
	Reading		reading = {channel, answer, CurrentMemoryContext, false};
	ErrorData  *error = NULL;

	answer->dead.n = answer->again.n = 0;
	if (SubxactRun(ReadBody, &reading, &error) && reading.success)
		return true;
	if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	strlcpy(answer->error, "the answer is no success by success_when", sizeof(answer->error));
	if (error != NULL)
	{
		int			length = pg_mbcliplen(error->message, strlen(error->message), sizeof(answer->error) - 40);

		snprintf(answer->error, sizeof(answer->error), "the answer cannot be judged: %.*s",
				 length, error->message);
	}
	return false;
}

/*
 * AnswerGiveUpAgain gives up those who would be tried again.
 */
void
AnswerGiveUpAgain(LeaseAnswer *answer)
{
	int64	   *all = palloc((answer->dead.n + answer->again.n) * sizeof(int64));

	memcpy(all, answer->dead.ids, answer->dead.n * sizeof(int64));
	memcpy(all + answer->dead.n, answer->again.ids, answer->again.n * sizeof(int64));
	answer->dead = (LeaseUsers) {answer->dead.n + answer->again.n, all};
	answer->again.n = 0;
}

/* The next character of a text with the escapes of JSON; moves behind it. */
static int
Unescaped(const char **text)
{
	const char *p = *text;
	unsigned	code;

	if (p[0] == '\\' && p[1] == 'u' && strspn(p + 2, "0123456789abcdefABCDEF") >= 4 &&
		sscanf(p + 2, "%4x", &code) == 1)
	{
		*text = p + 6;
		return (int) code;
	}
	if (p[0] == '\\' && p[1] != '\0')
		p++;
	*text = p + 1;
	return (unsigned char) *p;
}

/* How many bytes of a text are this secret, as it is or with the escapes of JSON; 0: none. */
static int
SecretAt(const char *text, const char *secret)
{
	size_t		length = strlen(secret);
	const char *p = text;

	if (strncmp(text, secret, length) == 0)
		return (int) length;
	for (; *secret != '\0'; secret++)
	{
		if (*p == '\0' || Unescaped(&p) != (unsigned char) *secret)
			return 0;
	}
	return (int) (p - text);
}

static void
Hide(StringInfo text, const char *secret, size_t shortest)
{
	StringInfoData out;

	if (strlen(secret) < shortest)
		return;
	initStringInfo(&out);
	for (const char *p = text->data; *p != '\0';)
	{
		int			length = SecretAt(p, secret);

		if (length > 0)
			appendStringInfoString(&out, HIDDEN);
		else
			appendStringInfoChar(&out, *p);
		p += Max(length, 1);
	}
	*text = out;
}

/* The parts of a path and of the values behind it, where keys may be. */
static void
HideEndpoint(StringInfo text, const char *endpoint)
{
	char	   *copy = pstrdup(endpoint);
	char	   *host = strstr(copy, "://");
	char	   *save;
	char	   *path = host == NULL ? NULL : strpbrk(host + 3, "/?#");

	for (char *part = path == NULL ? NULL : strtok_r(path, "/?#&=", &save); part != NULL;
		 part = strtok_r(NULL, "/?#&=", &save))
		Hide(text, part, SHORTEST_PART);
}

/* What was sent as a password, in plain and as HTTP has it (RFC 7617). */
static void
HideLogin(StringInfo text, const char *username, const char *password)
{
	char	   *both = psprintf("%s:%s", username, password);
	int			room = (strlen(both) + 2) / 3 * 4;
	char	   *encoded = palloc(room + 1);
	int			length = CompatB64Encode((uint8 *) both, strlen(both), encoded, room);

	encoded[Max(length, 0)] = '\0';
	Hide(text, encoded, SHORTEST_SECRET);
	Hide(text, password, SHORTEST_SECRET);
}

static void
HideSecrets(StringInfo text, const LeaseChannel *channel)
{
	const RenderChannel *render = channel->render;

	for (int i = 0; i < render->nheaders - render->nown; i++)
	{
		const char *value = strchr(render->headers[i], ':') + 1;
		const char *token = strrchr(value, ' ');

		value += strspn(value, " ");
		Hide(text, value, SHORTEST_SECRET);
		if (token != NULL)		/* Bearer … */
			Hide(text, token + 1, SHORTEST_SECRET);
	}
	if (channel->password != NULL)
		HideLogin(text, channel->username, channel->password);
	HideEndpoint(text, channel->endpoint);
}

/* Printable text of this database: of other encodings than UTF-8 what is ASCII. */
static void
AppendReadable(StringInfo out, const char *text, size_t length)
{
	const char *end = text + length;

	while (text < end)
	{
		int			bytes = GetDatabaseEncoding() == PG_UTF8 ? pg_utf_mblen((const unsigned char *) text) : 1;
		bool		good = bytes > 1 && bytes <= end - text && pg_utf8_islegal((const unsigned char *) text, bytes);

		if (good)
			appendBinaryStringInfo(out, text, bytes);
		else
		{
			bytes = 1;
			appendStringInfoChar(out, (*text >= ' ' && *text <= '~') || *text == '\n' || *text == '\t' ? *text : '?');
		}
		text += bytes;
	}
}

/*
 * AnswerKeepText makes of a body what operators may see of it.
 */
void
AnswerKeepText(const LeaseChannel *channel, LeaseAnswer *answer)
{
	StringInfoData text;

	answer->text = NULL;
	if (answer->body_length == 0)
		return;
	initStringInfo(&text);
	AppendReadable(&text, answer->body, answer->body_length);
	HideSecrets(&text, channel);
	/* Where it was cut a secret may be, of which nothing shall be seen. */
	if (answer->body_cut)
		text.data[text.len = Max(text.len - LONGEST_SECRET, 0)] = '\0';
	text.data[pg_mbcliplen(text.data, text.len, KEPT_TEXT)] = '\0';
	answer->text = text.data;
}
