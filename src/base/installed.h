/*
 * installed.h
 *		Whether our tables are as the install script made them.
 */
#ifndef COUPON_INSTALLED_H
#define COUPON_INSTALLED_H

#include "utils/relcache.h"

/* A column that our code reads or writes. */
typedef struct InstalledColumn
{
	const char *name;
	Oid			type;			/* InvalidOid: remind_bitmap */
} InstalledColumn;

/* Whose stock a coupon came from (coupon_stock.holder), as far as C code knows them. */
#define HOLDER_DATABASE 0
#define HOLDER_IMPORTED 3		/* from another system, counted by coupon_stock_adopt */

/* Columns of user_coupon, from 1. */
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
	COUPON_ORDER_AMOUNT,
	COUPON_LOCKED_UNTIL,
	COUPON_USED_AT,
	COUPON_DISCOUNT,
	COUPON_HIDDEN,
	COUPON_REQUEST_ID
} CouponColumn;

#define COUPON_COLUMNS COUPON_REQUEST_ID

extern void InstalledFindColumns(Relation rel, const InstalledColumn *columns, int ncolumns,
								 AttrNumber *found);
extern void InstalledFindCoupon(Relation rel, AttrNumber *found);
extern bool InstalledIsCoupon(Relation rel, Oid sane);
extern void InstalledRefuse(const char *table, const char *column, const char *rule);

#endif							/* COUPON_INSTALLED_H */
