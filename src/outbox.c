/*
 * outbox.c
 *		The durable outbox of pushes: adding and withdrawing.
 *
 * A row is one request, with as many recipients as its channel takes at a
 * time: it is cut when it is added, and so keeps its id and its recipients
 * over all attempts, without a second table, and with a hundredth of the rows
 * where a hundred share a request.  A recipient is found by the id of the row,
 * which the caller keeps (coupon_remind.notifications), not by an index.
 *
 * Adding is part of the transaction that the push tells of.  Leases and
 * answers are in lease.c; the network, outside any transaction, is in
 * bgworker/.
 *
 * Locks: a withdrawal holds the row, as does whoever leases it or records an
 * answer; each looks at it again when he has it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "array.h"
#include "catalog.h"
#include "id.h"
#include "outbox.h"
#include "query.h"
#include "wake.h"

#define ADD_NARGS 10
#define ADD_TYPES \
	{INT8ARRAYOID, INT8ARRAYOID, INT4OID, TEXTOID, TEXTOID, INT8OID, INT2OID, \
	INT8OID, TEXTOID, TIMESTAMPTZOID}

/* Row n of the ids has the n-th slice, of $3 users, of one flat array. */
#define ADD_SLICES \
	"($2)[(o.n OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog.*) $3" \
	"  OPERATOR(pg_catalog.+) 1 : o.n OPERATOR(pg_catalog.*) $3]" \
	" FROM pg_catalog.unnest($1) WITH ORDINALITY AS o (id, n)"

/* In a history nobody has to take them at a time. */
#define MISSED_IN_A_ROW 1000

static const Oid queue_types[QUEUE_COLUMNS] = {
	INT8OID, TEXTOID, TEXTOID, INT8OID, INT2OID, INT8OID, INT8ARRAYOID, TEXTOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT4OID, TIMESTAMPTZOID, INT4OID, TEXTOID
};

const DirectLayout OutboxQueueLayout = {QUEUE_COLUMNS, 3, 8, queue_types};

static OwnerQuery batch_size_of = {
	"SELECT batch_size FROM %1$s.coupon_channel"
	" WHERE channel OPERATOR(pg_catalog.=) $1",
	1, {TEXTOID}
};

static OwnerQuery add_rows = {
	"INSERT INTO %1$s.coupon_notification (id, channel, kind, template_id,"
	" minutes, task_id, address, due_at, next_at, user_ids)"
	" SELECT o.id, $4, $5, $6, $7, $8, $9, $10, pg_catalog.clock_timestamp(), "
	ADD_SLICES,
	ADD_NARGS, ADD_TYPES
};

static OwnerQuery add_missed = {
	"INSERT INTO %1$s.coupon_notification_history (id, channel, kind, template_id,"
	" minutes, task_id, address, due_at, state, ended_at, attempts, user_ids)"
	" SELECT o.id, $4, $5, $6, $7, $8, $9, $10, 'missed'::pg_catalog.text,"
	" pg_catalog.clock_timestamp(), 0, " ADD_SLICES,
	ADD_NARGS, ADD_TYPES
};

/* A lease that has run out is nobody's. */
#define NOT_LEASED \
	" AND (leased_until IS NULL OR leased_until OPERATOR(pg_catalog.<=)" \
	"  pg_catalog.clock_timestamp())"

static OwnerQuery delete_only = {
	"DELETE FROM %1$s.coupon_notification WHERE id OPERATOR(pg_catalog.=) $1"
	" AND user_ids OPERATOR(pg_catalog.=) ARRAY[$2]" NOT_LEASED,
	2, {INT8OID, INT8OID}
};

static OwnerQuery remove_from = {
	"UPDATE %1$s.coupon_notification"
	" SET user_ids = pg_catalog.array_remove(user_ids, $2)"
	" WHERE id OPERATOR(pg_catalog.=) $1"
	" AND $2 OPERATOR(pg_catalog.=) ANY (user_ids)"
	" AND pg_catalog.cardinality(user_ids) OPERATOR(pg_catalog.>) 1" NOT_LEASED,
	2, {INT8OID, INT8OID}
};

static int
BatchSizeOf(const char *channel)
{
	Datum		arg = CStringGetTextDatum(channel);
	bool		isnull;

	if (QueryRun(&batch_size_of, &arg, NULL) == 0)
		return 1;				/* not set up yet: it waits */
	return DatumGetInt32(QueryValue(0, 1, &isnull));
}

/* One row for each slice of users. */
static void
AddThroughSql(OwnerQuery *query, const OutboxPushes *pushes)
{
	const OutboxEvent *event = &pushes->event;
	Datum		args[ADD_NARGS];
	char		nulls[ADD_NARGS];

	memset(nulls, ' ', sizeof(nulls));
	args[0] = ArrayOfInt8(pushes->row_ids,
						  (pushes->nusers + pushes->in_a_row - 1) / pushes->in_a_row);
	args[1] = ArrayOfInt8(pushes->users, pushes->nusers);
	args[2] = Int32GetDatum(pushes->in_a_row);
	args[3] = CStringGetTextDatum(event->channel);
	args[4] = CStringGetTextDatum(event->kind);
	args[5] = Int64GetDatum(event->template_id);
	nulls[5] = event->template_id == 0 ? 'n' : ' ';
	args[6] = Int16GetDatum(event->minutes);
	nulls[6] = event->minutes == 0 ? 'n' : ' ';
	args[7] = Int64GetDatum(event->task_id);
	nulls[7] = event->task_id == 0 ? 'n' : ' ';
	args[8] = (Datum) 0;
	nulls[8] = event->address == NULL ? 'n' : ' ';
	if (event->address != NULL)
		args[8] = CStringGetTextDatum(event->address);
	args[9] = TimestampTzGetDatum(event->due_at);
	QueryRun(query, args, nulls);
}

