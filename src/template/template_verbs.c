/*
 * template_verbs.c
 *		How operators make and change templates: coupon_template_create, _change,
 *		_copy and _delete.
 *
 * Operators have no right to write the table, since whoever may write a table may
 * lock it, and stop all shops.  A verb writes one row as the owner, and sees only
 * the templates of the shops that its caller is an operator of.
 *
 * What a template is to have comes as a JSON object whose keys are columns.  They
 * are read by jsonb_populate_record, as the row type of the table has them; so a
 * value that does not fit gets the error that an INSERT gets.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/errors.h"
#include "base/locks.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/shop_role.h"

PG_FUNCTION_INFO_V1(coupon_template_create);
PG_FUNCTION_INFO_V1(coupon_template_change);
PG_FUNCTION_INFO_V1(coupon_template_copy);
PG_FUNCTION_INFO_V1(coupon_template_delete);

/* In this order, as bits of a set. */
static const char *const columns[] = {
	"shop_number", "issuer", "name", "category", "open_to", "status", "receive_start",
	"receive_end", "total_stock", "per_user_limit", "discount_kind", "discount_value",
	"threshold_amount", "max_discount", "goods_ids", "use_validity", "use_start", "use_end",
	"refund_policy", "usage_note", "unmet_note", "image_url"
};

typedef uint32 ColumnSet;

/* Templates of a shop: that have not begun; published for registration. */
#define MAX_COMING 10000
#define MAX_REGISTRATIONS 100

#define SHOP_NUMBER		(1 << 0)
#define ISSUER			(1 << 1)
#define NAME			(1 << 2)
#define CATEGORY		(1 << 3)
#define OPEN_TO			(1 << 4)
#define STATUS			(1 << 5)
#define RECEIVE_START	(1 << 6)
#define RECEIVE_END		(1 << 7)
#define TOTAL_STOCK		(1 << 8)
#define DISCOUNT_VALUE	(1 << 11)
#define ALL_COLUMNS		((1 << lengthof(columns)) - 1)

/* What makes a template one of those that a shop may have a few of. */
#define COUNTED (SHOP_NUMBER | CATEGORY | OPEN_TO | STATUS | RECEIVE_START | RECEIVE_END)

static OwnerQuery template_of_request = {
	"SELECT id, shop_number FROM %1$s.coupon_template WHERE request_id OPERATOR(pg_catalog.=) $1"
	" AND COALESCE(shop_number, 0) OPERATOR(pg_catalog.=) COALESCE($2, 0)",
	2, {TEXTOID, INT8OID}
};

/* Those of the shop that has this one, if it is of them. */
static OwnerQuery open_registrations = {
	"SELECT pg_catalog.count(*) FROM (SELECT FROM %1$s.coupon_template o JOIN %1$s.coupon_template t"
	" ON o.shop_number OPERATOR(pg_catalog.=) t.shop_number"
	" WHERE t.id OPERATOR(pg_catalog.=) $1"
	" AND t.open_to OPERATOR(pg_catalog.=) 'registration'::pg_catalog.text"
	" AND t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	" AND o.open_to OPERATOR(pg_catalog.=) 'registration'::pg_catalog.text"
	" AND o.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	" AND o.receive_end OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp()"
	" LIMIT $2) x",
	2, {INT8OID, INT8OID}
};

/* A tick looks at what has begun just now, too, whatever its status. */
#define JUST_BEGUN \
	"(pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval)"

/* Of its shop, if it is one itself. */
static OwnerQuery coming_sales = {
	"SELECT pg_catalog.count(*) FROM (SELECT FROM %1$s.coupon_template o JOIN %1$s.coupon_template t"
	" ON o.shop_number OPERATOR(pg_catalog.=) t.shop_number"
	" WHERE t.id OPERATOR(pg_catalog.=) $1"
	" AND t.receive_start OPERATOR(pg_catalog.>) " JUST_BEGUN
	" AND o.receive_start OPERATOR(pg_catalog.>) " JUST_BEGUN
	" LIMIT $2) x",
	2, {INT8OID, INT8OID}
};

