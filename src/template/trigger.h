/*
 * trigger.h
 *		What our trigger functions are called with.
 */
#ifndef COUPON_TRIGGER_H
#define COUPON_TRIGGER_H

#include "commands/trigger.h"
#include "fmgr.h"

extern bool TriggerIsReplica(void);
extern TriggerData *TriggerGet(FunctionCallInfo fcinfo);
extern HeapTuple TriggerRow(TriggerData *trigger);
extern Datum TriggerColumn(TriggerData *trigger, HeapTuple tuple, const char *name,
						   bool *isnull);
extern int64 TriggerInt8(TriggerData *trigger, HeapTuple tuple, const char *name,
						 int64 if_null);
extern bool TriggerSameColumn(TriggerData *trigger, const char *name);

#endif							/* COUPON_TRIGGER_H */
