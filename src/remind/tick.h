/*
 * tick.h
 *		What fires reminders: the worker's job.
 */
#ifndef COUPON_TICK_H
#define COUPON_TICK_H

extern long RemindTick(bool woken);
extern long RemindTickAll(bool woken);

#endif							/* COUPON_TICK_H */
