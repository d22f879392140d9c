/*
 * quote.c
 *		Which coupons of a user an order could use, and what they would take off.
 *
 * It reads and locks nothing: what it says may have changed by the time of coupon_lock.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "order/coupon_row.h"

PG_FUNCTION_INFO_V1(coupon_quote);

typedef struct Quote
{
	const CouponRow *row;
	OutcomeCode code;
	int64		discount;
	int64		short_by;
} Quote;

static void
Judge(const CouponRow *row, const Bill *bill, TimestampTz now, Quote *quote)
{
	Discount	discount;

	quote->row = row;
	CHECK_FOR_INTERRUPTS();
	if (CouponRowStanding(row, NULL, now, &quote->code) != COUPON_FREE)
		return;
	discount = DiscountOf(&row->rule, bill);
	quote->code = discount.code;
	quote->discount = discount.cents;
	quote->short_by = discount.short_by;
}

/* Usable ones first, the largest discount, the earliest end, the id; then the others. */
static int
CompareQuotes(const void *a, const void *b)
{
	const Quote *left = a;
	const Quote *right = b;

	if ((left->code == OUTCOME_OK) != (right->code == OUTCOME_OK))
		return left->code == OUTCOME_OK ? -1 : 1;
	if (left->discount != right->discount)
		return left->discount > right->discount ? -1 : 1;
	if (left->row->use_end != right->row->use_end)
		return left->row->use_end < right->row->use_end ? -1 : 1;
	return left->row->id < right->row->id ? -1 : left->row->id > right->row->id;
}

static void
Put(ReturnSetInfo *rsinfo, const Quote *quote, const Bill *bill)
{
	const CouponRow *row = quote->row;
	bool		usable = quote->code == OUTCOME_OK;
	Datum		values[9] = {
		Int64GetDatum(row->id), Int64GetDatum(row->template_id),
		row->name ? CStringGetTextDatum(row->name) : (Datum) 0, BoolGetDatum(usable),
		usable ? (Datum) 0 : CStringGetTextDatum(OutcomeName(quote->code)),
		BillNumeric(quote->discount), BillNumeric(bill->cents - quote->discount),
		BillNumeric(quote->short_by), TimestampTzGetDatum(row->use_end)
	};
	bool		nulls[9] = {false};

	nulls[2] = row->name == NULL;
	nulls[4] = usable;
	nulls[5] = nulls[6] = !usable;
	nulls[7] = quote->short_by == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * coupon_quote(user_id, amount, shop_number, items, page_size) → user_coupon_id, template_id,
 * name, usable, reason, discount, payable, short_by, use_end.
 */
Datum
coupon_quote(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();
	VisibleShops visible;
	QueryScope	scope;
	Bill		bill;
	CouponRow  *rows;
	Quote	   *quotes;
	int			n;
	MemoryContext each;
	MemoryContext all;

	ArgRequire(fcinfo, 0, "user_id");
	ArgCheckUserId(PG_GETARG_INT64(0));
	ArgCheckPageSize(fcinfo, 4);
	BillRead(fcinfo, 1, 2, 3, &bill);
	InitMaterializedSRF(fcinfo, 0);
	RoleBoundShops(ROLE_APPLICATION | ROLE_OPERATOR, &visible.shops, &visible.null);

	QueryBegin(&scope);
	n = CouponRowsOfWallet(PG_GETARG_INT64(0), now - USECS_PER_DAY, &visible, &rows);
	quotes = palloc0(Max(n, 1) * sizeof(Quote));
	each = AllocSetContextCreate(CurrentMemoryContext, "coupon quote", ALLOCSET_DEFAULT_SIZES);
	all = MemoryContextSwitchTo(each);
	for (int i = 0; i < n; i++)
	{
		Judge(&rows[i], &bill, now, &quotes[i]);
		MemoryContextReset(each);
	}
	MemoryContextSwitchTo(all);
	qsort(quotes, n, sizeof(Quote), CompareQuotes);
	for (int i = 0; i < Min(n, PG_GETARG_INT32(4)); i++)
		Put((ReturnSetInfo *) fcinfo->resultinfo, &quotes[i], &bill);
	QueryEnd(&scope);
	return (Datum) 0;
}
