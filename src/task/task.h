/*
 * task.h
 *		Distribution tasks: their rows, states and verbs.
 */
#ifndef COUPON_TASK_H
#define COUPON_TASK_H

#include "template/template.h"

typedef enum TaskState
{
	TASK_DRAFT,
	TASK_PENDING,
	TASK_IN_PROGRESS,
	TASK_PAUSED,
	TASK_SUCCESS,
	TASK_FAILED,
	TASK_CANCELLED
} TaskState;

typedef enum TaskLock
{
	TASK_FOR_SHARE,				/* while a batch is handled, or the stage loaded */
	TASK_FOR_UPDATE				/* to change the state, or to run alone */
} TaskLock;

typedef enum TaskFound
{
	TASK_NOT_FOUND,				/* for this user, at least */
	TASK_FOUND,
	TASK_LOCKED					/* by somebody, and not waited for */
} TaskFound;

/* A row of coupon_task. */
typedef struct Task
{
	int64		id;
	TaskState	state;
	int64		template_id;
	bool		has_shop;
	int64		shop_number;	/* of the template when the task was made */
	int64		first_row;
	int64		lines;
	int32		attempts;
	uint32		notify;			/* channels to tell users through, as bits */
	TimestampTz submitted_at;	/* last; 0: never */
	TimestampTz send_at;		/* now, where none was said */
} Task;

#define TASK_REQUEST_ID 32		/* bytes */
#define TASK_SOURCE "platform"	/* of coupons that a task gives */
#define TASK_OPEN_TO (TEMPLATE_OPEN_TO(TEMPLATE_ANYONE) | TEMPLATE_OPEN_TO(TEMPLATE_TASK))

extern TaskFound TaskTryRead(int64 task_id, TaskLock lock, bool wait, Task *task);
extern bool TaskRead(int64 task_id, TaskLock lock, Task *task);
extern bool TaskReadToSubmit(int64 task_id, Task *task);
extern bool TaskOwnsTemplate(const Task *task, const TemplateView *view);
extern void TaskRequestId(const Task *task, char *request_id);
extern const char *TaskStateName(TaskState state);
extern void TaskRequireReadCommitted(void);
extern int	TaskSubmit(int64 task_id, TimestampTz send_at, Task *task);
extern void TaskEnd(int64 task_id, TaskState state);
extern void TaskFail(int64 task_id, TimestampTz submitted_at, const char *reason);

#endif							/* COUPON_TASK_H */
