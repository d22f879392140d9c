/*
 * verify.c
 *		Recount: coupon_verify compares shared memory, folded counts and rows;
 *		coupon_stock_rebuild sets shared memory right; coupon_preheat fills it.
 *
 * coupon_verify stops nobody, so claims go on while it looks.  It can still
 * tell right from wrong exactly.  At every instant, with C the committed
 * coupons, issued - pending <= C <= issued.  It reads the numbers of an entry
 * (returned, issued, pending, in this order), then counts C with a snapshot,
 * then reads the numbers again; so
 *
 *		issued before - pending before - (returned after - returned before)
 *		<= C <= issued after
 *
 * since what was issued before has by the snapshot become a coupon, is still
 * pending, or was returned.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/args.h"
#include "base/array.h"
#include "base/catalog.h"
#include "base/owner_query.h"
#include "base/result_row.h"
#include "base/shop_role.h"
#include "stock/cache.h"
#include "stock/stock.h"
#include "template/template.h"

PG_FUNCTION_INFO_V1(coupon_verify);
PG_FUNCTION_INFO_V1(coupon_stock_rebuild);
PG_FUNCTION_INFO_V1(coupon_preheat);

#define VERIFY_COLUMNS 10

/* Of coupon_verify_row. */
static const Oid verify_types[VERIFY_COLUMNS] = {
	INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, BOOLOID, TEXTOID
};

typedef struct Before
{
	int64		template_id;
	StockNumbers numbers;
} Before;

/*
 * One row per template: id, total, own quota, folded, fresh, rows counted; and another
 * holder that has more coupons than its quota, null if none has.
 */
static OwnerQuery count_rows = {
	"WITH rows AS (SELECT c.template_id, c.holder,"
	" pg_catalog.count(*) FILTER (WHERE c.id OPERATOR(pg_catalog.>) COALESCE(w.upto, 0)) AS fresh,"
	" pg_catalog.count(*) FILTER (WHERE c.id OPERATOR(pg_catalog.<=) w.upto) AS counted"
	" FROM %1$s.user_coupon c LEFT JOIN %1$s.coupon_watermark w"
	"  ON w.holder OPERATOR(pg_catalog.=) c.holder"
	" WHERE c.holder IS NOT NULL AND ($1 IS NULL OR c.template_id OPERATOR(pg_catalog.=) $1)"
	" GROUP BY c.template_id, c.holder),"
	/* Those imported are folded, whatever their ids. */
	" over AS (SELECT o.template_id, pg_catalog.min(o.holder) AS holder FROM rows o"
	" LEFT JOIN %1$s.coupon_stock s ON s.template_id OPERATOR(pg_catalog.=) o.template_id"
	"  AND s.holder OPERATOR(pg_catalog.=) o.holder"
	" WHERE o.holder OPERATOR(pg_catalog.<>) 0 AND o.fresh OPERATOR(pg_catalog.+)"
	"  CASE WHEN o.holder OPERATOR(pg_catalog.=) 3 THEN o.counted ELSE COALESCE(s.folded, 0) END"
	"  OPERATOR(pg_catalog.>) COALESCE(s.quota, 0) GROUP BY o.template_id)"
	" SELECT t.id, t.total_stock, t.total_stock OPERATOR(pg_catalog.-) COALESCE("
	"  (SELECT pg_catalog.sum(s.quota)::pg_catalog.int8 FROM %1$s.coupon_stock s"
	"   WHERE s.template_id OPERATOR(pg_catalog.=) t.id"
	"   AND s.holder OPERATOR(pg_catalog.<>) 0), 0),"
	" COALESCE(s0.folded, 0), COALESCE(r.fresh, 0), COALESCE(r.counted, 0), over.holder"
	" FROM %1$s.coupon_template t"
	" LEFT JOIN rows r ON r.template_id OPERATOR(pg_catalog.=) t.id"
	"  AND r.holder OPERATOR(pg_catalog.=) 0"
	" LEFT JOIN over ON over.template_id OPERATOR(pg_catalog.=) t.id"
	" LEFT JOIN %1$s.coupon_stock s0 ON s0.template_id OPERATOR(pg_catalog.=) t.id"
	"  AND s0.holder OPERATOR(pg_catalog.=) 0"
	" WHERE ($1 IS NULL OR t.id OPERATOR(pg_catalog.=) $1)"
	" AND ($2 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($2))"
	" ORDER BY t.id",
	2, {INT8OID, INT8ARRAYOID}
};

static int
CompareBefore(const void *a, const void *b)
{
	int64		left = ((const Before *) a)->template_id;
	int64		right = ((const Before *) b)->template_id;

	return left < right ? -1 : left > right;
}

/* The numbers of all loaded entries of this database, by template. */
static Before *
ReadAllNumbers(int *n)
{
	Oid			relation = CatalogGet()->template_table;
	int			size = 64;
	Before	   *all = palloc(size * sizeof(Before));
	CacheEntry *entry;

	*n = 0;
	for (int i = 0; CacheIsAttached() && (entry = CacheSlot(i)) != NULL; i++)
	{
		CacheKey	key = entry->key;

		if (entry->state != CACHE_READY || key.database != MyDatabaseId ||
			key.relation != relation)
			continue;
		if (*n == size)
			all = repalloc(all, (size *= 2) * sizeof(Before));
		all[*n].template_id = key.template_id;
		if (StockRead(&key, &all[*n].numbers))
			(*n)++;
	}
	qsort(all, *n, sizeof(Before), CompareBefore);
	return all;
}

