/*
 * bill.h
 *		The amount and the lines of an order, as callers give them.
 */
#ifndef COUPON_BILL_H
#define COUPON_BILL_H

#include "fmgr.h"

/* Money is counted in cents: numeric(16,2) fits. */
#define CENTS_MAX INT64CONST(9999999999999999)

typedef struct BillLine
{
	char	   *goods_id;		/* NULL: none was given */
	bool		has_shop;
	int64		shop_number;
	int64		cents;
} BillLine;

typedef struct Bill
{
	int64		cents;			/* of all, above 0 */
	bool		has_shop;
	int64		shop_number;
	bool		has_lines;
	BillLine   *lines;			/* by goods id; those without one at the end */
	int			nlines;
} Bill;

extern int64 BillCents(Datum amount, const char *name);
extern int64 BillCentsOfRow(Datum amount);
extern Datum BillNumeric(int64 cents);
extern void BillRead(FunctionCallInfo fcinfo, int amount, int shop, int items, Bill *bill);

#endif							/* COUPON_BILL_H */