static OwnerQuery delete_template = {
	"DELETE FROM %1$s.coupon_template WHERE id OPERATOR(pg_catalog.=) $1"
	" AND ($2 IS NULL OR shop_number OPERATOR(pg_catalog.=) ANY ($2))",
	2, {INT8OID, INT8ARRAYOID}
};

static int
ColumnNumber(const JsonbValue *key)
{
	for (int i = 0; i < lengthof(columns); i++)
	{
		if (strlen(columns[i]) == key->val.string.len &&
			memcmp(columns[i], key->val.string.val, key->val.string.len) == 0)
			return i;
	}
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("\"%s\" is not a column of a template that can be set",
					pnstrdup(key->val.string.val, Min(key->val.string.len, NAMEDATALEN))),
			 errhint("The documentation lists the columns of coupon_template.")));
}

/* Which columns an object names.  Raises VC003 for what is no object, or another key. */
static ColumnSet
ColumnsOf(FunctionCallInfo fcinfo, int arg, const char *name)
{
	Jsonb	   *object;
	JsonbIterator *it;
	JsonbValue	value;
	JsonbIteratorToken token;
	ColumnSet	set = 0;

	ArgRequire(fcinfo, arg, name);
	object = PG_GETARG_JSONB_P(arg);
	if (!JB_ROOT_IS_OBJECT(object))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s must be a JSON object", name),
				 errhint("For example '{\"status\": \"published\"}'.")));
	it = JsonbIteratorInit(&object->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			set |= 1 << ColumnNumber(&value);
	}
	return set;
}

/* ", name, status": the columns of a set, each with a prefix. */
static char *
ColumnList(ColumnSet set, const char *prefix)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < lengthof(columns); i++)
	{
		if (set & (1 << i))
			appendStringInfo(&list, ", %s%s", prefix, columns[i]);
	}
	return list.data;
}

/* Between QueryBegin and QueryEnd; returns the number of rows. */
static uint64
Execute(const char *sql, int nargs, Oid *types, Datum *args, const char *nulls)
{
	int			rc = SPI_execute_with_args(sql, nargs, types, args, nulls, false, 0);

	if (rc < 0)
		elog(ERROR, "statement \"%s\" failed: %s", sql, SPI_result_code_string(rc));
	return SPI_processed;
}

/* The template that a verb has stored, or an earlier call with its request id. */
typedef struct Stored
{
	bool		found;
	int64		id;
	bool		has_shop;
	int64		shop_number;
	bool		repeated;
} Stored;

/* From a result of id, shop_number: as the row is, whatever triggers have made of it. */
static void
ReadStored(Stored *stored, uint64 rows)
{
	bool		isnull;

	stored->found = rows > 0;
	if (rows == 0)
		return;
	stored->id = DatumGetInt64(QueryValue(0, 1, &isnull));
	stored->shop_number = DatumGetInt64(QueryValue(0, 2, &isnull));
	stored->has_shop = !isnull;
}

/* Raises 42501 unless the caller is an operator of the shop, or of the platform. */
static void
RequireOperator(bool has_shop, int64 shop_number)
{
	if (!RoleSeesShop(ROLE_OPERATOR, has_shop, shop_number))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 !has_shop ? errmsg("you are not an operator of the platform") :
				 errmsg("you are not an operator of shop %lld", (long long) shop_number),
				 errhint("coupon_grant(role, 'operator', shop_number) makes one.")));
}

/* Raises VC003 where the template makes too many of its shop; counts it and the others. */
static void
RequireFew(const Stored *stored, OwnerQuery *query, int most, const char *what, const char *hint)
{
	Datum		args[2] = {Int64GetDatum(stored->id), Int64GetDatum(most + 1)};
	LOCKTAG		tag;
	QueryScope	scope;
	bool		isnull;
	int64		n;

	QueryBegin(&scope);
	QueryPlanByIndex();
	QueryRun(query, args, NULL);
	n = DatumGetInt64(QueryValue(0, 1, &isnull));
	if (n > 0)
	{
		/* Until the commit, since others do not see this one before. */
		LockTagOfShop(&tag, stored->shop_number);
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
		QueryRunLatest(query, args, NULL);
		n = DatumGetInt64(QueryValue(0, 1, &isnull));
	}
	QueryEnd(&scope);
	if (n > most)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("shop %lld would have more than %d %s",
						(long long) stored->shop_number, most, what),
				 errhint("%s", hint)));
}

