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

/* A window never moves and never goes away. */
typedef struct ChannelWindow
{
	char		name[NAMEDATALEN];
	const LeaseChannel *channel;	/* NULL: not set up, off, or not for us */
	TimestampTz version;		/* of the channel's row that the pace is for */
	RetryPace	pace;
	int			in_flight;		/* counted by the caller */
	int			leased;			/* in this turn, and about to leave */
	TimestampTz from;			/* earlier notifications were looked for before */
	TimestampTz scanned_at;		/* when that was from the beginning */
	int			rescan_pause;	/* ms until that is to be done again */
	TimestampTz look_at;		/* when the queue may have something for us */
} ChannelWindow;

extern int	WindowCount(void);
extern ChannelWindow *WindowAt(int number);
extern bool WindowLoadChannels(bool mail);
extern void WindowForgetLeased(void);
extern TimestampTz WindowReadyAt(const ChannelWindow *window);
extern bool WindowHasPortion(const ChannelWindow *window);
extern List *WindowTake(ChannelWindow *window, MemoryContext context);

#endif							/* COUPON_CHANNEL_WINDOW_H */
