/*
 * process.h
 *		This worker or mailer, as all that it does may know it.
 */
#ifndef COUPON_PROCESS_H
#define COUPON_PROCESS_H

#include "datatype/timestamp.h"

#include "base/commit_wakeup.h"

extern void ProcessInit(int slot, WakeKind kind);
extern int	ProcessSlot(void);
extern WakeKind ProcessKind(void);
extern bool ProcessClockWentBack(TimestampTz *last);

#endif							/* COUPON_PROCESS_H */
