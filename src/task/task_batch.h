/*
 * task_batch.h
 *		Give coupons to the users of one batch of a task.
 */
#ifndef COUPON_TASK_BATCH_H
#define COUPON_TASK_BATCH_H

#include "store/rows.h"
#include "task/task.h"

typedef enum DistributeResult
{
	DISTRIBUTE_DONE,			/* some lines were handled */
	DISTRIBUTE_NOTHING,			/* no such lines are left */
	DISTRIBUTE_BUSY,			/* others are at the lines that are left */
	DISTRIBUTE_ALONE,			/* stock may not suffice: nobody else may run */
	DISTRIBUTE_DIVIDED,			/* in the order of the file: others may run again */
	DISTRIBUTE_WAIT,			/* a user's own claim is open */
	DISTRIBUTE_REFUSED			/* the template gives nothing: see code */
} DistributeResult;

extern DistributeResult DistributeBatch(const Task *task, bool alone, int *code);
extern DistributeResult DistributePutOff(const Task *task, RowsOpenClaim *open,
										 int *code);
extern void DistributeWaitForOthers(int64 task_id, bool alone);

#endif							/* COUPON_TASK_BATCH_H */
