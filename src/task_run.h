/*
 * task_run.h
 *		Run distribution tasks, batch by batch.
 */
#ifndef COUPON_TASK_RUN_H
#define COUPON_TASK_RUN_H

extern bool TaskRunDue(void (*next_transaction) (void), int budget_ms, int64 *pause);
extern long TaskDuty(bool woken);

#endif							/* COUPON_TASK_RUN_H */
