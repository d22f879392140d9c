/*
 * duty.h
 *		What a worker or mailer does: a table of duties, each isolated from the
 *		others.
 */
#ifndef COUPON_DUTY_H
#define COUPON_DUTY_H

#include "datatype/timestamp.h"
#include "wake.h"

/* Beside the reasons of wake.h: what DutySocket gave is readable. */
#define DUTY_SOCKET	0x2000

/* Answers of a duty; any other is the most milliseconds to sleep. */
#define DUTY_AGAIN	0			/* there is more: call again at once */
#define DUTY_SLEEP	(-1)		/* nothing to do until woken */

/*
 * A duty does one portion of its work and says when to come again.  "woken"
 * is false when it only comes again because it said so.  It may raise any
 * error.  It is called without transaction if it manages its own, else in one,
 * READ COMMITTED, with a snapshot.  Long work must be cut into portions of at
 * most some seconds, or call CHECK_FOR_INTERRUPTS: a worker may be asked to
 * leave at any time, and the other duties wait meanwhile.
 */
typedef long (*DutyFunction) (bool woken);

typedef struct Duty
{
	const char *name;
	WakeKind	process;		/* which does it */
	uint32		reasons;		/* WAKE_… bits, or DUTY_SOCKET, that bring it work */
	int			pause;			/* ms from the end of one run to the next woken one */
	bool		at_start;		/* of a worker: what happened before is unknown */
	bool		own_transactions;
	DutyFunction run;
} Duty;

extern void DutyInit(int number, WakeKind process);
extern int	DutySlot(void);
extern int	DutySocket(void);
extern bool DutyClockWentBack(TimestampTz *last);
extern long DutyRunDue(uint32 reasons);

#endif							/* COUPON_DUTY_H */
