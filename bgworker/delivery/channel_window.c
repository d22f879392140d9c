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

#include <math.h>

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
#define BURST_MS 50				/* what may begin in so long is worth a look */
#define SHARE 8					/* that part of the places each class is sure of */

static ChannelWindow windows[WINDOW_MOST];
static int	nwindows = 0;
static MemoryContext channel_context = NULL;	/* of the copies of channels */

/*
 * WindowCount returns how many windows there are.
 */
int
WindowCount(void)
{
	return nwindows;
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
	for (int i = 0; i < nwindows; i++)
	{
		if (strcmp(windows[i].name, name) == 0)
			return &windows[i];
	}
	if (nwindows == WINDOW_MOST)
		elog(ERROR, "too many channels");
	memset(&windows[nwindows], 0, sizeof(ChannelWindow));
	strlcpy(windows[nwindows].name, name, NAMEDATALEN);
	RetryPaceInit(&windows[nwindows].pace);
	return &windows[nwindows++];
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
	for (int i = 0; i < nwindows; i++)
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

static int
TakenBy(const ChannelWindow *window, OutboxClass class)
{
	return window->in_flight[class] + window->leased[class];
}

/* The places that are in use, or will be in a moment. */
static int
Taken(const ChannelWindow *window)
{
	return TakenBy(window, OUTBOX_MOMENT) + TakenBy(window, OUTBOX_BULK);
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

	for (int i = 0; i < nwindows; i++)
	{
		if (&windows[i] != window)
			rest -= Max(Taken(&windows[i]) - part, 0);
	}
	return Max(part + Max(rest, 0), 1);
}

static int
Places(const ChannelWindow *window)
{
	return (int) Min(window->pace.window, Min(window->channel->max_in_flight, MostPlaces(window)));
}

/*
 * A share of the places is kept free of announcements, so that what has a moment finds
 * one, if there are two, although all others wait for a receiver that hangs.
 */
static int
ShareOf(int places)
{
	return places > 1 ? Max(places / SHARE, 1) : 0;
}

/*
 * How many requests are worth a look, where only so many may begin in a second: a token
 * bucket (Turner, "New Directions in Communications", 1986) that holds twice as many.
 */
static double
Burst(const LeaseChannel *channel)
{
	return Max(channel->per_second * BURST_MS / 1000.0, 1);
}

/* How many requests may begin. */
static double
Allowed(const ChannelWindow *window, TimestampTz now)
{
	const LeaseChannel *channel = window->channel;

	if (channel->per_second == 0)
		return INT_MAX;
	return Min(window->allowed + channel->per_second *
			   (TimestampDifferenceMilliseconds(window->allowed_at, now) / 1000.0), 2 * Burst(channel));
}

/* When so many may. */
static TimestampTz
AllowedFrom(const ChannelWindow *window)
{
	double		missing = Burst(window->channel) - window->allowed;

	if (window->channel->per_second == 0 || missing <= 0)
		return 0;
	return TimestampTzPlusMilliseconds(window->allowed_at,
									   (int64) ceil(missing * 1000 / window->channel->per_second));
}

/* So many begin now. */
static void
Spend(ChannelWindow *window, TimestampTz now, int n)
{
	if (window->channel->per_second == 0)
		return;
	window->allowed = Allowed(window, now) - n;
	window->allowed_at = now;
}

/*
 * WindowBeganNone says that one of those that were leased does not begin a request.
 */
void
WindowBeganNone(ChannelWindow *window)
{
	if (window->channel->per_second > 0)
		window->allowed++;
}

/* The places that a class may still take. */
static int
FreePlaces(const ChannelWindow *window, OutboxClass class)
{
	int			places;

	if (window->channel == NULL)
		return 0;
	places = Places(window);
	if (class == OUTBOX_MOMENT)
		return places - Taken(window);
	return Min(places - Taken(window),
			   places - ShareOf(places) - TakenBy(window, OUTBOX_BULK));
}

/* When the first lane of a class may have something. */
static TimestampTz
ClassLookAt(const ChannelWindow *window, OutboxClass class)
{
	const LaneLook *lanes = &window->lanes[class * OUTBOX_LANES];
	TimestampTz first = DT_NOEND;

	for (int i = 0; i < OUTBOX_LANES; i++)
		first = Min(first, lanes[i].look_at);
	return first;
}

/* Until when a class has to wait; 0: not at all. */
static TimestampTz
QuietUntil(const ChannelWindow *window, OutboxClass class)
{
	return class == OUTBOX_BULK && LeaseIsQuiet(window->channel, GetCurrentTimestamp()) ?
		window->channel->quiet_until : 0;
}

/*
 * WindowLookAgain says that there may be something in any lane; from_head: also
 * where was looked before.
 */
void
WindowLookAgain(ChannelWindow *window, bool from_head)
{
	for (int i = 0; i < OUTBOX_ALL_LANES; i++)
		window->lanes[i].look_at = 0;
	if (from_head)
		window->scanned_at = 0;
	window->rests_until = 0;
}

/*
 * WindowForgetLeased says that what was leased has left, or never will.
 */
void
WindowForgetLeased(void)
{
	for (int i = 0; i < nwindows; i++)
		memset(windows[i].leased, 0, sizeof(windows[i].leased));
}

/*
 * WindowReadyAt returns when a window may lease notifications for its free places;
 * DT_NOEND: not before one is free.
 */
TimestampTz
WindowReadyAt(const ChannelWindow *window)
{
	TimestampTz ready = DT_NOEND;

	for (int class = 0; class < OUTBOX_CLASSES; class++)
	{
		if (FreePlaces(window, class) > 0)
			ready = Min(ready, Max(ClassLookAt(window, class), QuietUntil(window, class)));
	}
	if (ready == DT_NOEND)
		return ready;
	ready = Max(ready, AllowedFrom(window));
	return Max(ready, Max(window->pace.not_before, window->rests_until));
}

/*
 * WindowHasPortion tells whether the free places of a window, at least one, are
 * worth a transaction of their own.
 */
bool
WindowHasPortion(const ChannelWindow *window)
{
	int			taken = Taken(window);

	return taken == 0 || (Places(window) - taken) * PORTION >= Places(window);
}

/* When to look again although nobody wakes us, at a lane that has no more for now. */
static void
PlanNextLook(ChannelWindow *window, LaneLook *lane, TimestampTz now, bool from_head,
			 const LeaseAhead *ahead)
{
	TimestampTz again = TimestampTzPlusMilliseconds(window->scanned_at, window->rescan_pause + 1);

	lane->look_at = ahead->next_at;
	/* Those due that we did not get are in flight, or another's for a while. */
	if (!from_head || ahead->any_due)
		lane->look_at = Min(lane->look_at, Max(again, now));
	lane->look_at = Min(lane->look_at, TimestampTzPlusMilliseconds(now, LONGEST_PAUSE));
	/* What is committed out of order is found when all is looked at. */
	lane->from = Max(lane->from, TimestampTzPlusMilliseconds(now, -OVERTAKEN));
}

/* How many a class may take in this transaction, in which "allowed" may begin in all. */
static int
MayTake(const ChannelWindow *window, OutboxClass class, int allowed)
{
	if (QuietUntil(window, class) != 0)
		return 0;
	return Min(FreePlaces(window, class),
			   allowed - window->leased[OUTBOX_MOMENT] - window->leased[OUTBOX_BULK]);
}

/* Take up to "limit" of a lane; returns how many: less if it has no more for now. */
static int
TakeLane(ChannelWindow *window, Lease *lease, int number, int limit, TimestampTz now)
{
	LaneLook   *lane = &window->lanes[number];
	bool		from_head = lane->from == DT_NOBEGIN;
	LeaseAhead	ahead;
	int			n = LeaseLane(lease, number, limit, &lane->from, &ahead);

	window->leased[number / OUTBOX_LANES] += n;
	if (n < limit)
		PlanNextLook(window, lane, now, from_head && n == 0, &ahead);
	return n;
}

/*
 * Take up to "limit" of a class: the lanes that may have something take turns, each with an
 * equal part; what is left over goes to those that have more.  Where there are more lanes
 * than places, the next time begins with the lane after the last that got one.
 */
static void
TakeClass(ChannelWindow *window, Lease *lease, OutboxClass class, int limit, TimestampTz now)
{
	int			ready[OUTBOX_LANES];
	int			nready = 0;

	for (int i = 0; i < OUTBOX_LANES; i++)
	{
		int			lane = (window->turn[class] + i) % OUTBOX_LANES;

		if (window->lanes[class * OUTBOX_LANES + lane].look_at <= now)
			ready[nready++] = lane;
	}
	while (limit > 0 && nready > 0)
	{
		int			part = Max(limit / nready, 1);
		int			nmore = 0;

		for (int i = 0; i < nready && limit > 0; i++)
		{
			int			asked = Min(part, limit);
			int			n = TakeLane(window, lease, class * OUTBOX_LANES + ready[i], asked, now);

			limit -= n;
			if (n > 0)
				window->turn[class] = (ready[i] + 1) % OUTBOX_LANES;
			if (n == asked)
				ready[nmore++] = ready[i];
		}
		nready = nmore;
	}
}

/* Look at all lanes from their heads, if it is time; returns whether. */
static bool
RewindLanes(ChannelWindow *window, TimestampTz now)
{
	if (!TimestampDifferenceExceeds(window->scanned_at, now, window->rescan_pause))
		return false;
	for (int i = 0; i < OUTBOX_ALL_LANES; i++)
		window->lanes[i].from = DT_NOBEGIN;
	window->scanned_at = now;
	return true;
}

/*
 * WindowTake leases as many notifications as a window has free places, in a transaction;
 * they live in the memory context given.  First announcements up to a share, so that they
 * come through while reminders are many, then what has a moment, then more announcements.
 */
List *
WindowTake(ChannelWindow *window, MemoryContext context)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		rewound = RewindLanes(window, now);
	int			allowed = (int) Allowed(window, now);
	MemoryContext old = MemoryContextSwitchTo(context);
	Lease		lease;
	List	   *notifications;

	LeaseBegin(&lease, window->channel,
			   TimestampTzPlusMilliseconds(now, window->channel->timeout + LEASE_SLACK));
	TakeClass(window, &lease, OUTBOX_BULK,
			  Min(Places(window) / SHARE - TakenBy(window, OUTBOX_BULK),
				  MayTake(window, OUTBOX_BULK, window->channel->per_second > 0 ? allowed / SHARE : allowed)), now);
	TakeClass(window, &lease, OUTBOX_MOMENT, MayTake(window, OUTBOX_MOMENT, allowed), now);
	TakeClass(window, &lease, OUTBOX_BULK, MayTake(window, OUTBOX_BULK, allowed), now);
	notifications = LeaseEnd(&lease);
	Spend(window, now, window->leased[OUTBOX_MOMENT] + window->leased[OUTBOX_BULK]);
	MemoryContextSwitchTo(old);
	if (rewound)
		window->rescan_pause = Max(RESCAN_PAUSE, RESCAN_SHARE *
								   TimestampDifferenceMilliseconds(now, GetCurrentTimestamp()));
	return notifications;
}
