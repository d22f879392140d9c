/*
 * lease_record.c
 *		What became of pushes that were leased: to the history, or back.
 *
 * Only the attempt that is waited for counts.  Nearly all are delivered, are
 * where they were when they were leased, and have never been over before: these
 * go past the executor (direct.c).  Whatever is not so goes through SQL, row by
 * row found by its id.
 *
 * Locks: rows of the queue, to the end of the transaction, a short one.  Nobody
 * is waited for: one who looks at a row FOR UPDATE and forgets his transaction
 * would stop all channels.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "array.h"
#include "catalog.h"
#include "direct.h"
#include "lease.h"
#include "outbox.h"
#include "query.h"

#define ANSWER_NARGS 7
#define ANSWER_TYPES \
	{INT8ARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZARRAYOID, \
	INT4ARRAYOID, TEXTARRAYOID, TEXTARRAYOID}

/* Only for the attempt that is waited for. */
#define OF_ANSWERS \
	" unnest($1, $2, $3, $4, $5, $6, $7)" \
	" AS a (id, attempts, sent_at, next_at, status, error, state)" \
	" WHERE n.id OPERATOR(pg_catalog.=) a.id" \
	" AND n.attempts OPERATOR(pg_catalog.=) a.attempts AND n.leased_until IS NOT NULL"

/* Columns of coupon_notification_history as it is installed. */
enum
{
	HISTORY_ID,
	HISTORY_CHANNEL,
	HISTORY_KIND,
	HISTORY_TEMPLATE_ID,
	HISTORY_MINUTES,
	HISTORY_TASK_ID,
	HISTORY_USER_IDS,
	HISTORY_ADDRESS,
	HISTORY_STATE,
	HISTORY_DUE_AT,
	HISTORY_SENT_AT,
	HISTORY_ENDED_AT,
	HISTORY_ATTEMPTS,
	HISTORY_LAST_STATUS,
	HISTORY_LAST_ERROR,
	HISTORY_COLUMNS
};

static const Oid history_types[HISTORY_COLUMNS] = {
	INT8OID, TEXTOID, TEXTOID, INT8OID, INT2OID, INT8OID, INT8ARRAYOID, TEXTOID, TEXTOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT4OID, TEXTOID
};

static const DirectLayout history_layout = {HISTORY_COLUMNS, 1, 8, history_types};

static OwnerQuery record_ends = {
	"WITH gone AS (DELETE FROM %1$s.coupon_notification n USING" OF_ANSWERS
	"  RETURNING n.id, n.channel, n.kind, n.template_id, n.minutes, n.task_id,"
	"  n.user_ids, n.address, a.state, n.due_at, a.sent_at, n.attempts, a.status, a.error)"
	" INSERT INTO %1$s.coupon_notification_history (id, channel, kind, template_id,"
	"  minutes, task_id, user_ids, address, state, due_at, sent_at, ended_at,"
	"  attempts, last_status, last_error)"
	" SELECT g.id, g.channel, g.kind, g.template_id, g.minutes, g.task_id, g.user_ids,"
	"  g.address, g.state, g.due_at, "
	"  CASE WHEN g.sent_at OPERATOR(pg_catalog.<>) '-infinity'::pg_catalog.timestamptz THEN"
	"   g.sent_at END,"
	"  pg_catalog.clock_timestamp(), g.attempts, "
	"  CASE WHEN g.status OPERATOR(pg_catalog.<>) 0 THEN g.status END,"
	"  CASE WHEN g.error OPERATOR(pg_catalog.<>) ''::pg_catalog.text THEN g.error END FROM gone g"
	/* there already: queued again by hand */
	" ON CONFLICT (id) DO UPDATE SET (channel, kind, template_id, minutes, task_id,"
	"  user_ids, address, state, due_at, sent_at, ended_at, attempts, last_status,"
	"  last_error) = (excluded.channel, excluded.kind, excluded.template_id,"
	"  excluded.minutes, excluded.task_id, excluded.user_ids, excluded.address,"
	"  excluded.state, excluded.due_at, excluded.sent_at, excluded.ended_at,"
	"  excluded.attempts, excluded.last_status, excluded.last_error)",
	ANSWER_NARGS, ANSWER_TYPES
};

static OwnerQuery record_retries = {
	"UPDATE %1$s.coupon_notification n SET leased_until = NULL, next_at = a.next_at,"
	" last_status = CASE WHEN a.status OPERATOR(pg_catalog.<>) 0 THEN a.status END,"
	" last_error = CASE WHEN a.error OPERATOR(pg_catalog.<>) ''::pg_catalog.text THEN a.error"
	"  END FROM"
	OF_ANSWERS,
	ANSWER_NARGS, ANSWER_TYPES
};

