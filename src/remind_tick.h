/*
 * remind_tick.h
 *		What fires reminders: the worker's duty.
 */
#ifndef COUPON_REMIND_TICK_H
#define COUPON_REMIND_TICK_H

extern long RemindTick(bool woken);
extern long RemindTickAll(bool woken);

#endif							/* COUPON_REMIND_TICK_H */
