/*
 * event.h
 *		The history of what was done with coupons, coupon_event.
 */
#ifndef COUPON_EVENT_H
#define COUPON_EVENT_H

typedef struct Event
{
	const char *kind;
	int64		coupon_id;
	int64		user_id;
	int64		template_id;
	const char *order_id;		/* NULL: of no order, then without money */
	Datum		amount;			/* numeric */
	Datum		discount;		/* numeric */
	const char *reason;			/* NULL: none */
} Event;

extern void EventAdd(const Event *event);

#endif							/* COUPON_EVENT_H */