/* What is wrong with one template; NULL: nothing. */
static const char *
Judge(const StockNumbers *before, const StockNumbers *after, int64 quota,
	  int64 folded, int64 fresh, int64 counted)
{
	int64		coupons = folded + fresh;

	if (quota != CACHE_UNLIMITED && coupons > quota)
		return "oversold: more coupons than the total";
	if (counted > folded)
		return "folded count is below the rows up to the watermark";
	if (after == NULL || after->recount)
		return NULL;
	if (coupons > after->issued)
		return "shared memory counts fewer than the tables hold";
	if (before != NULL && after->returned >= before->returned &&
		before->issued - before->pending -
		(after->returned - before->returned) > coupons)
		return "shared memory counts more than the tables hold";
	return NULL;
}

static void
VerifyRow(ReturnSetInfo *rsinfo, int row, const Before *all, int nall)
{
	Datum		values[VERIFY_COLUMNS];
	bool		nulls[VERIFY_COLUMNS] = {false};
	int64		number[6];
	Before		wanted;
	const Before *before;
	CacheKey	key;
	StockNumbers after;
	bool		loaded;
	int32		other;
	bool		no_other;
	const char *problem;

	for (int i = 0; i < 6; i++)
		number[i] = DatumGetInt64(QueryValue(row, i + 1, &nulls[i]));
	if (nulls[2])
		number[2] = CACHE_UNLIMITED;

	wanted.template_id = number[0];
	before = bsearch(&wanted, all, nall, sizeof(Before), CompareBefore);
	CacheMakeKey(&key, CatalogGet()->template_table, number[0]);
	loaded = CacheIsAttached() && StockRead(&key, &after);
	other = DatumGetInt32(QueryValue(row, 7, &no_other));
	problem = !no_other ?
		psprintf("oversold: holder %d has more coupons than its quota", other) :
		Judge(before ? &before->numbers : NULL, loaded ? &after : NULL,
					number[2], number[3], number[4], number[5]);

	values[0] = Int64GetDatum(number[0]);
	values[1] = Int64GetDatum(number[1]);
	values[2] = Int64GetDatum(number[2]);
	values[3] = Int64GetDatum(number[3] + number[4]);
	values[4] = Int64GetDatum(number[3]);
	values[5] = Int64GetDatum(number[4] + number[5]);
	nulls[3] = nulls[4] = nulls[5] = false;
	values[6] = Int64GetDatum(loaded ? after.issued : 0);
	values[7] = Int64GetDatum(loaded ? after.pending : 0);
	nulls[6] = nulls[7] = !loaded;
	values[8] = BoolGetDatum(problem == NULL);
	values[9] = problem ? CStringGetTextDatum(problem) : (Datum) 0;
	nulls[9] = problem == NULL;
	tuplestore_puttuple(rsinfo->setResult,
						RowForm(rsinfo->setDesc, verify_types, VERIFY_COLUMNS,
								values, nulls));
}

/*
 * coupon_verify(template_id) → one row per template (all when null): the
 * counts of tables and shared memory, whether they agree, and what differs.
 */
Datum
coupon_verify(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	QueryScope	scope;
	Datum		args[2];
	char		nulls[2];
	Before	   *all;
	int			nall;
	int			nrows;

	InitMaterializedSRF(fcinfo, 0);
	nulls[0] = PG_ARGISNULL(0) ? 'n' : ' ';
	args[0] = PG_ARGISNULL(0) ? (Datum) 0 : PG_GETARG_DATUM(0);
	RoleBoundShops(ROLE_OFFICE, &args[1], &nulls[1]);

	all = ReadAllNumbers(&nall);
	QueryBegin(&scope);
	nrows = (int) QueryRunLatest(&count_rows, args, nulls);
	for (int i = 0; i < nrows; i++)
		VerifyRow(rsinfo, i, all, nall);
	QueryEnd(&scope);
	return (Datum) 0;
}

/*
 * coupon_stock_rebuild(template_id) → bigint: count the coupons of a template
 * again and return what is left (null: no total, or no such template).
 *
 * Waits for open claims of it, at most coupon.gate_timeout: VC008.
 */
Datum
coupon_stock_rebuild(PG_FUNCTION_ARGS)
{
	int64		template_id = PG_GETARG_INT64(0);
	TemplateView view;
	int64		left;

	TemplateRequirePreload();
	if (!TemplateFetch(template_id, &view) ||
		!RoleSeesShop(ROLE_OPERATOR, view.attrs.has_shop, view.attrs.shop_number) ||
		!TemplateRecount(template_id) ||
		!TemplateFetch(template_id, &view))
		PG_RETURN_NULL();
	left = TemplateStockLeft(&view);
	if (left == CACHE_UNLIMITED)
		PG_RETURN_NULL();
	PG_RETURN_INT64(left);
}

/*
 * coupon_preheat(template_ids) → bigint: load templates into the shared cache; how many
 * of them there are.
 */
Datum
coupon_preheat(PG_FUNCTION_ARGS)
{
	int64	   *ids;
	int			n;
	int64		loaded = 0;

	ArgRequire(fcinfo, 0, "template_ids");
	ids = ArrayInt8(PG_GETARG_ARRAYTYPE_P(0), "template_ids", &n);
	TemplateRequirePreload();
	for (int i = 0; i < n; i++)
	{
		TemplateView view;

		CHECK_FOR_INTERRUPTS();
		if (TemplateFetch(ids[i], &view) &&
			RoleSeesShop(ROLE_OPERATOR, view.attrs.has_shop, view.attrs.shop_number))
			loaded++;
	}
	PG_RETURN_INT64(loaded);
}
