/*
 * outbox.h
 *		The durable outbox of pushes.
 */
#ifndef COUPON_OUTBOX_H
#define COUPON_OUTBOX_H

#include "datatype/timestamp.h"
#include "direct.h"

/* Columns of coupon_notification as it is installed. */
enum
{
	QUEUE_ID,
	QUEUE_CHANNEL,
	QUEUE_KIND,
	QUEUE_TEMPLATE_ID,
	QUEUE_MINUTES,
	QUEUE_TASK_ID,
	QUEUE_USER_IDS,
	QUEUE_ADDRESS,
	QUEUE_DUE_AT,
	QUEUE_NEXT_AT,
	QUEUE_ATTEMPTS,
	QUEUE_FIRST_ATTEMPT,
	QUEUE_LEASED_UNTIL,
	QUEUE_LAST_STATUS,
	QUEUE_LAST_ERROR,
	QUEUE_COLUMNS
};

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

/* Pushes of an event that are being gathered. */
typedef struct OutboxPushes
{
	/* private to outbox.c */
	OutboxEvent event;
	bool		missed;
	int			in_a_row;		/* users that share a row */
	int64	   *users;
	int64	   *row_ids;
	int			nusers;
	int			nrows;			/* ids that are made, at most one more than needed */
	int			room;			/* in both */
} OutboxPushes;

extern const DirectLayout OutboxQueueLayout;

extern OutboxPushes *OutboxBegin(const OutboxEvent *event, bool missed);
extern int64 OutboxPut(OutboxPushes *pushes, int64 user_id);
extern void OutboxTakeBack(OutboxPushes *pushes);
extern void OutboxEnd(OutboxPushes *pushes);
extern bool OutboxWithdraw(int64 id, int64 user_id);

#endif							/* COUPON_OUTBOX_H */