static OwnerQuery lock_rows = {
	"SELECT n.id FROM %1$s.coupon_notification n WHERE n.id OPERATOR(pg_catalog.=) ANY ($1)"
	" FOR UPDATE SKIP LOCKED",
	1, {INT8ARRAYOID}
};

/* Those that are there, and are not among the locked. */
static OwnerQuery held_rows = {
	"SELECT n.id FROM %1$s.coupon_notification n"
	" WHERE n.id OPERATOR(pg_catalog.=) ANY ($1) AND n.id OPERATOR(pg_catalog.<>) ALL ($2)",
	2, {INT8ARRAYOID, INT8ARRAYOID}
};

static const char *
StateName(LeaseVerdict verdict)
{
	switch (verdict)
	{
		case LEASE_DELIVERED:
			return "delivered";
		case LEASE_DEAD:
			return "dead";
		case LEASE_MISSED:
			return "missed";
		case LEASE_RETRY:
			break;
	}
	return "";
}

/* Record those answers that are to be retried, or the others. */
static void
RecordThroughSql(LeaseAnswer **answers, int nanswers, bool retry)
{
	static const struct
	{
		Oid			type;
		int16		length;
		char		align;
	}			kinds[ANSWER_NARGS] = {
		{INT8OID, 8, TYPALIGN_DOUBLE}, {INT4OID, 4, TYPALIGN_INT},
		{TIMESTAMPTZOID, 8, TYPALIGN_DOUBLE}, {TIMESTAMPTZOID, 8, TYPALIGN_DOUBLE},
		{INT4OID, 4, TYPALIGN_INT}, {TEXTOID, -1, TYPALIGN_INT},
		{TEXTOID, -1, TYPALIGN_INT}
	};
	Datum	   *columns[ANSWER_NARGS];
	Datum		args[ANSWER_NARGS];
	int			n = 0;

	for (int c = 0; c < ANSWER_NARGS; c++)
		columns[c] = palloc(nanswers * sizeof(Datum));
	for (int i = 0; i < nanswers; i++)
	{
		const LeaseAnswer *answer = answers[i];

		if ((answer->verdict == LEASE_RETRY) != retry)
			continue;
		columns[0][n] = Int64GetDatum(answer->id);
		columns[1][n] = Int32GetDatum(answer->attempts);
		columns[2][n] = TimestampTzGetDatum(answer->sent_at);
		columns[3][n] = TimestampTzGetDatum(answer->next_at);
		columns[4][n] = Int32GetDatum(answer->status);
		columns[5][n] = CStringGetTextDatum(answer->error);
		columns[6][n] = CStringGetTextDatum(StateName(answer->verdict));
		n++;
	}
	if (n == 0)
		return;
	for (int c = 0; c < ANSWER_NARGS; c++)
		args[c] = PointerGetDatum(construct_array(columns[c], n, kinds[c].type,
												  kinds[c].length, kinds[c].length > 0,
												  kinds[c].align));
	QueryRun(retry ? &record_retries : &record_ends, args, NULL);
}

static bool
IsPlainlyDelivered(const LeaseAnswer *answer)
{
	return answer->verdict == LEASE_DELIVERED && answer->error[0] == '\0';
}

/* Whether this is still the row of the attempt. */
static bool
IsOfAttempt(const TupleTableSlot *row, const LeaseAnswer *answer)
{
	return DatumGetInt64(row->tts_values[QUEUE_ID]) == answer->id &&
		DatumGetInt32(row->tts_values[QUEUE_ATTEMPTS]) == answer->attempts &&
		!row->tts_isnull[QUEUE_LEASED_UNTIL];
}

static void
CopyColumn(TupleTableSlot *to, int column, const TupleTableSlot *from, int from_column)
{
	to->tts_values[column] = from->tts_values[from_column];
	to->tts_isnull[column] = from->tts_isnull[from_column];
}

