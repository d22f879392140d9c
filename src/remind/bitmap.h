/*
 * bitmap.h
 *		Sets of reminders of one user and template: one bit for each channel
 *		and five minutes before the start.
 *
 *		 63 .. 60 | 59 .. 48 | 47 .. 36 | 35 .. 24 | 23 .. 12 | 11 ........... 0
 *		  0  0  0 |   ch4    |   ch3    |   app    |  email   | sms
 *		                                                       60 min … 10, 5 min
 *
 * Bit = channel × 12 + minutes / 5 − 1.  What is here is arithmetic that any
 * room may use; bits 60 to 63 are 0 in every value that it is given or makes.
 */
#ifndef COUPON_BITMAP_H
#define COUPON_BITMAP_H

#include "fmgr.h"
#include "port/pg_bitutils.h"

#include "base/channel_names.h"

#define REMIND_CHANNELS CHANNELS
#define REMIND_SLOTS 12			/* of a channel */
#define REMIND_STEP_MINUTES 5
#define REMIND_MAX_MINUTES (REMIND_SLOTS * REMIND_STEP_MINUTES)

typedef uint64 RemindBitmap;

#define REMIND_ALL ((UINT64CONST(1) << (REMIND_CHANNELS * REMIND_SLOTS)) - 1)

/* The five minutes' bit of every channel; shift it left for another slot. */
#define REMIND_EACH_CHANNEL UINT64CONST(0x0001001001001001)

#define DatumGetRemindBitmap(datum) ((RemindBitmap) DatumGetUInt64(datum))
#define RemindBitmapGetDatum(bitmap) UInt64GetDatum(bitmap)
#define PG_GETARG_REMIND_BITMAP(n) DatumGetRemindBitmap(PG_GETARG_DATUM(n))
#define PG_RETURN_REMIND_BITMAP(bitmap) return RemindBitmapGetDatum(bitmap)

extern void RemindCheckMinutes(int minutes);

/*
 * RemindIsMinutes tells whether there is a slot so many minutes before.
 */
static inline bool
RemindIsMinutes(int minutes)
{
	return minutes >= REMIND_STEP_MINUTES && minutes <= REMIND_MAX_MINUTES &&
		minutes % REMIND_STEP_MINUTES == 0;
}

/*
 * RemindBit returns the bitmap of one reminder.
 */
static inline RemindBitmap
RemindBit(int channel, int minutes)
{
	Assert(channel >= 0 && channel < REMIND_CHANNELS);
	Assert(RemindIsMinutes(minutes));
	return UINT64CONST(1) << (channel * REMIND_SLOTS +
							  minutes / REMIND_STEP_MINUTES - 1);
}

/*
 * RemindFrom returns all bits that are at least so many minutes before the
 * start, any number of minutes.
 */
static inline RemindBitmap
RemindFrom(int minutes)
{
	int			slot;

	if (minutes <= REMIND_STEP_MINUTES)
		return REMIND_ALL;
	if (minutes > REMIND_MAX_MINUTES)
		return 0;
	slot = (minutes - 1) / REMIND_STEP_MINUTES;
	return REMIND_EACH_CHANNEL *
		(((1 << REMIND_SLOTS) - 1) & ~((1 << slot) - 1));
}

/*
 * RemindFarthest returns how many minutes before the start the first reminder
 * fires, 0 if there is none.
 */
static inline int
RemindFarthest(RemindBitmap bitmap)
{
	uint32		slots = (uint32) (bitmap | bitmap >> REMIND_SLOTS |
								  bitmap >> (2 * REMIND_SLOTS) |
								  bitmap >> (3 * REMIND_SLOTS) |
								  bitmap >> (4 * REMIND_SLOTS));

	slots &= (1 << REMIND_SLOTS) - 1;
	return slots == 0 ? 0 :
		(pg_leftmost_one_pos32(slots) + 1) * REMIND_STEP_MINUTES;
}

/*
 * RemindTakeFirst takes the reminder that fires first out of the bitmap:
 * farthest first, then by channel.  Returns false if there is none.
 */
static inline bool
RemindTakeFirst(RemindBitmap *bitmap, int *channel, int *minutes)
{
	int			slot;

	*minutes = RemindFarthest(*bitmap);
	if (*minutes == 0)
		return false;
	slot = *minutes / REMIND_STEP_MINUTES - 1;
	*channel = pg_rightmost_one_pos64(*bitmap & (REMIND_EACH_CHANNEL << slot)) /
		REMIND_SLOTS;
	*bitmap &= ~RemindBit(*channel, *minutes);
	return true;
}

#endif							/* COUPON_BITMAP_H */
