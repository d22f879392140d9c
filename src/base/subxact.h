/*
 * subxact.h
 *		Run something in a subtransaction of its own; how a transaction ends.
 */
#ifndef COUPON_SUBXACT_H
#define COUPON_SUBXACT_H

#include "access/xact.h"

/* Of a transaction callback; a parallel worker's part ends with its own events. */
static inline bool
XactIsCommit(XactEvent event)
{
	return event == XACT_EVENT_COMMIT || event == XACT_EVENT_PARALLEL_COMMIT;
}

static inline bool
XactIsAbort(XactEvent event)
{
	return event == XACT_EVENT_ABORT || event == XACT_EVENT_PARALLEL_ABORT;
}

/* False: what was done is not to be kept. */
typedef bool (*SubxactBody) (void *arg);

extern bool SubxactRun(SubxactBody body, void *arg, ErrorData **error);

#endif							/* COUPON_SUBXACT_H */
