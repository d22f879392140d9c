/*
 * throttle.h
 *		Long jobs give way to claims.
 */
#ifndef COUPON_THROTTLE_H
#define COUPON_THROTTLE_H

#include "datatype/timestamp.h"

/* Of one job; all zero at first. */
typedef struct Pace
{
	TimestampTz begin;			/* of its last portion */
	bool		counted;		/* the rest is of the end of the one before */
	uint64		claims;			/* served by other backends, ever */
	uint64		work;			/* of all jobs, ever, us */
} Pace;

extern Size PaceShmemSize(void);
extern void PaceShmemInit(void);
extern void PaceCountClaims(int n);
extern void PaceBegin(Pace *pace);
extern int64 PaceEnd(Pace *pace);
extern void PaceSleep(int64 pause);

#endif							/* COUPON_THROTTLE_H */
