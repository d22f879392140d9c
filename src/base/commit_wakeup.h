/*
 * commit_wakeup.h
 *		Which worker is woken when a transaction commits, and why.
 */
#ifndef COUPON_COMMIT_WAKEUP_H
#define COUPON_COMMIT_WAKEUP_H

#include "datatype/timestamp.h"

/* What a commit may bring for the worker of its database, as bits. */
#define WAKE_FOLD	0x0001		/* coupons were claimed */
#define WAKE_TASKS	0x0002		/* a task is due, or its time has changed */
#define WAKE_REMIND	0x0004		/* reminders or starts of sales have changed */
#define WAKE_DELIVER	0x0008		/* the outbox or a channel has changed */
#define WAKE_REMIND_ALL	0x0010	/* ... also what was due when it was last looked for */
#define WAKE_LOOK	0x4000		/* no job: is the extension still there? */
#define WAKE_NOW	0x8000		/* somebody asks: run every job, at once */

extern void WakeInit(void);
extern void WakeWorkerAtCommit(uint32 reasons);
extern void WakeWorkerIfLate(TimestampTz moment, uint32 reasons);
extern void WakeLauncherAtCommit(void);

#endif							/* COUPON_COMMIT_WAKEUP_H */
