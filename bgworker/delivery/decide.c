/*
 * decide.c
 *		What becomes of a notification that is leased, as far as it is known before
 *		it is sent: it can never be, comes too late, is not wanted, or has to wait.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgworker/delivery/decide.h"

#define LOOK_AGAIN 5000			/* ms until its template is looked for again, at least */
#define LOOK_AGAIN_MOST (10 * 60 * 1000)
#define LONGEST_WAIT (24 * 60 * 60 * 1000)	/* ms for that, all together */

static bool
IsReminder(const RenderEvent *event)
{
	return strcmp(event->kind, "reminder") == 0;
}

/*
 * A reminder is of no use when the sale has begun.  A template that is not there may yet
 * come, with the rest of a restore, or has been deleted.
 */
static bool
IsTooLate(const LeasedNotification *leased, TimestampTz now)
{
	const RenderEvent *event = leased->notification.event;

	if (event->template_id != 0 && !event->template_found)
		return TimestampDifferenceExceeds(leased->due_at, now, LONGEST_WAIT);
	return IsReminder(event) &&
		(event->template_id == 0 || (event->has_start && event->start <= now));
}

/*
 * A reminder whose sale was put off since, or is not published, is given back: it fires
 * again when it is time.
 */
static bool
IsForLater(const RenderEvent *event, TimestampTz now)
{
	return IsReminder(event) && event->template_found &&
		(!event->published || TIMESTAMP_IS_NOEND(event->start) ||
		 event->start - now > (event->minutes + 1) * USECS_PER_MINUTE);
}

/* When a template that is not there is looked for again: the longer it took, the later. */
static TimestampTz
LookAgainAt(const LeasedNotification *leased, TimestampTz now)
{
	long		waited = TimestampDifferenceMilliseconds(leased->due_at, now);

	return TimestampTzPlusMilliseconds(now, Min(Max(waited / 4, LOOK_AGAIN), LOOK_AGAIN_MOST));
}

/*
 * What becomes of a reminder for later that was tried: the receiver may have it, and would
 * not know it again under another id.  So it waits where it is.
 */
static void
WaitForStart(const LeasedNotification *leased, LeaseAnswer *answer)
{
	const RenderEvent *event = leased->notification.event;

	answer->verdict = LEASE_RETRY;
	answer->untried = true;
	answer->next_at = LookAgainAt(leased, answer->sent_at);
	if (event->published && !TIMESTAMP_IS_NOEND(event->start))
		answer->next_at = event->start - event->minutes * USECS_PER_MINUTE;
	else if (TimestampDifferenceExceeds(leased->due_at, answer->sent_at, LONGEST_WAIT))
		answer->verdict = LEASE_MISSED;
}

/*
 * DecideMailboxes returns whom a mail goes to, up to a NULL: more than one where it was cut
 * for a channel of another kind.  A user id is an address for gateways only.
 */
const char **
DecideMailboxes(const RenderNotification *notification)
{
	const char **list = palloc((notification->nrecipients + 1) * sizeof(char *));
	int			n = 0;

	for (int i = 0; i < notification->nrecipients; i++)
	{
		const char *address = notification->recipients[i].address;

		if (address != NULL && RenderIsMailAddress(address))
			list[n++] = address;
	}
	list[n] = NULL;
	return list;
}

/* Why it can never be sent, NULL if it can. */
static const char *
WhatIsBroken(const LeasedNotification *leased, const LeaseChannel *channel)
{
	if (leased->broken == NULL && channel->is_mail && DecideMailboxes(&leased->notification)[0] == NULL)
		return "the user has no mail address: see coupon_contact_set";
	return leased->broken;
}

/*
 * DecideUnsent tells whether a notification is not to be sent now; the answer, which has the
 * time, says what becomes of it then.
 */
bool
DecideUnsent(const LeasedNotification *leased, const LeaseChannel *channel, LeaseAnswer *answer)
{
	const RenderEvent *event = leased->notification.event;
	TimestampTz now = answer->sent_at;
	const char *reason = WhatIsBroken(leased, channel);

	if (reason != NULL)
		answer->verdict = LEASE_DEAD;
	else if (leased->muted)
		answer->verdict = LEASE_MUTED;
	else if (IsTooLate(leased, now))
		answer->verdict = LEASE_MISSED;
	else if (IsForLater(event, now) && leased->tries == 1)
		answer->verdict = LEASE_GIVE_BACK;
	else if (IsForLater(event, now))
		WaitForStart(leased, answer);
	else if (IsReminder(event) && LeaseIsQuiet(channel, now))
	{
		reason = "the channel is quiet at this time";
		answer->verdict = LEASE_MISSED;
	}
	else if (event->template_id != 0 && !event->template_found)
	{
		reason = "its template is not there";
		answer->verdict = LEASE_RETRY;
		answer->untried = true;
		answer->next_at = LookAgainAt(leased, now);
	}
	else
		return false;
	answer->sent_at = DT_NOBEGIN;
	if (reason != NULL)
		strlcpy(answer->error, reason, sizeof(answer->error));
	return true;
}
