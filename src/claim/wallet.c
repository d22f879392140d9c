/*
 * wallet.c
 *		The SQL functions that read: templates for a shop's pages, and a user's
 *		wallet.
 *
 * Pages go by key, never by OFFSET.  Rows come from the tables through an
 * index; what changes with every claim, the stock left, comes from the shared
 * cache.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "template/template.h"

PG_FUNCTION_INFO_V1(coupon_stock_left);
PG_FUNCTION_INFO_V1(coupon_template_get);
PG_FUNCTION_INFO_V1(coupon_browse);
PG_FUNCTION_INFO_V1(coupon_browse_count);
PG_FUNCTION_INFO_V1(coupon_wallet);
PG_FUNCTION_INFO_V1(coupon_wallet_count);

/*
 * The planner flattens the subquery unless it is told not to (OFFSET 0), and
 * would then ask for the stock of each row twice.
 */
#define TEMPLATE_COLUMNS \
	"SELECT id, shop_number, issuer, name, category, open_to, status," \
	" receive_start, receive_end, total_stock, stock_left," \
	" CASE WHEN status OPERATOR(pg_catalog.<>) 'published'::pg_catalog.text" \
	"   THEN 'offline'::pg_catalog.text" \
	"  WHEN pg_catalog.statement_timestamp()" \
	"   OPERATOR(pg_catalog.>=) LEAST(receive_end, use_end) THEN 'ended'::pg_catalog.text" \
	"  WHEN pg_catalog.statement_timestamp() OPERATOR(pg_catalog.<) receive_start" \
	"   THEN 'upcoming'::pg_catalog.text" \
	"  WHEN stock_left OPERATOR(pg_catalog.=) 0 THEN 'sold_out'::pg_catalog.text" \
	"  ELSE 'open'::pg_catalog.text END," \
	" per_user_limit, discount_kind, discount_value, threshold_amount," \
	" max_discount, goods_ids, use_validity, use_start, use_end," \
	" refund_policy, usage_note, unmet_note, image_url, created_at, updated_at" \
	" FROM (SELECT t.*, %1$s.coupon_stock_left(t.id) AS stock_left" \
	" FROM %1$s.coupon_template t WHERE "

static OwnerQuery template_get = {
	TEMPLATE_COLUMNS
	"t.id OPERATOR(pg_catalog.=) $1"
	" AND ($2 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($2))"
	" AND (t.status OPERATOR(pg_catalog.<>) 'draft'::pg_catalog.text OR $4"
	"  AND ($3 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($3))) OFFSET 0) x",
	4, {INT8OID, INT8ARRAYOID, INT8ARRAYOID, BOOLOID}
};

#define TO_BE_BROWSED \
	"t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text" \
	" AND ($1 IS NULL OR t.category OPERATOR(pg_catalog.=) $1)" \
	" AND ($2 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) $2)" \
	" AND ($3 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($3))"

/*
 * By the folded count: what was sold out some time ago is left out without loading it
 * into the cache.
 */
#define NOT_CLOSED \
	"LEAST(t.receive_end, t.use_end) OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp()" \
	" AND (t.total_stock IS NULL OR COALESCE((SELECT s.folded FROM %1$s.coupon_stock s" \
	"  WHERE s.template_id OPERATOR(pg_catalog.=) t.id AND s.holder OPERATOR(pg_catalog.=) 0), 0)" \
	"  OPERATOR(pg_catalog.<) (t.total_stock OPERATOR(pg_catalog.-)" \
	"   COALESCE((SELECT pg_catalog.sum(o.quota) FROM %1$s.coupon_stock o" \
	"    WHERE o.template_id OPERATOR(pg_catalog.=) t.id" \
	"    AND o.holder OPERATOR(pg_catalog.<>) 0)::pg_catalog.int8, 0)))"

