/*
 * id.h
 *		Time-ordered 63-bit ids, and the horizon below which no id is in flight.
 */
#ifndef COUPON_ID_H
#define COUPON_ID_H

#include "datatype/timestamp.h"

extern Size IdShmemSize(void);
extern void IdShmemInit(void);
extern void IdInit(void);
extern void IdRequireUsable(void);
extern int64 IdNext(void);
extern int64 IdNewest(void);
extern void IdRaiseAbove(int64 id);
extern int64 IdHorizon(void);
extern int64 IdSecondsAhead(void);
extern TimestampTz IdTime(int64 id);
extern int64 IdFirstAt(TimestampTz at);

#endif							/* COUPON_ID_H */
