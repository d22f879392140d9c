/*
 * coupon_row.h
 *		Rows of user_coupon as an order meets them.
 */
#ifndef COUPON_COUPON_ROW_H
#define COUPON_COUPON_ROW_H

#include "datatype/timestamp.h"

#include "order/discount.h"

/* As stored. */
typedef enum CouponStatus
{
	COUPON_UNUSED = 0,
	COUPON_LOCKED = 1,
	COUPON_USED = 2,
	COUPON_EXPIRED = 3,
	COUPON_REVOKED = 4
} CouponStatus;

typedef struct CouponRow
{
	int64		id;
	int64		user_id;
	int64		template_id;
	CouponStatus status;
	TimestampTz use_start;
	TimestampTz use_end;
	TimestampTz locked_until;	/* 0: null */
	TimestampTz used_at;		/* 0: null */
	char	   *order_id;		/* NULL: none */
	bool		has_money;		/* an imported coupon may lack the following two */
	int64		order_cents;
	int64		discount;		/* cents */
	bool		visible;		/* to the caller; else it only counts */
	bool		has_template;	/* else the following is nothing */
	DiscountRule rule;
	char	   *refund_policy;
	char	   *name;			/* of the template */
} CouponRow;

/* What a coupon is to an order, now. */
typedef enum CouponStanding
{
	COUPON_FREE,
	COUPON_LEASED_TO_IT,		/* perhaps one that has run out and that nobody else has taken */
	COUPON_USED_BY_IT,
	COUPON_NOT_FOR_IT
} CouponStanding;

/* Arguments of statements: which shops the caller may see. */
typedef struct VisibleShops
{
	Datum		shops;
	char		null;			/* 'n': all */
} VisibleShops;

extern int	CouponRowsLock(int64 user_id, const char *order_id, const int64 *ids, int n,
						   const VisibleShops *visible, CouponRow **rows);
extern int	CouponRowsOfWallet(int64 user_id, TimestampTz ends_after, const VisibleShops *visible,
							   CouponRow **rows);
extern CouponStanding CouponRowStanding(const CouponRow *row, const char *order_id,
										TimestampTz now, OutcomeCode *code);
extern void CouponRowStore(const CouponRow *row);
extern bool CouponRowHide(const CouponRow *row);

#endif							/* COUPON_COUPON_ROW_H */
