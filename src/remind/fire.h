/*
 * fire.h
 *		Firing what is due of one sale.
 */
#ifndef COUPON_FIRE_H
#define COUPON_FIRE_H

#include "datatype/timestamp.h"

#include "remind/due.h"
#include "remind/remind.h"

/* A sale with reminders that have not fired. */
typedef struct RemindSale
{
	int64		template_id;
	TimestampTz start;
	int			farthest;		/* minutes */
	int64		shop_number;	/* 0: the platform's */
	RemindBitmap early;			/* these fire as well, before their moments */
	bool		goes_on;		/* a look begins where the last one ended: */
	RemindPosition position;
	bool		held;			/* set where rows were passed over that others hold */
} RemindSale;

/* What a tick has done. */
typedef struct RemindCounts
{
	int64		rows;
	int64		fired;
	int64		missed;
	TimestampTz until;			/* not longer than this, but for one row */
	bool		cut;			/* some that are due were left for the next time */
} RemindCounts;

extern int	RemindMinutesDue(TimestampTz left);
extern int	RemindFire(RemindSale *sale, TimestampTz now, int limit, RemindCounts *counts);

#endif							/* COUPON_FIRE_H */
