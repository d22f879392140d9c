/*
 * coupon_row.c
 *		Rows of user_coupon as an order meets them: read, judged, stored.
 *
 * Found through the user's part of the primary key, all that an order has by its id in the
 * row, and what it once had by its history; no column that changes here is in an
 * index, so that a page with room takes the new version without one.  Rows are locked in
 * the order of ids and judged after that: at READ COMMITTED as they are then, above it a row
 * that has changed since the snapshot raises 40001.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/array.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "order/coupon_row.h"

#define MOST_OF_WALLET "5000"	/* coupons that a quote looks at, the newest */

#define COLUMNS \
	"SELECT c.id, c.template_id, c.status, c.use_start, c.use_end, c.locked_until, c.used_at," \
	" c.order_id, c.order_amount, c.discount, t.id IS NOT NULL, t.discount_kind, t.discount_value," \
	" t.threshold_amount, t.max_discount, t.shop_number, t.goods_ids, t.refund_policy, t.name," \
	" ($3 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($3)) IS TRUE" \
	" FROM %1$s.user_coupon AS c LEFT JOIN %1$s.coupon_template AS t" \
	" ON t.id OPERATOR(pg_catalog.=) c.template_id" \
	" WHERE c.user_id OPERATOR(pg_catalog.=) $1"

static OwnerQuery lock_rows = {
	COLUMNS " AND (c.id OPERATOR(pg_catalog.=) ANY ($2)"
	"  OR c.order_id OPERATOR(pg_catalog.=) $4 AND c.status OPERATOR(pg_catalog.=) ANY ('{1,2}'::pg_catalog.int2[]))"
	" ORDER BY c.id FOR NO KEY UPDATE OF c",
	4, {INT8OID, INT8ARRAYOID, INT8ARRAYOID, TEXTOID}
};

static OwnerQuery count_rows = {
	"SELECT pg_catalog.count(*) FROM %1$s.user_coupon AS c WHERE c.user_id OPERATOR(pg_catalog.=) $1"
	" AND (c.id OPERATOR(pg_catalog.=) ANY ($2)"
	"  OR c.order_id OPERATOR(pg_catalog.=) $3 AND c.status OPERATOR(pg_catalog.=) ANY ('{1,2}'::pg_catalog.int2[]))",
	3, {INT8OID, INT8ARRAYOID, TEXTOID}
};

static OwnerQuery wallet_rows = {
	COLUMNS " AND ($3 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($3))"
	" AND c.status OPERATOR(pg_catalog.<>) ALL ('{2,4}'::pg_catalog.int2[])"
	" AND (c.use_end OPERATOR(pg_catalog.>) $2 OR c.locked_until OPERATOR(pg_catalog.>) $2)"
	" ORDER BY c.id DESC LIMIT " MOST_OF_WALLET,
	3, {INT8OID, TIMESTAMPTZOID, INT8ARRAYOID}
};

static OwnerQuery store_row = {
	"UPDATE %1$s.user_coupon SET status = $3, use_end = $4, locked_until = $5, used_at = $6,"
	" order_id = $7, order_amount = $8, discount = $9, hidden = NULL"
	" WHERE user_id OPERATOR(pg_catalog.=) $1 AND id OPERATOR(pg_catalog.=) $2"
	" RETURNING status, use_end, locked_until, used_at, order_id, order_amount, discount",
	9, {INT8OID, INT8OID, INT2OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID,
		NUMERICOID, NUMERICOID}
};

static OwnerQuery hide_row = {
	"UPDATE %1$s.user_coupon SET hidden = true"
	" WHERE user_id OPERATOR(pg_catalog.=) $1 AND id OPERATOR(pg_catalog.=) $2 AND hidden IS NOT TRUE",
	2, {INT8OID, INT8OID}
};

/* Money of a row is sane by its CHECK. */
static int64
CentsAt(int row, int column)
{
	bool		isnull;
	Datum		value = QueryValue(row, column, &isnull);

	return isnull ? 0 : BillCentsOfRow(value);
}

static TimestampTz
TimeAt(int row, int column)
{
	bool		isnull;
	Datum		value = QueryValue(row, column, &isnull);

	return isnull ? 0 : DatumGetTimestampTz(value);
}

