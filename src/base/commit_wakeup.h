/*
 * commit_wakeup.h
 *		Who is to be woken when a transaction commits, and how.
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

#define WAKE_LAUNCHER	0		/* number of the launcher's slot */

/* The processes that a database can have, each with a slot of its own. */
typedef enum WakeKind
{
	WAKE_WORKER,
	WAKE_MAILER
} WakeKind;

#define WAKE_KINDS 2

/* A new extension in more than one database since the launcher looked. */
#define WAKE_ANYWHERE	((Oid) PG_UINT32_MAX)

extern Size WakeShmemSize(void);
extern void WakeShmemInit(void);
extern void WakeInit(void);

/* For whoever commits something. */
extern void WakeWorkerAtCommit(uint32 reasons);
extern void WakeWorkerIfLate(TimestampTz moment, uint32 reasons);
extern void WakeLauncherAtCommit(void);
extern void WakeAskToLeave(Oid database);

/* For the processes that are woken. */
extern int	WakeSlotCount(void);
extern int	WakeOpen(Oid database, WakeKind kind);
extern void WakeClose(int number);
extern bool WakeAttach(int number, Oid database);
extern void WakeDetach(int number);
extern void WakeLauncher(void);
extern uint32 WakeTakeReasons(int number);
extern Oid	WakeTakeInstalled(void);
extern bool WakeIsAsked(int number);
extern void WakeForgetAsked(int number);
extern bool WakeGet(int number, Oid *database, WakeKind *kind, int *pid);
extern void WakeWantMailer(int number, bool wanted);
extern bool WakeMailerIsWanted(Oid database);

#endif							/* COUPON_COMMIT_WAKEUP_H */
