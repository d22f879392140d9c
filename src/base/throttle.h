/*
 * throttle.h
 *		Long jobs give way to claims.
 */
#ifndef COUPON_THROTTLE_H
#define COUPON_THROTTLE_H

#include "datatype/timestamp.h"

/* Of one job; all zero at first. */
typedef struct Throttle
{
	TimestampTz begin;			/* of its last portion */
	bool		counted;		/* the rest is of the end of the one before */
	uint64		claims;			/* served by other backends, ever */
	uint64		work;			/* of all jobs, ever, us */
} Throttle;

extern Size ThrottleShmemSize(void);
extern void ThrottleShmemInit(void);
extern void ThrottleCountClaims(int n);
extern void ThrottleBegin(Throttle *pace);
extern int64 ThrottleEnd(Throttle *pace);
extern void ThrottleSleep(int64 pause);

#endif							/* COUPON_THROTTLE_H */