static bool
IsNull(int row, int column)
{
	bool		isnull;

	(void) QueryValue(row, column, &isnull);
	return isnull;
}

static char *
RequiredText(int row, int column)
{
	return TextDatumGetCString(QueryRequired(row, column, TEXTOID));
}

static void
ReadRule(int row, DiscountRule *rule)
{
	bool		isnull;
	Datum		value;

	rule->percent = strcmp(RequiredText(row, 12), "percent") == 0;
	rule->value = CentsAt(row, 13);
	rule->threshold = CentsAt(row, 14);
	rule->most = CentsAt(row, 15);
	value = QueryValue(row, 16, &isnull);
	rule->has_shop = !isnull;
	rule->shop_number = isnull ? 0 : DatumGetInt64(value);
	rule->goods_ids = QueryValue(row, 17, &isnull); /* as the row has it: it may be large */
	rule->has_goods = !isnull;
}

static void
ReadRow(int i, int64 user_id, CouponRow *row)
{
	bool		isnull;

	row->id = DatumGetInt64(QueryValue(i, 1, &isnull));
	row->user_id = user_id;
	row->template_id = DatumGetInt64(QueryValue(i, 2, &isnull));
	row->status = (CouponStatus) DatumGetInt16(QueryValue(i, 3, &isnull));
	row->use_start = TimeAt(i, 4);
	row->use_end = TimeAt(i, 5);
	row->locked_until = TimeAt(i, 6);
	row->used_at = TimeAt(i, 7);
	row->order_id = IsNull(i, 8) ? NULL : RequiredText(i, 8);
	row->has_money = !IsNull(i, 9) && !IsNull(i, 10);
	row->order_cents = CentsAt(i, 9);
	row->discount = CentsAt(i, 10);
	row->visible = DatumGetBool(QueryValue(i, 20, &isnull));
	row->has_template = DatumGetBool(QueryValue(i, 11, &isnull));
	if (!row->has_template)
		return;
	ReadRule(i, &row->rule);
	row->refund_policy = RequiredText(i, 18);
	row->name = RequiredText(i, 19);
}

static int
ReadRows(uint64 n, int64 user_id, CouponRow **rows)
{
	*rows = palloc0(Max(n, 1) * sizeof(CouponRow));
	for (uint64 i = 0; i < n; i++)
		ReadRow((int) i, user_id, &(*rows)[i]);
	return (int) n;
}

/*
 * CouponRowsLock locks and reads coupons of a user, in the order of ids: all that an order has
 * (NULL: none) and those with ids given; returns how many there are.  Between QueryBegin and
 * QueryEnd of the caller's, like the rest.
 *
 * Raises 40001 where an old snapshot does not show one of them: it would count for nothing.
 */
int
CouponRowsLock(int64 user_id, const char *order_id, const int64 *ids, int n,
			   const VisibleShops *visible, CouponRow **rows)
{
	Datum		order = order_id ? CStringGetTextDatum(order_id) : (Datum) 0;
	Datum		id_array = ArrayOfInt8(ids, n);
	Datum		args[4] = {Int64GetDatum(user_id), id_array, visible->shops, order};
	char		nulls[5] = {' ', ' ', visible->null, order_id ? ' ' : 'n', '\0'};
	int			nrows = ReadRows(QueryRun(&lock_rows, args, nulls), user_id, rows);

	if (IsolationUsesXactSnapshot())
	{
		Datum		count_args[3] = {Int64GetDatum(user_id), id_array, order};
		bool		isnull;

		(void) QueryRunLatest(&count_rows, count_args, order_id ? NULL : "  n");
		if (DatumGetInt64(QueryValue(0, 1, &isnull)) != nrows)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access due to concurrent change of coupons")));
	}
	return nrows;
}

/*
 * CouponRowsOfWallet reads the coupons of a user that are neither used nor revoked and that
 * end, or whose lease ends, after a moment.
 */
