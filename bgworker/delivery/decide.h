/*
 * decide.h
 *		What becomes of a notification, as far as it is known before it is sent.
 */
#ifndef COUPON_DECIDE_H
#define COUPON_DECIDE_H

#include "notification/lease.h"

extern const char **DecideMailboxes(const RenderNotification *notification);
extern bool DecideUnsent(const LeasedNotification *leased, const LeaseChannel *channel,
						 LeaseAnswer *answer);

#endif							/* COUPON_DECIDE_H */