/* The same for the queue, past the executor. */
static void
AddDirectly(DirectTable *queue, const OutboxPushes *pushes)
{
	const OutboxEvent *event = &pushes->event;
	Datum		channel = CStringGetTextDatum(event->channel);
	Datum		kind = CStringGetTextDatum(event->kind);

	for (int done = 0; done < pushes->nusers; done += pushes->in_a_row)
	{
		TupleTableSlot *slot = DirectNew(queue);

		DirectSet(slot, QUEUE_ID, Int64GetDatum(pushes->row_ids[done / pushes->in_a_row]));
		DirectSet(slot, QUEUE_CHANNEL, channel);
		DirectSet(slot, QUEUE_KIND, kind);
		if (event->template_id != 0)
			DirectSet(slot, QUEUE_TEMPLATE_ID, Int64GetDatum(event->template_id));
		if (event->minutes != 0)
			DirectSet(slot, QUEUE_MINUTES, Int16GetDatum(event->minutes));
		if (event->task_id != 0)
			DirectSet(slot, QUEUE_TASK_ID, Int64GetDatum(event->task_id));
		if (event->address != NULL)
			DirectSet(slot, QUEUE_ADDRESS, CStringGetTextDatum(event->address));
		DirectSet(slot, QUEUE_USER_IDS,
				  ArrayOfInt8(pushes->users + done,
							  Min(pushes->nusers - done, pushes->in_a_row)));
		DirectSet(slot, QUEUE_DUE_AT, TimestampTzGetDatum(event->due_at));
		/* of each row its own: a lease goes on where the last one stopped */
		DirectSet(slot, QUEUE_NEXT_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
		DirectSet(slot, QUEUE_ATTEMPTS, Int32GetDatum(0));
		DirectSet(slot, QUEUE_FIRST_ATTEMPT, Int32GetDatum(0));
		DirectInsert(queue);
	}
	DirectClose(queue);
}

/*
 * OutboxBegin begins to gather pushes of an event, in the current memory context;
 * missed: they came too late to be sent, and go to the history.  Up to OutboxEnd
 * between QueryBegin and QueryEnd of the caller's.
 */
OutboxPushes *
OutboxBegin(const OutboxEvent *event, bool missed)
{
	OutboxPushes *pushes = palloc0(sizeof(OutboxPushes));

	pushes->event = *event;
	pushes->missed = missed;
	pushes->in_a_row = missed ? MISSED_IN_A_ROW : BatchSizeOf(event->channel);
	pushes->room = 64;
	pushes->users = palloc(pushes->room * sizeof(int64));
	pushes->row_ids = palloc(pushes->room * sizeof(int64));
	return pushes;
}

/*
 * OutboxPut adds a user, and returns the id of the row that he will be in.
 */
int64
OutboxPut(OutboxPushes *pushes, int64 user_id)
{
	int			row = pushes->nusers / pushes->in_a_row;

	if (pushes->nusers == pushes->room)
	{
		pushes->room *= 2;
		pushes->users = repalloc(pushes->users, pushes->room * sizeof(int64));
		pushes->row_ids = repalloc(pushes->row_ids, pushes->room * sizeof(int64));
	}
	if (row == pushes->nrows)
		pushes->row_ids[pushes->nrows++] = IdNext();
	pushes->users[pushes->nusers++] = user_id;
	return pushes->row_ids[row];
}

/*
 * OutboxTakeBack leaves out the user that was put last.
 */
void
OutboxTakeBack(OutboxPushes *pushes)
{
	pushes->nusers--;
}

/*
 * OutboxEnd adds what was put, and wakes the worker at commit.
 */
void
OutboxEnd(OutboxPushes *pushes)
{
	DirectTable queue;

	if (pushes->nusers > 0 && pushes->missed)
		AddThroughSql(&add_missed, pushes);
	else if (pushes->nusers > 0)
	{
		if (DirectOpen(&queue, CatalogGet()->queue_table, &OutboxQueueLayout))
			AddDirectly(&queue, pushes);
		else
			AddThroughSql(&add_rows, pushes);
		WakeWorkerAtCommit(WAKE_DELIVER);
	}
	pfree(pushes->users);
	pfree(pushes->row_ids);
	pfree(pushes);
}

/*
 * OutboxWithdraw takes a user out of a push that nobody is sending.  False: it
 * is being sent, or over, or he is not in it.  One that was tried without
 * success is withdrawn from the attempts to come.  Between QueryBegin and
 * QueryEnd of the caller's.
 */
bool
OutboxWithdraw(int64 id, int64 user_id)
{
	Datum		args[2] = {Int64GetDatum(id), Int64GetDatum(user_id)};

	/* While we waited for the row the others may have been taken out of it. */
	return QueryRun(&delete_only, args, NULL) > 0 ||
		QueryRun(&remove_from, args, NULL) > 0 ||
		QueryRun(&delete_only, args, NULL) > 0;
}