/* Fills a row of the history with a delivered push; state is its text. */
static void
FillHistory(TupleTableSlot *slot, const TupleTableSlot *row, const LeaseAnswer *answer,
			Datum state)
{
	CopyColumn(slot, HISTORY_ID, row, QUEUE_ID);
	CopyColumn(slot, HISTORY_CHANNEL, row, QUEUE_CHANNEL);
	CopyColumn(slot, HISTORY_KIND, row, QUEUE_KIND);
	CopyColumn(slot, HISTORY_TEMPLATE_ID, row, QUEUE_TEMPLATE_ID);
	CopyColumn(slot, HISTORY_MINUTES, row, QUEUE_MINUTES);
	CopyColumn(slot, HISTORY_TASK_ID, row, QUEUE_TASK_ID);
	CopyColumn(slot, HISTORY_USER_IDS, row, QUEUE_USER_IDS);
	CopyColumn(slot, HISTORY_ADDRESS, row, QUEUE_ADDRESS);
	CopyColumn(slot, HISTORY_DUE_AT, row, QUEUE_DUE_AT);
	CopyColumn(slot, HISTORY_ATTEMPTS, row, QUEUE_ATTEMPTS);
	DirectSet(slot, HISTORY_STATE, state);
	DirectSet(slot, HISTORY_SENT_AT, TimestampTzGetDatum(answer->sent_at));
	DirectSet(slot, HISTORY_ENDED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	if (answer->status != 0)
		DirectSet(slot, HISTORY_LAST_STATUS, Int32GetDatum(answer->status));
}

/*
 * Record what was plainly delivered, and leave the other answers, and those
 * whose row has been changed or is held, in the list; returns how many.
 */
static int
RecordDelivered(DirectTable *queue, DirectTable *history, LeaseAnswer **answers,
				int nanswers)
{
	Datum		state = CStringGetTextDatum(StateName(LEASE_DELIVERED));
	int			left = 0;

	for (int i = 0; i < nanswers; i++)
	{
		LeaseAnswer *answer = answers[i];
		ItemPointerData tid = answer->tid;
		TupleTableSlot *row = NULL;

		if (IsPlainlyDelivered(answer))
			row = DirectFetch(queue, &tid);
		if (row != NULL && IsOfAttempt(row, answer) && DirectDelete(queue, &tid))
		{
			FillHistory(DirectNew(history), row, answer, state);
			DirectInsert(history);
		}
		else
			answers[left++] = answer;
	}
	return left;
}

static int
RecordDirectly(LeaseAnswer **answers, int nanswers)
{
	DirectTable queue,
				history;

	if (!DirectOpen(&queue, CatalogGet()->queue_table, &OutboxQueueLayout))
		return nanswers;
	if (DirectOpen(&history, CatalogGet()->history_table, &history_layout))
	{
		nanswers = RecordDelivered(&queue, &history, answers, nanswers);
		DirectClose(&history);
	}
	DirectClose(&queue);
	return nanswers;
}

/* The ids of the last result. */
static Datum
IdsOfResult(int n)
{
	int64	   *ids = palloc(Max(n, 1) * sizeof(int64));
	bool		isnull;

	for (int i = 0; i < n; i++)
		ids[i] = DatumGetInt64(QueryValue(i, 1, &isnull));
	return ArrayOfInt8(ids, n);
}

/*
 * Lock the rows of answers.  Mark those that others hold, and leave the rest in
 * the list; returns how many.
 */
static int
LockFree(LeaseAnswer **answers, int nanswers)
{
	int64	   *ids = palloc(nanswers * sizeof(int64));
	Datum		args[2];
	int			nheld;
	int			left = 0;

	for (int i = 0; i < nanswers; i++)
		ids[i] = answers[i]->id;
	args[0] = ArrayOfInt8(ids, nanswers);
	nheld = (int) QueryRun(&lock_rows, args, NULL);
	if (nheld == nanswers)
		return nanswers;
	args[1] = IdsOfResult(nheld);
	nheld = (int) QueryRun(&held_rows, args, NULL);
	for (int i = 0; i < nanswers; i++)
	{
		bool		isnull;

		for (int j = 0; j < nheld && !answers[i]->held; j++)
			answers[i]->held = DatumGetInt64(QueryValue(j, 1, &isnull)) == answers[i]->id;
		if (!answers[i]->held)
			answers[left++] = answers[i];
	}
	return left;
}

/*
 * LeaseRecord records what became of pushes.  Those that somebody else has
 * taken meanwhile are left alone; those of rows that somebody holds are marked,
 * to be recorded later.
 *
 * careful: after an error, that ids may be in the history already, of rows that
 * somebody has queued again by hand; else these are an error.
 */
void
LeaseRecord(LeaseAnswer *answers, int nanswers, bool careful)
{
	LeaseAnswer **left = palloc(nanswers * sizeof(LeaseAnswer *));
	QueryScope	scope;

	for (int i = 0; i < nanswers; i++)
	{
		answers[i].held = false;
		left[i] = &answers[i];
	}
	QueryBegin(&scope);
	if (!careful)
		nanswers = RecordDirectly(left, nanswers);
	if (nanswers > 0)
	{
		QueryPlanByIndex();
		nanswers = LockFree(left, nanswers);
		RecordThroughSql(left, nanswers, false);
		RecordThroughSql(left, nanswers, true);
	}
	QueryEnd(&scope);
}
