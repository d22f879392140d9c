/*
 * receive.c
 *		The SQL verbs that claim: coupon_receive, coupon_receive_many,
 *		coupon_receive_new_user.
 *
 * They check their arguments and hand over to claim.c.  coupon_receive answers
 * its one row as an ordinary function would, which PostgreSQL allows a
 * set-returning one: it saves the tuplestore of a set on every call.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupdesc.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "base/args.h"
#include "base/array.h"
#include "base/errors.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/result_row.h"
#include "base/shop_role.h"
#include "claim/claim.h"
#include "store/event.h"

PG_FUNCTION_INFO_V1(coupon_receive);
PG_FUNCTION_INFO_V1(coupon_give);
PG_FUNCTION_INFO_V1(coupon_receive_many);
PG_FUNCTION_INFO_V1(coupon_receive_new_user);

/* A retry of coupon_receive_new_user gets the coupons of the first call. */
#define NEW_USER_REQUEST "new_user"

/* The columns of coupon_receive_row, which FillResult fills. */
static const Oid receive_types[] = {INT4OID, TEXTOID, INT8OID, INT4OID, TIMESTAMPTZOID, BOOLOID};

static OwnerQuery registration_templates = {
	"SELECT id FROM %1$s.coupon_template"
	" WHERE open_to OPERATOR(pg_catalog.=) 'registration'::pg_catalog.text"
	" AND status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	" AND receive_start OPERATOR(pg_catalog.<=) $1"
	" AND receive_end OPERATOR(pg_catalog.>) $1"
	" AND ($2 IS NULL OR shop_number OPERATOR(pg_catalog.=) ANY ($2))"
	" ORDER BY id",
	2, {TIMESTAMPTZOID, INT8ARRAYOID}
};

/* The sources that a caller may name; the others belong to verbs of theirs. */
static const char *
GetSource(FunctionCallInfo fcinfo, int arg)
{
	static const char *const sources[] = {"center", "platform", "shop"};
	text	   *given;
	int			length;

	ArgRequire(fcinfo, arg, "source");
	given = PG_GETARG_TEXT_PP(arg);
	length = VARSIZE_ANY_EXHDR(given);
	for (int i = 0; i < lengthof(sources); i++)
	{
		if (strlen(sources[i]) == length &&
			memcmp(VARDATA_ANY(given), sources[i], length) == 0)
			return sources[i];
	}
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("\"%s\" is not a source that can be named",
					length > NAMEDATALEN ? "…" : text_to_cstring(given)),
			 errhint("Use center, platform or shop.")));
}

/*
 * The columns code, outcome, user_coupon_id, receive_seq, use_end, repeated,
 * which all these verbs end with.
 */
static void
FillResult(const ClaimResult *result, Datum *values, bool *nulls)
{
	bool		ok = result->code == OUTCOME_OK;

	values[0] = Int32GetDatum(result->code);
	values[1] = CStringGetTextDatum(OutcomeName(result->code));
	values[2] = Int64GetDatum(result->coupon_id);
	values[3] = Int32GetDatum(result->receive_seq);
	values[4] = TimestampTzGetDatum(result->use_end);
	values[5] = BoolGetDatum(result->repeated);
	nulls[0] = nulls[1] = nulls[5] = false;
	nulls[2] = nulls[3] = nulls[4] = !ok;
}

/*
 * The row type of coupon_receive, good until the next look-up of any kind.
 * Which type it is stays the same for a function; what it is like does not.
 */
static TupleDesc
ReceiveDesc(Oid function)
{
	static Oid	desc_of = InvalidOid;
	static Oid	type;

	if (unlikely(desc_of != function))
	{
		type = get_func_rettype(function);
		desc_of = function;
	}
	return lookup_type_cache(type, TYPECACHE_TUPDESC)->tupDesc;
}

/* Arguments 0 to 2 of the function are template, user and request id. */
static void
ClaimForOne(FunctionCallInfo fcinfo, ClaimRequest *request, ClaimResult *result)
{
	int64		user_id;

	ArgRequire(fcinfo, 0, "template_id");
	ArgRequire(fcinfo, 1, "user_id");
	request->template_id = PG_GETARG_INT64(0);
	user_id = PG_GETARG_INT64(1);
	ArgCheckUserId(user_id);
	request->request_id = ArgRequestId(fcinfo, 2);
	request->now = GetCurrentStatementStartTimestamp();
	ClaimCoupons(request, &user_id, 1, result);
}

static Datum
ReturnResult(FunctionCallInfo fcinfo, const ClaimResult *result)
{
	Datum		values[6];
	bool		nulls[6];

	FillResult(result, values, nulls);
	return HeapTupleGetDatum(RowForm(ReceiveDesc(fcinfo->flinfo->fn_oid),
									 receive_types, lengthof(receive_types),
									 values, nulls));
}

/*
 * coupon_receive(template_id, user_id, request_id, source): claim one coupon
 * for one user.
 */
Datum
coupon_receive(PG_FUNCTION_ARGS)
{
	ClaimRequest request = {0};
	ClaimResult result;

	request.source = GetSource(fcinfo, 3);
	request.roles = ROLE_APPLICATION;
	request.open_to = TEMPLATE_OPEN_TO(TEMPLATE_ANYONE);
	ClaimForOne(fcinfo, &request, &result);
	return ReturnResult(fcinfo, &result);
}

/*
 * coupon_give(template_id, user_id, request_id, reason): give a user a coupon of any
 * published template, also before its window begins.  Recorded in coupon_event.
 */
