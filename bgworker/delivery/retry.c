/*
 * retry.c
 *		What an answer means: over, once more, or slower.
 *
 * One notification: only a 2xx is success, as Standard Webhooks has it; for mail, the
 * acceptance of the whole message.  Everything else is tried again, after 1,
 * 2, 4 … seconds, an hour at most, each from half of it to one and a half so
 * that a thousand failures do not come back at once; longer if the receiver
 * says so in Retry-After.  It ends after coupon.max_attempts, or when a mail
 * server refuses for good (5yz, RFC 5321 4.2.1).
 *
 * The receiver as a whole: an answer that means "too much" (429, 502, 503,
 * 504) and none at all halve the number of requests in flight, a success
 * raises it by one (so it doubles in the time of an answer).  What was on its
 * way when such a failure came says nothing new: a moment's outage is one
 * failure, however many it met.  After several such failures in a row one
 * request at a time is tried, less and less often: a queue is not to spend its
 * attempts on a receiver that is down.  A refusal of one notification (400, say)
 * says nothing about the others.
 *
 * The recipient: a gateway may mean a single address by 410 or 429.  A channel names the
 * statuses that it uses so.  They never concern the channel: whoever has recipients that
 * do not exist would stop all others.  Only when many have got one in a row, it may be the
 * gateway, and nobody is given up for it.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "base/guc.h"
#include "bgworker/delivery/retry.h"

#define FIRST_DELAY 1000		/* ms */
#define GONE_DELAY 1000			/* ms, until its channel is switched off */
#define LONGEST_DELAY (60 * 60 * 1000)
#define LONGEST_ASKED (24 * 60 * 60 * 1000)
#define PATIENCE 8				/* failures in a row before pauses */
#define MANY 8					/* recipients refused in a row: it may be the gateway */
#define FIRST_PAUSE 500
#define LONGEST_PAUSE (60 * 1000)

/* first, twice that, four times, … with n from 0; a row edited by hand may bring less */
static double
Doubled(int first, int n, int most)
{
	return Min(first * (double) (INT64CONST(1) << Max(Min(n, 30), 0)), most);
}

static TimestampTz
After(double ms)
{
	return GetCurrentTimestamp() + (int64) (ms * 1000);
}

static bool
IsSuccess(const TransferResult *result, bool is_mail)
{
	return result->status / 100 == 2 && !(is_mail && result->error[0] != '\0');
}

/* The receiver cannot cope, or cannot be reached. */
static bool
IsOverload(const TransferResult *result, bool is_mail)
{
	if (is_mail)
		return result->status == 0 || result->status == 421;
	return result->status == 0 || result->status == 429 ||
		(result->status >= 502 && result->status <= 504);
}

/*
 * RetryPaceInit starts a channel with all that it may have in flight.
 */
void
RetryPaceInit(RetryPace *pace)
{
	pace->window = 1e9;
	pace->failures = 0;
	pace->failed_at = 0;
	pace->not_before = 0;
	pace->nrefused = 0;
}

/*
 * RetryWhom tells whom an answer is about, and counts.
 */
RetryAbout
RetryWhom(RetryPace *pace, const LeaseChannel *channel, int status, int64 recipient)
{
	bool		named = false;

	for (int i = 0; i < channel->nrecipient_statuses; i++)
		named |= channel->recipient_statuses[i] == status;
	if (!named)
	{
		if (status / 100 == 2)
			pace->nrefused = 0;
		return ABOUT_CHANNEL;
	}
	if (pace->nrefused == 0 || pace->refused != recipient)
		pace->nrefused++;
	pace->refused = recipient;
	return pace->nrefused < MANY ? ABOUT_RECIPIENT : ABOUT_MANY;
}

/* Not delivered: after so many tries it is given up, else tried again, not before "least" ms. */
static void
AgainOrNever(LeaseAnswer *answer, bool never, double least)
{
	double		delay = Doubled(FIRST_DELAY, answer->tries - 1, LONGEST_DELAY) *
		(0.5 + pg_prng_double(&pg_global_prng_state));

	if (never || (!answer->untried && answer->tries >= coupon_max_attempts))
		answer->verdict = LEASE_DEAD;
	else
	{
		answer->verdict = LEASE_RETRY;
		answer->next_at = After(Max(delay, least));
	}
}

/*
 * RetryRefused fills in what becomes of a notification whose answer is no success, all the same.
 */
void
RetryRefused(LeaseAnswer *answer)
{
	AgainOrNever(answer, false, 0);
}

/*
 * RetryJudge fills in what becomes of a notification with this answer.  True: the receiver
 * wants nothing more of this channel (410).
 */
bool
RetryJudge(const TransferResult *result, bool is_mail, RetryAbout about,
		   LeaseAnswer *answer)
{
	bool		is_gone = !is_mail && result->status == 410;
	bool		gone = is_gone && about == ABOUT_CHANNEL;

	answer->status = result->status;
	strlcpy(answer->error, result->error, sizeof(answer->error));
	if (IsSuccess(result, is_mail))
	{
		answer->verdict = LEASE_DELIVERED;
		return false;
	}
	if (answer->error[0] == '\0')
		snprintf(answer->error, sizeof(answer->error), "the receiver answered %d",
				 result->status);
	answer->untried = result->shortage;
	if (gone)
	{
		answer->verdict = LEASE_RETRY;
		answer->next_at = After(GONE_DELAY);
	}
	else
		AgainOrNever(answer, !result->shortage && ((is_gone && about == ABOUT_RECIPIENT) ||
												   (is_mail && result->status / 100 == 5)),
					 Min(result->retry_after, LONGEST_ASKED));
	return gone;
}

/*
 * RetryAdapt learns from the answer to a request of that time how fast to go on.
 */
void
RetryAdapt(RetryPace *pace, const TransferResult *result, bool is_mail, int most,
		   TimestampTz sent_at)
{
	double		pause = 0;

	pace->window = Min(pace->window, most);
	if (!IsOverload(result, is_mail))
	{
		pace->failures = 0;
		pace->window = Min(pace->window + 1, most);
		return;
	}
	if (sent_at > pace->failed_at)
	{
		pace->failed_at = GetCurrentTimestamp();
		pace->failures++;
		pace->window = Max(pace->window / 2, 1);
		if (pace->failures >= PATIENCE)
			pause = Doubled(FIRST_PAUSE, pace->failures - PATIENCE, LONGEST_PAUSE);
	}
	if (result->status != 0)
		pause = Max(pause, Min(result->retry_after, LONGEST_PAUSE));
	if (pause > 0)
		pace->not_before = Max(pace->not_before, After(pause));
}
