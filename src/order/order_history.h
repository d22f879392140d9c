/*
 * order_history.h
 *		What an order has done with coupons.
 */
#ifndef COUPON_ORDER_HISTORY_H
#define COUPON_ORDER_HISTORY_H

typedef struct OrderPast
{
	int64		coupon_id;
	char	   *last;			/* kind of the last event */
	bool		refunded;		/* once, ever */
} OrderPast;

extern void OrderTakeTurn(int64 user_id, const char *order_id);
extern int	OrderReadPast(int64 user_id, const char *order_id, OrderPast **past);
extern const OrderPast *OrderPastOf(const OrderPast *past, int n, int64 coupon_id);

#endif							/* COUPON_ORDER_HISTORY_H */
