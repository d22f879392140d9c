/*
 * early.h
 *		Reminders that fire before the quiet hours of their channel.
 */
#ifndef COUPON_EARLY_H
#define COUPON_EARLY_H

#include "base/channel_names.h"
#include "remind/fire.h"

/* Quiet hours of channels before which reminders are sent, in the minutes before they begin. */
typedef struct QuietSoon
{
	struct QuietHours
	{
		int			channel;
		TimestampTz begins;
		TimestampTz ends;
	}			of[CHANNELS];
	int			n;
} QuietSoon;

extern void RemindQuietSoon(TimestampTz now, QuietSoon *soon);
extern RemindBitmap RemindQuietBits(const QuietSoon *soon, TimestampTz start);
extern bool RemindHasGoneEarly(int channel, TimestampTz moment, TimestampTz now);
extern TimestampTz RemindEarly(TimestampTz now, const QuietSoon *soon, RemindCounts *counts);

#endif							/* COUPON_EARLY_H */