/*
 * What was written is taken back unless the caller is an operator of its shop, as triggers
 * have left it, and the shop may have it.  written: the columns that may have changed.
 */
static void
AcceptStored(const Stored *stored, ColumnSet written)
{
	if (!stored->found)
		return;
	RequireOperator(stored->has_shop, stored->shop_number);
	if (!stored->has_shop || stored->repeated || (written & COUNTED) == 0)
		return;
	/* A new user gets the coupons of all shops in one transaction: none makes it fail, or last. */
	RequireFew(stored, &open_registrations, MAX_REGISTRATIONS,
			   "published templates for registration",
			   "Set those that are not needed to 'offline'.");
	/* The worker looks at all sales that come, of all shops. */
	RequireFew(stored, &coming_sales, MAX_COMING, "templates that have not begun",
			   "Delete those that are not needed, drafts too.");
}

/* The shop of an operator of one shop, for a template that names none. */
static bool
OnlyShop(int64 *shop_number)
{
	Datum		shops;
	char		null;
	ArrayType  *array;

	RoleBoundShops(ROLE_OPERATOR, &shops, &null);
	if (null == 'n')
		return false;
	array = DatumGetArrayTypeP(shops);
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) != 1)
		return false;
	*shop_number = *(int64 *) ARR_DATA_PTR(array);
	return true;
}

/* code, outcome, and where the verb returns them, template_id, repeated. */
static Datum
ReturnRow(FunctionCallInfo fcinfo, int code, const Stored *stored)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[4] = {Int32GetDatum(code), CStringGetTextDatum(OutcomeName(code)),
	Int64GetDatum(stored->id), BoolGetDatum(stored->repeated)};
	bool		nulls[4] = {false, false, !stored->found, false};

	InitMaterializedSRF(fcinfo, 0);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/* Of INSERT … RETURNING id, shop_number; if it has returned none, the earlier call's. */
static void
ReadMade(Stored *stored, uint64 rows, Datum request_id, Datum shop, bool shop_null)
{
	Datum		args[2] = {request_id, shop};
	char		nulls[2] = {' ', shop_null ? 'n' : ' '};

	stored->repeated = rows == 0;
	ReadStored(stored, rows > 0 ? rows :
			   QueryRunLatest(&template_of_request, args, nulls));
	if (!stored->found)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("a trigger or rule on \"coupon_template\" has kept the template out")));
}

/* The shop that a template is made for: what the object says, or else the default. */
static Datum
ShopOf(Jsonb *object, bool has_default, int64 shop_number, bool *null)
{
	JsonbValue	value;

	*null = !has_default;
	if (getKeyJsonValueFromContainer(&object->root, "shop_number", strlen("shop_number"),
									 &value) == NULL)
		return Int64GetDatum(shop_number);
	*null = value.type == jbvNull;
	if (value.type == jbvNumeric)
		return DirectFunctionCall1(numeric_int8, NumericGetDatum(value.val.numeric));
	if (value.type == jbvString)
		return DirectFunctionCall1(int8in, CStringGetDatum(pnstrdup(value.val.string.val,
																	value.val.string.len)));
	return (Datum) 0;
}

static Datum
RequestIdArg(FunctionCallInfo fcinfo, int arg, char *null)
{
	const char *request_id = ArgRequestId(fcinfo, arg);

	*null = request_id == NULL ? 'n' : ' ';
	return request_id == NULL ? (Datum) 0 : CStringGetTextDatum(request_id);
}

#define ONCE_PER_REQUEST \
	" ON CONFLICT (shop_number, request_id) WHERE request_id IS NOT NULL DO NOTHING" \
	" RETURNING id, shop_number"

/*
 * coupon_template_create(name, total_stock, discount_value, details, request_id)
 * → code, outcome, template_id, repeated: makes a template.  details: other columns,
 * as a JSON object.  An operator of one shop makes it for that, unless it says otherwise.
 */