int
CouponRowsOfWallet(int64 user_id, TimestampTz ends_after, const VisibleShops *visible,
				   CouponRow **rows)
{
	Datum		args[3] = {Int64GetDatum(user_id), TimestampTzGetDatum(ends_after), visible->shops};
	char		nulls[4] = {' ', ' ', visible->null, '\0'};

	return ReadRows(QueryRun(&wallet_rows, args, nulls), user_id, rows);
}

static bool
IsOfOrder(const CouponRow *row, const char *order_id)
{
	return row->order_id != NULL && order_id != NULL && strcmp(row->order_id, order_id) == 0;
}

/*
 * CouponRowStanding tells what a coupon is to an order (NULL: to one that is yet to come);
 * where it is not for it, "code" says why.
 *
 * A lease is judged by its deadline, here alone: no job frees a coupon.  One that has run
 * out is still its order's while nobody else has taken the coupon and it has not expired.
 */
CouponStanding
CouponRowStanding(const CouponRow *row, const char *order_id, TimestampTz now,
				  OutcomeCode *code)
{
	bool		ours = IsOfOrder(row, order_id);
	bool		runs = row->status == COUPON_LOCKED && row->locked_until > now;

	*code = OUTCOME_OK;
	if (row->status == COUPON_USED && ours)
		return COUPON_USED_BY_IT;
	if (row->status == COUPON_LOCKED && ours && row->has_money && (runs || row->use_end > now))
		return COUPON_LEASED_TO_IT;
	if (row->status == COUPON_USED)
		*code = OUTCOME_USED;
	else if (row->status == COUPON_REVOKED)
		*code = OUTCOME_REVOKED;
	else if (runs)
		*code = OUTCOME_LOCKED;
	else if (row->status == COUPON_EXPIRED || row->use_end <= now)
		*code = OUTCOME_EXPIRED;
	else if (row->use_start > now)
		*code = OUTCOME_NOT_YET_VALID;
	else if (!row->has_template)
		*code = OUTCOME_NOT_FOUND;
	return *code == OUTCOME_OK ? COUPON_FREE : COUPON_NOT_FOR_IT;
}

/* Whether a row was stored as it was given; a trigger may change it. */
static bool
IsStored(const CouponRow *row)
{
	bool		isnull;

	return DatumGetInt16(QueryValue(0, 1, &isnull)) == (int16) row->status &&
		TimeAt(0, 2) == row->use_end && TimeAt(0, 3) == row->locked_until &&
		TimeAt(0, 4) == row->used_at && IsNull(0, 5) == (row->order_id == NULL) &&
		(row->order_id == NULL || strcmp(RequiredText(0, 5), row->order_id) == 0) &&
		CentsAt(0, 6) == row->order_cents && CentsAt(0, 7) == row->discount;
}

/*
 * CouponRowStore writes a row back that has been locked.
 */
void
CouponRowStore(const CouponRow *row)
{
	bool		has_order = row->order_id != NULL;
	Datum		args[9] = {
		Int64GetDatum(row->user_id), Int64GetDatum(row->id),
		Int16GetDatum((int16) row->status), TimestampTzGetDatum(row->use_end),
		TimestampTzGetDatum(row->locked_until), TimestampTzGetDatum(row->used_at),
		has_order ? CStringGetTextDatum(row->order_id) : (Datum) 0,
		BillNumeric(row->order_cents), BillNumeric(row->discount)
	};
	char		nulls[10] = "         ";

	nulls[4] = row->locked_until == 0 ? 'n' : ' ';
	nulls[5] = row->used_at == 0 ? 'n' : ' ';
	nulls[6] = nulls[7] = nulls[8] = has_order ? ' ' : 'n';
	if (QueryRun(&store_row, args, nulls) != 1 || !IsStored(row))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("coupon %lld could not be changed", (long long) row->id),
				 errdetail("A trigger or rule on \"user_coupon\" has prevented it, or stored something else.")));
}

/*
 * CouponRowHide takes a coupon out of its user's list; false: it has been out of it.
 */
bool
CouponRowHide(const CouponRow *row)
{
	Datum		args[2] = {Int64GetDatum(row->user_id), Int64GetDatum(row->id)};

	return QueryRun(&hide_row, args, NULL) > 0;
}
