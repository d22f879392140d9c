/*
 * dropped.h
 *		What shared memory has of a database goes when that is dropped.
 */
#ifndef COUPON_DROPPED_H
#define COUPON_DROPPED_H

extern void DroppedInit(void);

#endif							/* COUPON_DROPPED_H */
