/*
 * fire.h
 *		Firing what is due of one sale.
 */
#ifndef COUPON_FIRE_H
#define COUPON_FIRE_H

#include "datatype/timestamp.h"

/* A sale with reminders that have not fired. */
typedef struct RemindSale
{
	int64		template_id;
	TimestampTz start;
	int			farthest;		/* minutes */
	int64		shop_number;	/* 0: the platform's */
} RemindSale;

/* What a tick has done. */
typedef struct RemindCounts
{
	int64		rows;
	int64		fired;
	int64		missed;
} RemindCounts;

extern int	RemindMinutesDue(TimestampTz left);
extern int	RemindFire(const RemindSale *sale, TimestampTz now, int limit,
					   RemindCounts *counts);

#endif							/* COUPON_FIRE_H */
