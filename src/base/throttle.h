/*
 * throttle.h
 *		Long jobs give way to claims.
 */
#ifndef COUPON_THROTTLE_H
#define COUPON_THROTTLE_H

#include "datatype/timestamp.h"

extern Size ThrottleShmemSize(void);
extern void ThrottleShmemInit(void);
extern void ThrottleNoteClaim(void);
extern int64 ThrottleCharge(TimestampTz begin);
extern void ThrottleSleep(int64 pause);

#endif							/* COUPON_THROTTLE_H */
