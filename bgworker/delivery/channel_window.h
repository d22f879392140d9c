/*
 * channel_window.h
 *		What a process that delivers remembers of each channel.
 */
#ifndef COUPON_CHANNEL_WINDOW_H
#define COUPON_CHANNEL_WINDOW_H

#include "notification/lease.h"
#include "nodes/pg_list.h"
#include "bgworker/delivery/retry.h"

#define LANE_MOST 8				/* there are five channels */

/* A lane never moves and never goes away. */
typedef struct Lane
{
	char		name[NAMEDATALEN];
	const LeaseChannel *channel;	/* NULL: not set up, off, or not for us */
	TimestampTz version;		/* of the channel's row that the pace is for */
	RetryPace	pace;
	int			in_flight;		/* counted by the caller */
	TimestampTz from;			/* earlier pushes were looked for before */
	TimestampTz scanned_at;		/* when that was from the beginning */
	int			rescan_pause;	/* ms until that is to be done again */
	TimestampTz look_at;		/* when the queue may have something for us */
} Lane;

extern int	LaneCount(void);
extern Lane *LaneAt(int number);
extern bool LaneLoadChannels(bool mail);
extern TimestampTz LaneReadyAt(const Lane *lane);
extern bool LaneHasPortion(const Lane *lane);
extern List *LaneTake(Lane *lane, MemoryContext context);

#endif							/* COUPON_CHANNEL_WINDOW_H */
