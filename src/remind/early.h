/*
 * early.h
 *		Reminders that fire before the quiet hours of their channel.
 */
#ifndef COUPON_EARLY_H
#define COUPON_EARLY_H

#include "remind/fire.h"

extern bool RemindEarly(TimestampTz now, RemindCounts *counts);

#endif							/* COUPON_EARLY_H */
