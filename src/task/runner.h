/*
 * runner.h
 *		Run a distribution task, batch by batch.
 */
#ifndef COUPON_RUNNER_H
#define COUPON_RUNNER_H

extern bool TaskRunDue(int64 task_id, bool in_worker, void (*next_transaction) (void),
					   int budget_ms, int64 *pause);

#endif							/* COUPON_RUNNER_H */
