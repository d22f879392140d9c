/*
 * channel_window.c
 *		What a process that delivers remembers of each channel: a copy of its
 *		row, places in flight, pace, and where and when to look into the queue.
 *
 * The copies are made anew by LaneLoadChannels, all at once.  A lane begins
 * anew with the process; its pace also when the channel is changed, since it
 * may be another receiver.
 *
 * A look into the queue goes on where the last one has stopped.  What was
 * committed out of order, or whose lease has run out, lies before that place,
 * so that from time to time a look begins at the head: it may have to pass all
 * that was delivered since some old snapshot was taken, and is made the more
 * seldom, the longer it takes.
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "bgworker/delivery/channel_window.h"

#define LEASE_SLACK 10000		/* ms of a lease past the request's timeout */
#define RESCAN_PAUSE 1000		/* ms between two looks at the queue from its head */
#define RESCAN_SHARE 10			/* ... or so many times what such a look takes */
#define OVERTAKEN 100			/* ms by which commits are out of order as a rule */
#define LONGEST_PAUSE 60000		/* ms; then the queue is looked at anyhow */
#define PORTION 2				/* that part of a window is worth a transaction */

static Lane lanes[LANE_MOST];
static int	nlanes = 0;
static MemoryContext channel_context = NULL;	/* of the copies of channels */

/*
 * LaneCount returns how many lanes there are.
 */
int
LaneCount(void)
{
	return nlanes;
}

/*
 * LaneAt returns a lane by its number, from 0.
 */
Lane *
LaneAt(int number)
{
	return &lanes[number];
}

static Lane *
LaneOf(const char *name)
{
	for (int i = 0; i < nlanes; i++)
	{
		if (strcmp(lanes[i].name, name) == 0)
			return &lanes[i];
	}
	if (nlanes == LANE_MOST)
		elog(ERROR, "too many channels");
	memset(&lanes[nlanes], 0, sizeof(Lane));
	strlcpy(lanes[nlanes].name, name, NAMEDATALEN);
	RetryPaceInit(&lanes[nlanes].pace);
	return &lanes[nlanes++];
}

static void
SetChannel(Lane *lane, const LeaseChannel *channel)
{
	lane->channel = channel;
	if (lane->version == channel->updated_at)
		return;
	/* It may be another receiver; what was learnt was of the last. */
	lane->version = channel->updated_at;
	RetryPaceInit(&lane->pace);
}

/*
 * LaneLoadChannels copies the channels for mail, or all others, in a
 * transaction, and tells whether any for mail is switched on.
 */
bool
LaneLoadChannels(bool mail)
{
	/* The transaction's, until it is known to be good. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "coupon channels",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	List	   *channels = LeaseChannels();
	bool		any_mail = false;
	ListCell   *lc;

	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, TopMemoryContext);
	if (channel_context != NULL)
		MemoryContextDelete(channel_context);
	channel_context = context;
	for (int i = 0; i < nlanes; i++)
		lanes[i].channel = NULL;
	foreach(lc, channels)
	{
		const LeaseChannel *channel = lfirst(lc);

		if (!channel->enabled)
			continue;
		any_mail |= channel->is_mail;
		if (channel->is_mail == mail)
			SetChannel(LaneOf(channel->name), channel);
	}
	return any_mail;
}

static int
Window(const Lane *lane)
{
	return (int) Min(lane->pace.window, lane->channel->max_in_flight);
}

static int
FreePlaces(const Lane *lane)
{
	return lane->channel == NULL ? 0 : Window(lane) - lane->in_flight;
}

/*
 * LaneReadyAt returns when a lane may lease pushes for its free places;
 * DT_NOEND: not before one is free.
 */
TimestampTz
LaneReadyAt(const Lane *lane)
{
	if (FreePlaces(lane) <= 0)
		return DT_NOEND;
	return Max(lane->look_at, lane->pace.not_before);
}

/*
 * LaneHasPortion tells whether the free places of a lane, at least one, are
 * worth a transaction of their own.
 */
bool
LaneHasPortion(const Lane *lane)
{
	return lane->in_flight == 0 || FreePlaces(lane) * PORTION >= Window(lane);
}

/* When to look again although nobody wakes us; "all" was looked at now. */
static void
PlanNextLook(Lane *lane, TimestampTz now, bool all)
{
	bool		any_due;
	TimestampTz again;

	lane->look_at = LeaseLookAhead(lane->name, all ? DT_NOBEGIN : now, &any_due);
	again = TimestampTzPlusMilliseconds(lane->scanned_at, lane->rescan_pause + 1);
	/* Those due that we did not get are in flight, or another's for a while. */
	if (!all || any_due)
		lane->look_at = Min(lane->look_at, Max(again, now));
	lane->look_at = Min(lane->look_at, TimestampTzPlusMilliseconds(now, LONGEST_PAUSE));
	/* What is committed out of order is found when all is looked at. */
	lane->from = Max(lane->from, TimestampTzPlusMilliseconds(now, -OVERTAKEN));
}

/*
 * LaneTake leases as many pushes as a lane has free places, in a transaction;
 * they live in the memory context given.
 */
List *
LaneTake(Lane *lane, MemoryContext context)
{
	TimestampTz now = GetCurrentTimestamp();
	int			free = FreePlaces(lane);
	bool		all = TimestampDifferenceExceeds(lane->scanned_at, now,
												 lane->rescan_pause);
	MemoryContext old;
	List	   *pushes;

	if (all)
	{
		lane->from = DT_NOBEGIN;
		lane->scanned_at = now;
	}
	old = MemoryContextSwitchTo(context);
	pushes = LeaseTake(lane->channel, free, &lane->from,
					   TimestampTzPlusMilliseconds(now, lane->channel->timeout + LEASE_SLACK));
	MemoryContextSwitchTo(old);
	if (list_length(pushes) == free)
		lane->look_at = 0;
	else
		PlanNextLook(lane, now, all);
	if (all)
		lane->rescan_pause = Max(RESCAN_PAUSE, RESCAN_SHARE *
								 TimestampDifferenceMilliseconds(now, GetCurrentTimestamp()));
	return pushes;
}
