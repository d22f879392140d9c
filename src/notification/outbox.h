/*
 * outbox.h
 *		The durable outbox of notifications.
 */
#ifndef COUPON_OUTBOX_H
#define COUPON_OUTBOX_H

#include "datatype/timestamp.h"

#include "base/row_writer.h"

/* Columns of coupon_notification and coupon_notification_history ... */
enum
{
	NOTIFICATION_ID,
	NOTIFICATION_CHANNEL,
	NOTIFICATION_KIND,
	NOTIFICATION_TEMPLATE_ID,
	NOTIFICATION_MINUTES,
	NOTIFICATION_TASK_ID,
	NOTIFICATION_USER_IDS,
	NOTIFICATION_ADDRESS,
	NOTIFICATION_DUE_AT,
	NOTIFICATION_ATTEMPTS,
	NOTIFICATION_LAST_STATUS,
	NOTIFICATION_LAST_ERROR,
	NOTIFICATION_LAST_ANSWER,
	NOTIFICATION_COLUMNS,

	/* ... of the first alone ... */
	QUEUE_NEXT_AT = NOTIFICATION_COLUMNS,
	QUEUE_FIRST_ATTEMPT,
	QUEUE_LEASED_UNTIL,
	QUEUE_LANE,

	/* ... and of the second. */
	HISTORY_STATE = NOTIFICATION_COLUMNS,
	HISTORY_SENT_AT,
	HISTORY_ENDED_AT
};

/*
 * A channel serves what has a moment before what has none, and the shops of each in
 * turn: by lanes, of which a shop has the one of its number modulo OUTBOX_LANES
 * (stochastic fairness queueing, P. McKenney, INFOCOM 1990; here with numbers in place
 * of hashes, so that the first 64 shops have lanes of their own).
 */
#define OUTBOX_LANES 64

typedef enum OutboxClass
{
	OUTBOX_MOMENT,				/* reminders, and tests: somebody waits */
	OUTBOX_BULK,				/* announcements */
	OUTBOX_CLASSES
} OutboxClass;

#define OUTBOX_ALL_LANES (OUTBOX_CLASSES * OUTBOX_LANES)

/* What notifications are about; the same for all recipients of a call. */
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

/* Notifications of an event that are being gathered. */
typedef struct OutboxAdded
{
	/* private to outbox.c */
	OutboxEvent event;
	bool		missed;
	int			in_a_row;		/* users that share a row */
	int			lane;
	int64	   *users;
	int64	   *row_ids;
	int			nusers;
	int			nrows;			/* ids that are made, at most one more than needed */
	int			room;			/* in both */
} OutboxAdded;

extern void OutboxOpenQueue(RowWriter *queue);
extern void OutboxOpenHistory(RowWriter *history);
extern OutboxAdded *OutboxBegin(const OutboxEvent *event, bool missed);
extern int64 OutboxPut(OutboxAdded *added, int64 user_id);
extern void OutboxTakeBack(OutboxAdded *added);
extern void OutboxEnd(OutboxAdded *added);
extern void OutboxAddCoupons(int channels, int64 template_id, int64 task_id,
							 const int64 *users, int nusers);
extern bool OutboxWithdraw(int64 id, int64 user_id);
extern void OutboxWithdrawTask(int64 task_id);

#endif							/* COUPON_OUTBOX_H */
