/*
 * due.h
 *		Run the tasks that are due.
 */
#ifndef COUPON_DUE_H
#define COUPON_DUE_H

extern long TaskJob(bool woken);

#endif							/* COUPON_DUE_H */
