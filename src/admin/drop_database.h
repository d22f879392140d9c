/*
 * drop_database.h
 *		What shared memory has of a database goes when that is dropped.
 */
#ifndef COUPON_DROP_DATABASE_H
#define COUPON_DROP_DATABASE_H

extern void DroppedInit(void);

#endif							/* COUPON_DROP_DATABASE_H */
