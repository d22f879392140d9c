/*
 * leave.h
 *		Makes room for commands that need a database to themselves.
 */
#ifndef COUPON_LEAVE_H
#define COUPON_LEAVE_H

extern void LeaveInit(void);

#endif							/* COUPON_LEAVE_H */
