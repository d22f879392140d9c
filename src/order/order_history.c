/*
 * order_history.c
 *		What an order has done with coupons, from coupon_event.
 *
 * The rows of coupons do not tell it: by now one may be another order's.  Calls for one user
 * and order take turns to the end of their transactions, so that the history that one of
 * them reads, with the latest snapshot, is whole.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "base/locks.h"
#include "base/owner_query.h"
#include "order/order_history.h"

static OwnerQuery past_of_order = {
	"SELECT e.user_coupon_id, (pg_catalog.array_agg(e.kind ORDER BY e.id DESC))[1],"
	" pg_catalog.bool_or(e.kind OPERATOR(pg_catalog.=) 'refund'::pg_catalog.text)"
	" FROM %1$s.coupon_event AS e WHERE e.order_id OPERATOR(pg_catalog.=) $2"
	" AND e.user_id OPERATOR(pg_catalog.=) $1 GROUP BY e.user_coupon_id ORDER BY e.user_coupon_id",
	2, {INT8OID, TEXTOID}
};

/*
 * OrderTakeTurn waits for other transactions that have called a verb for the same user and
 * order, and keeps later ones out to the end of this one.
 */
void
OrderTakeTurn(int64 user_id, const char *order_id)
{
	LOCKTAG		tag;

	LockTagOfOrder(&tag, user_id, order_id);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/*
 * OrderReadPast reads of each coupon that an order ever had to do with what it did last, in
 * the order of ids; returns how many there are.
 */
int
OrderReadPast(int64 user_id, const char *order_id, OrderPast **past)
{
	Datum		args[2] = {Int64GetDatum(user_id), CStringGetTextDatum(order_id)};
	int			n = (int) QueryRunLatest(&past_of_order, args, NULL);

	*past = palloc(Max(n, 1) * sizeof(OrderPast));
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		(*past)[i].coupon_id = DatumGetInt64(QueryValue(i, 1, &isnull));
		(*past)[i].last = TextDatumGetCString(QueryRequired(i, 2, TEXTOID));
		(*past)[i].refunded = DatumGetBool(QueryValue(i, 3, &isnull));
	}
	return n;
}

/*
 * OrderPastOf returns what there is of a coupon; NULL: nothing.
 */
const OrderPast *
OrderPastOf(const OrderPast *past, int n, int64 coupon_id)
{
	for (int i = 0; i < n; i++)
	{
		if (past[i].coupon_id == coupon_id)
			return &past[i];
	}
	return NULL;
}
