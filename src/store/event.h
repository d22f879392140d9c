/*
 * event.h
 *		The history of what was done with coupons, coupon_event.
 */
#ifndef COUPON_EVENT_H
#define COUPON_EVENT_H

extern void EventAdd(const char *kind, int64 coupon_id, int64 user_id,
					 int64 template_id, const char *reason);

#endif							/* COUPON_EVENT_H */
