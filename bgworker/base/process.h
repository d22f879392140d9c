/*
 * process.h
 *		This worker or mailer, as all that it does may know it.
 */
#ifndef COUPON_PROCESS_H
#define COUPON_PROCESS_H

#include "datatype/timestamp.h"

#include "base/worker_slots.h"

extern void ProcessInit(int slot, WorkerKind kind);
extern int	ProcessSlot(void);
extern WorkerKind ProcessKind(void);
extern void ProcessSetLeaving(bool to_leave);
extern bool ProcessIsLeaving(void);
extern bool ProcessClockWentBack(TimestampTz *last);

#endif							/* COUPON_PROCESS_H */