Datum
coupon_template_create(PG_FUNCTION_ARGS)
{
	Oid			types[6] = {TEXTOID, INT8OID, NUMERICOID, TEXTOID, JSONBOID, INT8OID};
	Datum		args[6];
	char		nulls[6] = {' ', PG_ARGISNULL(1) ? 'n' : ' ', ' ', ' ', ' ', ' '};
	ColumnSet	given = ColumnsOf(fcinfo, 3, "details");
	int64		shop_number = 0;
	bool		default_shop = (given & SHOP_NUMBER) == 0 && OnlyShop(&shop_number);
	bool		default_issuer = default_shop && (given & ISSUER) == 0;
	QueryScope	scope;
	Datum		shop;
	bool		shop_null;
	Stored		stored = {0};

	ArgRequire(fcinfo, 0, "name");
	ArgRequire(fcinfo, 2, "discount_value");
	if (given & (NAME | TOTAL_STOCK | DISCOUNT_VALUE))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("name, total_stock and discount_value are arguments, not details")));
	args[0] = PG_GETARG_DATUM(0);
	args[1] = PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1);
	args[2] = PG_GETARG_DATUM(2);
	args[3] = RequestIdArg(fcinfo, 4, &nulls[3]);
	args[4] = PG_GETARG_DATUM(3);
	args[5] = Int64GetDatum(shop_number);
	shop = ShopOf(PG_GETARG_JSONB_P(3), default_shop, shop_number, &shop_null);
	/* Before an error can tell of another shop's rows. */
	RequireOperator(!shop_null, DatumGetInt64(shop));

	QueryBegin(&scope);
	ReadMade(&stored,
			 Execute(psprintf("INSERT INTO %1$s.coupon_template"
								   " (name, total_stock, discount_value, request_id%2$s%3$s%4$s)"
								   " SELECT $1, $2, $3, $4%5$s%6$s%7$s"
								   " FROM pg_catalog.jsonb_populate_record(NULL::%1$s.coupon_template, $5) r"
								   ONCE_PER_REQUEST,
								   quote_identifier(CatalogGet()->schema),
								   default_shop ? ", shop_number" : "", default_issuer ? ", issuer" : "",
								   ColumnList(given, ""), default_shop ? ", $6" : "",
								   default_issuer ? ", 'shop'::pg_catalog.text" : "",
								   ColumnList(given, "r.")),
						  6, types, args, nulls),
			 args[3], shop, shop_null);
	QueryEnd(&scope);
	AcceptStored(&stored, ALL_COLUMNS);
	return ReturnRow(fcinfo, OUTCOME_OK, &stored);
}

/*
 * coupon_template_change(template_id, changes) → code, outcome: sets the columns that
 * a JSON object names; null sets a column to null.
 */
Datum
coupon_template_change(PG_FUNCTION_ARGS)
{
	Oid			types[3] = {INT8OID, JSONBOID, INT8ARRAYOID};
	Datum		args[3];
	char		nulls[3] = {' ', ' ', ' '};
	ColumnSet	given = ColumnsOf(fcinfo, 1, "changes");
	QueryScope	scope;
	Stored		stored = {0};

	ArgRequire(fcinfo, 0, "template_id");
	if (given == 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("changes name no column")));
	args[0] = PG_GETARG_DATUM(0);
	args[1] = PG_GETARG_DATUM(1);
	RoleBoundShops(ROLE_OPERATOR, &args[2], &nulls[2]);
	if (given & SHOP_NUMBER)
	{
		bool		null;
		Datum		shop = ShopOf(PG_GETARG_JSONB_P(1), false, 0, &null);

		RequireOperator(!null, DatumGetInt64(shop));
	}

	QueryBegin(&scope);
	ReadStored(&stored,
			   Execute(psprintf("UPDATE %1$s.coupon_template t SET (%2$s) = ROW(%3$s)"
							 " FROM pg_catalog.jsonb_populate_record(NULL::%1$s.coupon_template, $2) r"
							 " WHERE t.id OPERATOR(pg_catalog.=) $1"
							 " AND ($3 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($3))"
							 " RETURNING t.id, t.shop_number",
							 quote_identifier(CatalogGet()->schema),
							 ColumnList(given, "") + strlen(", "), ColumnList(given, "r.") + strlen(", ")),
					3, types, args, nulls));
	QueryEnd(&scope);
	AcceptStored(&stored, given);
	return ReturnRow(fcinfo, stored.found ? OUTCOME_OK : OUTCOME_NOT_FOUND, &stored);
}

