/*
 * runner.h
 *		Run distribution tasks, batch by batch.
 */
#ifndef COUPON_RUNNER_H
#define COUPON_RUNNER_H

extern bool TaskRunDue(void (*next_transaction) (void), int budget_ms, int64 *pause);
extern long TaskJob(bool woken);

#endif							/* COUPON_RUNNER_H */
