/*
 * yield_database.h
 *		Makes room for commands that need a database to themselves.
 */
#ifndef COUPON_YIELD_DATABASE_H
#define COUPON_YIELD_DATABASE_H

extern void LeaveInit(void);

#endif							/* COUPON_YIELD_DATABASE_H */
