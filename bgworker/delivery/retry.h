/*
 * retry.h
 *		What an answer means: over, once more, or slower.
 */
#ifndef COUPON_RETRY_H
#define COUPON_RETRY_H

#include "bgworker/curl/transfer.h"
#include "notification/lease.h"

/* How fast a channel may send: learnt from its answers. */
typedef struct RetryPace
{
	double		window;			/* requests in flight; from 1 to the channel's most */
	int			failures;		/* of the receiver, one after the other */
	TimestampTz failed_at;		/* the last of them */
	TimestampTz not_before;		/* it has asked for a pause, or is given one */
	int64		refused;		/* the last recipient that an answer was about */
	int			nrefused;		/* so many different ones, one after the other */
} RetryPace;

/* Whom an answer is about. */
typedef enum RetryAbout
{
	ABOUT_CHANNEL,
	ABOUT_RECIPIENT,			/* the channel says so of this status */
	ABOUT_MANY					/* the same, but many have got it in a row */
} RetryAbout;

extern void RetryPaceInit(RetryPace *pace);
extern RetryAbout RetryWhom(RetryPace *pace, const LeaseChannel *channel, int status,
							int64 recipient);
extern bool RetryJudge(const TransferResult *result, bool is_mail, RetryAbout about,
					   LeaseAnswer *answer);
extern void RetryRefused(LeaseAnswer *answer);
extern void RetryAdapt(RetryPace *pace, const TransferResult *result, bool is_mail,
					   int most, TimestampTz sent_at);

#endif							/* COUPON_RETRY_H */
