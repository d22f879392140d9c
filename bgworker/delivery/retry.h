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
	TimestampTz not_before;		/* it has asked for a pause, or is given one */
} RetryPace;

extern void RetryPaceInit(RetryPace *pace);
extern bool RetryJudge(const TransferResult *result, bool is_mail, int tries,
					   LeaseAnswer *answer);
extern void RetryAdapt(RetryPace *pace, const TransferResult *result, bool is_mail,
					   int most);

#endif							/* COUPON_RETRY_H */
