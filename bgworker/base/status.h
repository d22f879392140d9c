/*
 * status.h
 *		What the launcher and the workers are doing, for coupon_stat_worker.
 */
#ifndef COUPON_STATUS_H
#define COUPON_STATUS_H

typedef enum WorkerState
{
	WORKER_STARTING,			/* asked for; not yet connected */
	WORKER_RUNNING,
	WORKER_LEFT,				/* made room for another command */
	WORKER_ABSENT,				/* no extension in the database */
	WORKER_UNWANTED,			/* coupon.databases does not name it any more */
	WORKER_FAILED				/* ended by itself; will be tried again */
} WorkerState;

extern Size StatusShmemSize(void);
extern void StatusShmemInit(void);
extern void StatusReset(int number);
extern void StatusSetState(int number, WorkerState state);
extern WorkerState StatusGetState(int number);
extern void StatusCountTurn(int number);
extern void StatusSetError(int number, const char *text);

#endif							/* COUPON_STATUS_H */
