/*
 * outbox.h
 *		The durable outbox of pushes.
 */
#ifndef COUPON_OUTBOX_H
#define COUPON_OUTBOX_H

#include "datatype/timestamp.h"

/* What pushes are about; the same for all recipients of a call. */
typedef struct OutboxEvent
{
	const char *kind;			/* "reminder", "coupon" or "test" */
	const char *channel;
	int64		template_id;	/* 0: none */
	int			minutes;		/* of a reminder: before the start */
	int64		task_id;		/* 0: none */
	const char *address;		/* of a test; NULL: the users' own */
	TimestampTz due_at;
} OutboxEvent;

extern void OutboxAdd(const OutboxEvent *event, const int64 *users, int nusers,
					  int64 *ids);
extern void OutboxAddMissed(const OutboxEvent *event, const int64 *users, int nusers,
							int64 *ids);
extern bool OutboxWithdraw(int64 id, int64 user_id);

#endif							/* COUPON_OUTBOX_H */
