/*
 * discount.h
 *		What a template takes off an order.
 */
#ifndef COUPON_DISCOUNT_H
#define COUPON_DISCOUNT_H

#include "base/outcome.h"
#include "order/bill.h"

/* Of a template; money in cents, per cent in hundredths. */
typedef struct DiscountRule
{
	bool		percent;
	int64		value;
	int64		threshold;		/* 0: none */
	int64		most;			/* 0: no bound */
	bool		has_shop;		/* else it is the platform's */
	int64		shop_number;
	bool		has_goods;		/* else it is for all */
	Datum		goods_ids;		/* text[], perhaps toasted */
} DiscountRule;

typedef struct Discount
{
	OutcomeCode code;			/* OUTCOME_OK, or why it takes nothing off */
	int64		cents;
	int64		short_by;		/* cents that are missing to the threshold */
} Discount;

extern Discount DiscountOf(const DiscountRule *rule, const Bill *bill);

#endif							/* COUPON_DISCOUNT_H */
