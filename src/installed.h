/*
 * installed.h
 *		Whether the CHECKs of our tables are those that they were installed with.
 */
#ifndef COUPON_INSTALLED_H
#define COUPON_INSTALLED_H

#include "utils/relcache.h"

/* Columns of user_coupon as it is installed, from 1. */
typedef enum CouponColumn
{
	COUPON_ID = 1,
	COUPON_USER_ID,
	COUPON_TEMPLATE_ID,
	COUPON_RECEIVED_AT,
	COUPON_USE_START,
	COUPON_USE_END,
	COUPON_RECEIVE_SEQ,
	COUPON_HOLDER,
	COUPON_STATUS,
	COUPON_SOURCE,
	COUPON_ORDER_ID,
	COUPON_LOCKED_UNTIL,
	COUPON_USED_AT,
	COUPON_DISCOUNT,
	COUPON_REQUEST_ID
} CouponColumn;

#define COUPON_COLUMNS COUPON_REQUEST_ID

extern bool InstalledColumnsOnly(TupleDesc desc);
extern void InstalledFindColumns(Relation rel, AttrNumber *column);
extern bool InstalledChecksOnly(Relation rel, const char *table);

#endif							/* COUPON_INSTALLED_H */