/*
 * coupon_template_copy(template_id, changes, request_id) → code, outcome,
 * template_id, repeated: makes a draft of a template's columns, but for those that a JSON
 * object names.
 */
Datum
coupon_template_copy(PG_FUNCTION_ARGS)
{
	Oid			types[4] = {INT8OID, JSONBOID, INT8ARRAYOID, TEXTOID};
	Datum		args[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};
	ColumnSet	given = ColumnsOf(fcinfo, 1, "changes");
	ColumnSet	copied = ALL_COLUMNS & ~(given | STATUS);
	const char *schema = quote_identifier(CatalogGet()->schema);
	QueryScope	scope;
	Datum		shop;
	bool		shop_null;
	Stored		stored = {0};

	ArgRequire(fcinfo, 0, "template_id");
	args[0] = PG_GETARG_DATUM(0);
	args[1] = PG_GETARG_DATUM(1);
	RoleBoundShops(ROLE_OPERATOR, &args[2], &nulls[2]);
	args[3] = RequestIdArg(fcinfo, 2, &nulls[3]);

	QueryBegin(&scope);
	if (Execute(psprintf("SELECT t.id, t.shop_number FROM %s.coupon_template t"
						 " WHERE t.id OPERATOR(pg_catalog.=) $1"
						 " AND ($3 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($3))", schema),
				4, types, args, nulls) == 0)
	{
		QueryEnd(&scope);
		return ReturnRow(fcinfo, OUTCOME_NOT_FOUND, &stored);
	}
	shop = QueryValue(0, 2, &shop_null);
	if (given & SHOP_NUMBER)
	{
		shop = ShopOf(PG_GETARG_JSONB_P(1), false, 0, &shop_null);
		QueryEnd(&scope);
		RequireOperator(!shop_null, DatumGetInt64(shop));
		QueryBegin(&scope);
	}
	ReadMade(&stored,
			 Execute(psprintf("INSERT INTO %1$s.coupon_template (request_id%2$s%3$s)"
								   " SELECT $4%4$s%5$s FROM %1$s.coupon_template t,"
								   " pg_catalog.jsonb_populate_record(NULL::%1$s.coupon_template, $2) r"
								   " WHERE t.id OPERATOR(pg_catalog.=) $1 AND ($3 IS NULL OR true)"
								   ONCE_PER_REQUEST,
								   schema, ColumnList(copied, ""), ColumnList(given, ""),
								   ColumnList(copied, "t."), ColumnList(given, "r.")),
						  4, types, args, nulls),
			 args[3], shop, shop_null);
	QueryEnd(&scope);
	AcceptStored(&stored, ALL_COLUMNS);
	return ReturnRow(fcinfo, OUTCOME_OK, &stored);
}

/*
 * coupon_template_delete(template_id) → code, outcome: deletes a template of which
 * nothing was issued, or raises VC007.
 */
Datum
coupon_template_delete(PG_FUNCTION_ARGS)
{
	Datum		args[2];
	char		nulls[2] = {' ', ' '};
	QueryScope	scope;
	Stored		stored = {0};

	ArgRequire(fcinfo, 0, "template_id");
	args[0] = PG_GETARG_DATUM(0);
	RoleBoundShops(ROLE_OPERATOR, &args[1], &nulls[1]);
	QueryBegin(&scope);
	stored.found = QueryRun(&delete_template, args, nulls) > 0;
	QueryEnd(&scope);
	return ReturnRow(fcinfo, stored.found ? OUTCOME_OK : OUTCOME_NOT_FOUND, &stored);
}
