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
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

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

/* The id of the row in which each user is goes to ids, unless that is NULL. */
static void
AddRows(OwnerQuery *query, const OutboxEvent *event, const int64 *users, int nusers,
		int in_a_row, int64 *ids)
{
	int			nrows = (nusers + in_a_row - 1) / in_a_row;
	Datum	   *row_ids = palloc(nrows * sizeof(Datum));
	Datum	   *user_ids = palloc(nusers * sizeof(Datum));
	Datum		args[ADD_NARGS];
	char		nulls[ADD_NARGS];

	for (int i = 0; i < nrows; i++)
		row_ids[i] = Int64GetDatum(IdNext());
	for (int i = 0; i < nusers; i++)
	{
		user_ids[i] = Int64GetDatum(users[i]);
		if (ids != NULL)
			ids[i] = DatumGetInt64(row_ids[i / in_a_row]);
	}
	memset(nulls, ' ', sizeof(nulls));
	args[0] = PointerGetDatum(construct_array(row_ids, nrows, INT8OID, sizeof(int64),
											  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	args[1] = PointerGetDatum(construct_array(user_ids, nusers, INT8OID, sizeof(int64),
											  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
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

/*
 * OutboxAdd adds pushes of an event to users, at least one, and wakes the
 * worker at commit.  ids, if not NULL, gets for each user the id of the row
 * that he is in.  Between QueryBegin and QueryEnd of the caller's.
 */
void
OutboxAdd(const OutboxEvent *event, const int64 *users, int nusers, int64 *ids)
{
	AddRows(&add_rows, event, users, nusers, BatchSizeOf(event->channel), ids);
	WakeWorkerAtCommit(WAKE_DELIVER);
}

/*
 * OutboxAddMissed records, in the history, pushes that came too late to be
 * sent.  As OutboxAdd otherwise.
 */
void
OutboxAddMissed(const OutboxEvent *event, const int64 *users, int nusers, int64 *ids)
{
	AddRows(&add_missed, event, users, nusers, MISSED_IN_A_ROW, ids);
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
