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
	" SELECT o.id, $4, $5, $6, $7, $8, $9, $10, 'missed',"
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

/* One row for each slice of so many users. */
static void
AddThroughSql(OwnerQuery *query, const OutboxEvent *event, const int64 *row_ids,
			  const int64 *users, int nusers, int in_a_row)
{
	Datum		args[ADD_NARGS];
	char		nulls[ADD_NARGS];

	memset(nulls, ' ', sizeof(nulls));
	args[0] = ArrayOfInt8(row_ids, (nusers + in_a_row - 1) / in_a_row);
	args[1] = ArrayOfInt8(users, nusers);
	args[2] = Int32GetDatum(in_a_row);
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
AddDirectly(DirectTable *queue, const OutboxEvent *event, const int64 *row_ids,
			const int64 *users, int nusers, int in_a_row)
{
	Datum		channel = CStringGetTextDatum(event->channel);
	Datum		kind = CStringGetTextDatum(event->kind);

	for (int done = 0; done < nusers; done += in_a_row)
	{
		TupleTableSlot *slot = DirectNew(queue);

		DirectSet(slot, QUEUE_ID, Int64GetDatum(*row_ids++));
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
		DirectSet(slot, QUEUE_USER_IDS, ArrayOfInt8(users + done, Min(nusers - done, in_a_row)));
		DirectSet(slot, QUEUE_DUE_AT, TimestampTzGetDatum(event->due_at));
		/* of each row its own: a lease goes on where the last one stopped */
		DirectSet(slot, QUEUE_NEXT_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
		DirectSet(slot, QUEUE_ATTEMPTS, Int32GetDatum(0));
		DirectSet(slot, QUEUE_FIRST_ATTEMPT, Int32GetDatum(0));
		DirectInsert(queue);
	}
	DirectClose(queue);
}

/* Ids for rows of so many users, and for each user that of his row. */
static int64 *
MakeRowIds(int nusers, int in_a_row, int64 *ids)
{
	int			nrows = (nusers + in_a_row - 1) / in_a_row;
	int64	   *row_ids = palloc(nrows * sizeof(int64));

	for (int i = 0; i < nrows; i++)
		row_ids[i] = IdNext();
	for (int i = 0; i < nusers && ids != NULL; i++)
		ids[i] = row_ids[i / in_a_row];
	return row_ids;
}

/*
 * OutboxAdd adds pushes of an event to users, at least one, and wakes the
 * worker at commit.  ids, if not NULL, gets for each user the id of the row
 * that he is in.  Between QueryBegin and QueryEnd of the caller's.
 */
void
OutboxAdd(const OutboxEvent *event, const int64 *users, int nusers, int64 *ids)
{
	int			in_a_row = BatchSizeOf(event->channel);
	int64	   *row_ids = MakeRowIds(nusers, in_a_row, ids);
	DirectTable queue;

	if (DirectOpen(&queue, CatalogGet()->queue_table, &OutboxQueueLayout))
		AddDirectly(&queue, event, row_ids, users, nusers, in_a_row);
	else
		AddThroughSql(&add_rows, event, row_ids, users, nusers, in_a_row);
	WakeWorkerAtCommit(WAKE_DELIVER);
}

/*
 * OutboxAddMissed records, in the history, pushes that came too late to be
 * sent.  As OutboxAdd otherwise.
 */
void
OutboxAddMissed(const OutboxEvent *event, const int64 *users, int nusers, int64 *ids)
{
	AddThroughSql(&add_missed, event, MakeRowIds(nusers, MISSED_IN_A_ROW, ids), users,
				  nusers, MISSED_IN_A_ROW);
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