/* The stock is asked row by row until the page is full. */
static OwnerQuery browse = {
	TEMPLATE_COLUMNS TO_BE_BROWSED
	" AND ($5 IS NULL OR t.id OPERATOR(pg_catalog.<) $5)"
	" AND ($6 OR " NOT_CLOSED ")"
	" ORDER BY t.id DESC OFFSET 0) x"
	" WHERE $6 OR stock_left IS NULL OR stock_left OPERATOR(pg_catalog.>) 0"
	" ORDER BY id DESC LIMIT $4",
	6, {TEXTOID, INT8OID, INT8ARRAYOID, INT4OID, INT8OID, BOOLOID}
};

static OwnerQuery browse_count = {
	"SELECT pg_catalog.count(*) FROM %1$s.coupon_template t WHERE "
	TO_BE_BROWSED " AND " NOT_CLOSED,
	3, {TEXTOID, INT8OID, INT8ARRAYOID}
};

static OwnerQuery wallet = {
	"SELECT h.id, h.template_id, h.shop_number, h.issuer, h.name, h.category,"
	" h.status, h.discount_kind, h.discount_value, h.threshold_amount,"
	" h.max_discount, h.goods_ids, h.receive_seq, h.source, h.received_at,"
	" h.use_start, h.use_end, h.usable, h.order_id, h.order_amount, h.locked_until, h.used_at,"
	" h.discount, h.usage_note, h.unmet_note, h.image_url"
	" FROM %1$s.coupon_held h WHERE h.user_id OPERATOR(pg_catalog.=) $1 AND NOT h.hidden"
	" AND ($2 IS NULL OR h.status OPERATOR(pg_catalog.=) $2) AND ($4 IS NULL"
	"  OR h.id OPERATOR(pg_catalog.<) $4)"
	" AND ($5 IS NULL OR h.shop_number OPERATOR(pg_catalog.=) ANY ($5))"
	" ORDER BY h.id DESC LIMIT $3",
	5, {INT8OID, TEXTOID, INT4OID, INT8OID, INT8ARRAYOID}
};

static OwnerQuery wallet_count = {
	"SELECT s.status, pg_catalog.count(h.id) FROM pg_catalog.unnest('{unused,locked,used,expired,revoked}'::pg_catalog.text[])"
	" WITH ORDINALITY AS s (status, place)"
	" LEFT JOIN %1$s.coupon_held h ON h.user_id OPERATOR(pg_catalog.=) $1"
	"  AND h.status OPERATOR(pg_catalog.=) s.status AND NOT h.hidden"
	" AND ($2 IS NULL OR h.shop_number OPERATOR(pg_catalog.=) ANY ($2))"
	" GROUP BY s.status, s.place ORDER BY s.place",
	2, {INT8OID, INT8ARRAYOID}
};

/* Copy an argument of the function to one of the statement. */
static void
PassArg(FunctionCallInfo fcinfo, int arg, Datum *values, char *nulls, int to)
{
	nulls[to] = PG_ARGISNULL(arg) ? 'n' : ' ';
	values[to] = PG_ARGISNULL(arg) ? (Datum) 0 : PG_GETARG_DATUM(arg);
}

static void
PassPageSize(FunctionCallInfo fcinfo, int arg, Datum *values, char *nulls,
			 int to)
{
	ArgCheckPageSize(fcinfo, arg);
	PassArg(fcinfo, arg, values, nulls, to);
}

static void
CheckUserGiven(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("user_id must not be null")));
}

