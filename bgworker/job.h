/*
 * job.h
 *		What a worker or mailer does: a table of jobs, each isolated from the
 *		others.
 */
#ifndef COUPON_JOB_H
#define COUPON_JOB_H

#include "datatype/timestamp.h"

#include "base/commit_wakeup.h"
#include "base/worker_slots.h"

/* Beside the reasons of commit_wakeup.h: what JobSocket gave is readable. */
#define JOB_SOCKET	0x2000

/* Answers of a job; any other is the most milliseconds to sleep. */
#define JOB_AGAIN	0			/* there is more: call again at once */
#define JOB_SLEEP	(-1)		/* nothing to do until woken */

/*
 * A job does one portion of its work and says when to come again.  "woken"
 * is false when it only comes again because it said so.  It may raise any
 * error.  It is called without transaction if it manages its own, else in one,
 * READ COMMITTED, with a snapshot.  Long work must be cut into portions of at
 * most some seconds, or call CHECK_FOR_INTERRUPTS: a worker may be asked to
 * leave at any time, and the other jobs wait meanwhile.
 */
typedef long (*JobFunction) (bool woken);

typedef struct Job
{
	const char *name;
	WorkerKind	process;		/* which does it */
	uint32		reasons;		/* WAKE_… bits, or JOB_SOCKET, that bring it work */
	int			pause;			/* ms from the end of one run to the next woken one */
	bool		at_start;		/* of a worker: what happened before is unknown */
	bool		own_transactions;
	JobFunction run;
} Job;

extern void JobInit(int number, WorkerKind process);
extern int	JobSocket(void);
extern long JobRunDue(uint32 reasons);

#endif							/* COUPON_JOB_H */
