/*
 * task_batch.h
 *		Give coupons to the users of one batch of a task.
 */
#ifndef COUPON_TASK_BATCH_H
#define COUPON_TASK_BATCH_H

#include "store/rows.h"
#include "task/task.h"

/* What came of a step of a task: a batch, or a line that was put off. */
typedef enum StepResult
{
	STEP_MORE,					/* some lines were handled */
	STEP_ALONE,					/* stock may not suffice: nobody else may run */
	STEP_DIVIDED,				/* in the order of the file: others may run again */
	STEP_WAIT,					/* for a user's own claim, in "open" */
	STEP_BUSY,					/* others are at the lines that are left, or at the template */
	STEP_HELD_UP,				/* of a line: by others, as the lines after it may be */
	STEP_REFUSED,				/* the template gives nothing: see "code" */
	STEP_LAST,					/* no lines are left */
	STEP_OVER					/* the task is not running */
} StepResult;

extern StepResult DistributeBatch(const Task *task, bool alone, bool wait, int *code);
extern StepResult DistributePutOff(const Task *task, bool wait, RowsOpenClaim *open, int *code);
extern void DistributeWaitForOthers(int64 task_id, bool alone);

#endif							/* COUPON_TASK_BATCH_H */