Datum
coupon_give(PG_FUNCTION_ARGS)
{
	ClaimRequest request = {0};
	ClaimResult result;
	const char *reason = PG_ARGISNULL(3) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(3));

	request.source = "platform";
	request.roles = ROLE_OPERATOR;
	request.open_to = TEMPLATE_OPEN_TO_ALL;
	request.early = true;

	ClaimForOne(fcinfo, &request, &result);
	if (result.code == OUTCOME_OK && !result.repeated)
	{
		Event		event = {.kind = "give", .coupon_id = result.coupon_id, .user_id = result.user_id,
		.template_id = request.template_id, .reason = reason};
		QueryScope	scope;

		QueryBegin(&scope);
		EventAdd(&event);
		QueryEnd(&scope);
	}
	return ReturnResult(fcinfo, &result);
}

static int
CompareUserIds(const void *a, const void *b)
{
	int64		left = *(const int64 *) a;
	int64		right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/* The user ids of an array, ascending, each once. */
static int64 *
GetUserIds(ArrayType *array, int *nusers)
{
	int64	   *given;
	int			n;
	int			distinct = 0;
	int64	   *users;

	given = ArrayInt8(array, "user_ids", &n);
	users = palloc(Max(n, 1) * sizeof(int64));
	for (int i = 0; i < n; i++)
	{
		ArgCheckUserId(given[i]);
		users[i] = given[i];
	}
	qsort(users, n, sizeof(int64), CompareUserIds);
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || users[i] != users[i - 1])
			users[distinct++] = users[i];
	}
	*nusers = distinct;
	return users;
}

/*
 * coupon_receive_many(template_id, user_ids, source, request_id): claim one
 * coupon for each of many users, one row each, in order of user id.
 */
Datum
coupon_receive_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ClaimRequest request = {0};
	ClaimResult *results;
	int64	   *users;
	int			nusers;

	ArgRequire(fcinfo, 0, "template_id");
	ArgRequire(fcinfo, 1, "user_ids");
	request.template_id = PG_GETARG_INT64(0);
	users = GetUserIds(PG_GETARG_ARRAYTYPE_P(1), &nusers);
	request.source = GetSource(fcinfo, 2);
	request.roles = ROLE_APPLICATION;
	request.request_id = ArgRequestId(fcinfo, 3);
	request.open_to = TEMPLATE_OPEN_TO(TEMPLATE_ANYONE);
	request.now = GetCurrentStatementStartTimestamp();

	InitMaterializedSRF(fcinfo, 0);
	results = MemoryContextAllocHuge(CurrentMemoryContext,
									 Max(nusers, 1) * sizeof(ClaimResult));
	ClaimCoupons(&request, users, nusers, results);

	for (int i = 0; i < nusers; i++)
	{
		Datum		values[7];
		bool		nulls[7] = {false};

		values[0] = Int64GetDatum(results[i].user_id);
		FillResult(&results[i], values + 1, nulls + 1);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		pfree(DatumGetPointer(values[2]));
	}
	return (Datum) 0;
}

/* The templates that a new user may have now, in the caller's memory. */
static int64 *
RegistrationTemplates(int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		args[2];
	char		nulls[2] = {' ', ' '};
	QueryScope	scope;
	int64	   *ids;

	args[0] = TimestampTzGetDatum(GetCurrentStatementStartTimestamp());
	RoleBoundShops(ROLE_APPLICATION, &args[1], &nulls[1]);
	QueryBegin(&scope);
	*n = (int) QueryRun(&registration_templates, args, nulls);
	ids = MemoryContextAlloc(caller, Max(*n, 1) * sizeof(int64));
	for (int i = 0; i < *n; i++)
	{
		bool		isnull;

		ids[i] = DatumGetInt64(QueryValue(i, 1, &isnull));
	}
	QueryEnd(&scope);
	return ids;
}

/*
 * coupon_receive_new_user(user_id): claim every open registration template for
 * a user, each once.  It is for many shops, and waits for none of them: what is held up at
 * a gate is "out of stock", until the user comes again, and so are what another transaction
 * claims for him, if it does not end in a moment, and what one transaction has no room for.
 */
Datum
coupon_receive_new_user(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int64		user_id;
	int64	   *templates;
	int			ntemplates;
	bool		held_up = false;

	ArgRequire(fcinfo, 0, "user_id");
	user_id = PG_GETARG_INT64(0);
	ArgCheckUserId(user_id);
	TemplateRequirePreload();

	InitMaterializedSRF(fcinfo, 0);
	templates = RegistrationTemplates(&ntemplates);
	for (int i = 0; i < ntemplates; i++)
	{
		ClaimRequest request = {0};
		ClaimResult result;
		Datum		values[7];
		bool		nulls[7] = {false};

		request.template_id = templates[i];
		request.request_id = NEW_USER_REQUEST;
		request.source = "registration";
		request.roles = ROLE_APPLICATION;
		request.open_to = TEMPLATE_OPEN_TO(TEMPLATE_REGISTRATION);
		request.now = GetCurrentStatementStartTimestamp();
		request.limit_cap = 1;
		request.waiting = held_up ? CLAIM_WAITS_NOT : CLAIM_WAITS_BRIEFLY;
		if (TemplateIsGated(templates[i]) || StockIsCrowded())
			result = (ClaimResult) {.user_id = user_id, .code = OUTCOME_OUT_OF_STOCK};
		else
			ClaimCoupons(&request, &user_id, 1, &result);
		held_up |= result.held_up;

		values[0] = Int64GetDatum(templates[i]);
		FillResult(&result, values + 1, nulls + 1);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
