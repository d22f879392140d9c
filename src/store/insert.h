/*
 * insert.h
 *		Put the rows of claimed coupons into user_coupon.
 */
#ifndef COUPON_INSERT_H
#define COUPON_INSERT_H

#include "datatype/timestamp.h"

/* What the coupons of one call have in common. */
typedef struct InsertCommon
{
	int64		template_id;
	const char *source;
	const char *request_id;		/* NULL: none */
	TimestampTz received_at;
	TimestampTz use_start;
	TimestampTz use_end;
} InsertCommon;

/* One coupon. */
typedef struct InsertRow
{
	int64		coupon_id;
	int64		user_id;
	int32		receive_seq;
	int			leaf;			/* its partition: InsertBatch is told, InsertCoupons finds it */
	bool		inserted;		/* false: it met a conflict */
} InsertRow;

extern int	InsertCoupons(const InsertCommon *common, InsertRow *rows, int nrows);
extern bool InsertWasRefused(const ErrorData *error);
extern bool InsertLockBatch(void);
extern int	InsertBatch(const InsertCommon *common, InsertRow *rows, int nrows,
						bool direct);
extern bool InsertIsRunning(void);
extern bool InsertIsOurs(int64 template_id, int64 user_id, int64 coupon_id);

#endif							/* COUPON_INSERT_H */
