/*
 * channel_window.c
 *		What a process that delivers remembers of each channel: a copy of its
 *		row, places in flight, pace, and where and when to look into the queue.
 *
 * The copies are made anew by WindowLoadChannels, all at once.  A window begins
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

#include "base/channel_names.h"
#include "bgworker/curl/transfer.h"
#include "bgworker/delivery/channel_window.h"

#define LEASE_SLACK 10000		/* ms of a lease past the request's timeout */
#define RESCAN_PAUSE 1000		/* ms between two looks at the queue from its head */
#define RESCAN_SHARE 10			/* ... or so many times what such a look takes */
#define OVERTAKEN 100			/* ms by which commits are out of order as a rule */
#define LONGEST_PAUSE 60000		/* ms; then the queue is looked at anyhow */
#define PORTION 2				/* that part of a window is worth a transaction */

static ChannelWindow windows[WINDOW_MOST];
static int	nlanes = 0;
static MemoryContext channel_context = NULL;	/* of the copies of channels */

/*
 * WindowCount returns how many windows there are.
 */
int
WindowCount(void)
{
	return nlanes;
}

/*
 * WindowAt returns a window by its number, from 0.
 */
ChannelWindow *
WindowAt(int number)
{
	return &windows[number];
}

static ChannelWindow *
WindowOf(const char *name)
{
	for (int i = 0; i < nlanes; i++)
	{
		if (strcmp(windows[i].name, name) == 0)
			return &windows[i];
	}
	if (nlanes == WINDOW_MOST)
		elog(ERROR, "too many channels");
	memset(&windows[nlanes], 0, sizeof(ChannelWindow));
	strlcpy(windows[nlanes].name, name, NAMEDATALEN);
	RetryPaceInit(&windows[nlanes].pace);
	return &windows[nlanes++];
}

static void
SetChannel(ChannelWindow *window, const LeaseChannel *channel)
{
	window->channel = channel;
	if (window->version == channel->updated_at)
		return;
	/* It may be another receiver; what was learnt was of the last. */
	window->version = channel->updated_at;
	RetryPaceInit(&window->pace);
}

/*
 * WindowLoadChannels copies the channels for mail, or all others, in a
 * transaction, and tells whether any for mail is switched on.
 */
bool
WindowLoadChannels(bool mail)
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
		windows[i].channel = NULL;
	foreach(lc, channels)
	{
		const LeaseChannel *channel = lfirst(lc);

		if (!channel->enabled)
			continue;
		any_mail |= channel->is_mail;
		if (channel->is_mail == mail)
			SetChannel(WindowOf(channel->name), channel);
	}
	return any_mail;
}

/*
 * Half of the connections belongs to the channels in equal parts, switched on or not:
 * what hangs leaves theirs to all others.  The rest is for who comes first.
 */
static int
MostPlaces(const ChannelWindow *window)
{
	int			part = TransferMost() / (2 * CHANNELS);
	int			rest = TransferMost() - part * CHANNELS;

	for (int i = 0; i < nlanes; i++)
	{
		if (&windows[i] != window)
			rest -= Max(windows[i].in_flight + windows[i].leased - part, 0);
	}
	return Max(part + Max(rest, 0), 1);
}

static int
Places(const ChannelWindow *window)
{
	return (int) Min(window->pace.window, Min(window->channel->max_in_flight, MostPlaces(window)));
}

static int
FreePlaces(const ChannelWindow *window)
{
	return window->channel == NULL ? 0 : Places(window) - window->in_flight;
}

/*
 * WindowForgetLeased says that what was leased has left, or never will.
 */
void
WindowForgetLeased(void)
{
	for (int i = 0; i < nlanes; i++)
		windows[i].leased = 0;
}

/*
 * WindowReadyAt returns when a window may lease notifications for its free places;
 * DT_NOEND: not before one is free.
 */
TimestampTz
WindowReadyAt(const ChannelWindow *window)
{
	if (FreePlaces(window) <= 0)
		return DT_NOEND;
	return Max(window->look_at, window->pace.not_before);
}

/*
 * WindowHasPortion tells whether the free places of a window, at least one, are
 * worth a transaction of their own.
 */
bool
WindowHasPortion(const ChannelWindow *window)
{
	return window->in_flight == 0 || FreePlaces(window) * PORTION >= Places(window);
}

/* When to look again although nobody wakes us; "all" was looked at now. */
static void
PlanNextLook(ChannelWindow *window, TimestampTz now, bool all)
{
	bool		any_due;
	TimestampTz again;

	window->look_at = LeaseLookAhead(window->name, all ? DT_NOBEGIN : now, &any_due);
	again = TimestampTzPlusMilliseconds(window->scanned_at, window->rescan_pause + 1);
	/* Those due that we did not get are in flight, or another's for a while. */
	if (!all || any_due)
		window->look_at = Min(window->look_at, Max(again, now));
	window->look_at = Min(window->look_at, TimestampTzPlusMilliseconds(now, LONGEST_PAUSE));
	/* What is committed out of order is found when all is looked at. */
	window->from = Max(window->from, TimestampTzPlusMilliseconds(now, -OVERTAKEN));
}

/*
 * WindowTake leases as many notifications as a window has free places, in a transaction;
 * they live in the memory context given.
 */
List *
WindowTake(ChannelWindow *window, MemoryContext context)
{
	TimestampTz now = GetCurrentTimestamp();
	int			free = FreePlaces(window);
	bool		all = TimestampDifferenceExceeds(window->scanned_at, now,
												 window->rescan_pause);
	MemoryContext old;
	List	   *notifications;

	if (all)
	{
		window->from = DT_NOBEGIN;
		window->scanned_at = now;
	}
	old = MemoryContextSwitchTo(context);
	notifications = LeaseTake(window->channel, free, &window->from,
					   TimestampTzPlusMilliseconds(now, window->channel->timeout + LEASE_SLACK));
	MemoryContextSwitchTo(old);
	window->leased = list_length(notifications);
	if (window->leased == free)
		window->look_at = 0;
	else
		PlanNextLook(window, now, all);
	if (all)
		window->rescan_pause = Max(RESCAN_PAUSE, RESCAN_SHARE *
								 TimestampDifferenceMilliseconds(now, GetCurrentTimestamp()));
	return notifications;
}
