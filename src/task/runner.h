/*
 * runner.h
 *		Run distribution tasks, batch by batch.
 */
#ifndef COUPON_RUNNER_H
#define COUPON_RUNNER_H

extern long TaskJob(bool woken);

#endif							/* COUPON_RUNNER_H */