/* Drafts are for those who can read the table, not for applications. */
static bool
SeesDrafts(void)
{
	return pg_class_aclcheck(CatalogGet()->template_table, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/*
 * coupon_stock_left(template_id) → bigint: units that can be claimed now; null
 * for an unlimited or unknown template.
 */
Datum
coupon_stock_left(PG_FUNCTION_ARGS)
{
	TemplateView view;
	int64		left;

	if (!TemplateFetchAnywhere(PG_GETARG_INT64(0), &view) ||
		!RoleSeesShop(ROLE_ANY, view.attrs.has_shop, view.attrs.shop_number) ||
		(view.attrs.status == TEMPLATE_DRAFT && !SeesDrafts()))
		PG_RETURN_NULL();
	left = TemplateStockLeft(&view);
	if (left == CACHE_UNLIMITED)
		PG_RETURN_NULL();
	PG_RETURN_INT64(left);
}

/*
 * coupon_template_get(template_id): the template, its stock left and whether
 * it can be claimed now; no row where there is none, or for an application a draft.
 */
Datum
coupon_template_get(PG_FUNCTION_ARGS)
{
	Datum		values[4];
	char		nulls[4];

	PassArg(fcinfo, 0, values, nulls, 0);
	RoleBoundShops(ROLE_ANY, &values[1], &nulls[1]);
	RoleBoundShops(ROLE_OFFICE, &values[2], &nulls[2]);
	values[3] = BoolGetDatum(SeesDrafts());
	nulls[3] = ' ';
	return QueryMaterialize(fcinfo, &template_get, values, nulls);
}

/*
 * coupon_browse(category, shop_number, page_size, before_id, closed): published
 * templates, newest first; without "closed" those that can be claimed, or will be.
 */
Datum
coupon_browse(PG_FUNCTION_ARGS)
{
	Datum		values[6];
	char		nulls[6];

	ArgRequire(fcinfo, 4, "closed");
	PassArg(fcinfo, 0, values, nulls, 0);
	PassArg(fcinfo, 1, values, nulls, 1);
	RoleBoundShops(ROLE_ANY, &values[2], &nulls[2]);
	PassPageSize(fcinfo, 2, values, nulls, 3);
	PassArg(fcinfo, 3, values, nulls, 4);
	PassArg(fcinfo, 4, values, nulls, 5);
	return QueryMaterialize(fcinfo, &browse, values, nulls);
}

/*
 * coupon_browse_count(category, shop_number) → bigint: how many of these there are; one that
 * has been sold out since the last fold still counts.
 */
Datum
coupon_browse_count(PG_FUNCTION_ARGS)
{
	QueryScope	scope;
	int64		n;
	bool		isnull;
	Datum		values[3];
	char		nulls[3];

	PassArg(fcinfo, 0, values, nulls, 0);
	PassArg(fcinfo, 1, values, nulls, 1);
	RoleBoundShops(ROLE_ANY, &values[2], &nulls[2]);
	QueryBegin(&scope);
	QueryRun(&browse_count, values, nulls);
	n = DatumGetInt64(QueryValue(0, 1, &isnull));
	QueryEnd(&scope);
	PG_RETURN_INT64(n);
}

static void
CheckStatus(FunctionCallInfo fcinfo, int arg)
{
	static const char *const known[] = {"unused", "locked", "used", "expired", "revoked"};
	char	   *status;

	if (PG_ARGISNULL(arg))
		return;
	status = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	for (int i = 0; i < lengthof(known); i++)
	{
		if (strcmp(status, known[i]) == 0)
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("\"%s\" is not a status of a coupon", status),
			 errhint("Use unused, locked, used, expired, revoked, or NULL for all.")));
}

/*
 * coupon_wallet(user_id, status, page_size, before_id): a user's coupons,
 * newest first.
 */
Datum
coupon_wallet(PG_FUNCTION_ARGS)
{
	Datum		values[5];
	char		nulls[5];

	CheckUserGiven(fcinfo);
	CheckStatus(fcinfo, 1);
	PassArg(fcinfo, 0, values, nulls, 0);
	PassArg(fcinfo, 1, values, nulls, 1);
	PassPageSize(fcinfo, 2, values, nulls, 2);
	PassArg(fcinfo, 3, values, nulls, 3);
	RoleBoundShops(ROLE_APPLICATION | ROLE_OPERATOR, &values[4], &nulls[4]);
	return QueryMaterialize(fcinfo, &wallet, values, nulls);
}

/*
 * coupon_wallet_count(user_id): how many coupons of each status.
 */
Datum
coupon_wallet_count(PG_FUNCTION_ARGS)
{
	Datum		values[2];
	char		nulls[2];

	CheckUserGiven(fcinfo);
	PassArg(fcinfo, 0, values, nulls, 0);
	RoleBoundShops(ROLE_APPLICATION | ROLE_OPERATOR, &values[1], &nulls[1]);
	return QueryMaterialize(fcinfo, &wallet_count, values, nulls);
}
