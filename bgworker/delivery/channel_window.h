/*
 * channel_window.h
 *		What a process that delivers remembers of each channel.
 */
#ifndef COUPON_CHANNEL_WINDOW_H
#define COUPON_CHANNEL_WINDOW_H

#include "nodes/pg_list.h"

#include "bgworker/delivery/retry.h"
#include "notification/lease.h"

#define WINDOW_MOST 8				/* there are five channels */

/* Where and when to look into a lane of the queue. */
typedef struct LaneLook
{
	TimestampTz from;			/* earlier notifications were looked for before */
	TimestampTz look_at;		/* when there may be something for us */
} LaneLook;

/* A window never moves and never goes away. */
typedef struct ChannelWindow
{
	char		name[NAMEDATALEN];
	const LeaseChannel *channel;	/* NULL: not set up, off, or not for us */
	TimestampTz version;		/* of the channel's row that the pace is for */
	RetryPace	pace;
	double		allowed;		/* requests that may begin, as of ... */
	TimestampTz allowed_at;
	int			in_flight[OUTBOX_CLASSES];	/* counted by the caller */
	int			leased[OUTBOX_CLASSES]; /* in this turn, and about to leave */
	LaneLook	lanes[OUTBOX_ALL_LANES];
	int			turn[OUTBOX_CLASSES];	/* the lane that comes first next time, from 0 */
	TimestampTz scanned_at;		/* when all lanes were last looked at from their heads */
	int			rescan_pause;	/* ms until that is to be done again */
	TimestampTz rests_until;	/* an error has met it alone */
} ChannelWindow;

extern int	WindowCount(void);
extern ChannelWindow *WindowAt(int number);
extern bool WindowLoadChannels(bool mail);
extern void WindowForgetLeased(void);
extern void WindowBeganNone(ChannelWindow *window);
extern void WindowLookAgain(ChannelWindow *window, bool from_head);
extern TimestampTz WindowReadyAt(const ChannelWindow *window);
extern bool WindowHasPortion(const ChannelWindow *window);
extern List *WindowTake(ChannelWindow *window, MemoryContext context);

#endif							/* COUPON_CHANNEL_WINDOW_H */
