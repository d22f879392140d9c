/*
 * id.h
 *		Time-ordered 63-bit ids, and the horizon below which no id is in flight.
 */
#ifndef COUPON_ID_H
#define COUPON_ID_H

#define ID_MAX_ROW INT64CONST(4611686018427387903)	/* 2^62 - 1, see id.c */

extern Size IdShmemSize(void);
extern void IdShmemInit(void);
extern void IdInit(void);
extern int64 IdNext(void);
extern int64 IdHorizon(void);
extern void IdObserve(int64 id);
extern int64 IdSecondsAhead(void);

#endif							/* COUPON_ID_H */
