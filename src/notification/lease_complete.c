/*
 * lease_complete.c
 *		What became of notifications that were leased: to the history, or back.
 *
 * Only the attempt that is waited for counts, and a row is found by its id:
 * somebody may have changed it meanwhile.  The history may have its id already,
 * of a row that was queued again by hand: the new one takes its place.
 *
 * Locks: rows of the queue, to the end of the transaction, a short one.  Nobody
 * is waited for: a session that looks at a row FOR UPDATE and forgets its
 * transaction would stop all channels.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/owner_query.h"
#include "notification/lease.h"
#include "notification/outbox.h"

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
		case LEASE_GIVE_BACK:
			break;
	}
	elog(ERROR, "verdict %d is not an end", verdict);
}

/* Reads the row of an id; false: there is none. */
static bool
Find(RowWriter *table, int64 id)
{
	static const int columns[] = {NOTIFICATION_ID};
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	RowWriterScan(table, columns, lengthof(columns), &key, 1);
	return RowWriterNext(table);
}

/* Whether the row that was read is still that of the attempt. */
static bool
IsOfAttempt(const RowWriter *queue, const LeaseAnswer *answer)
{
	return DatumGetInt32(queue->values[NOTIFICATION_ATTEMPTS]) == answer->attempts &&
		!queue->isnull[QUEUE_LEASED_UNTIL];
}

static void
SetStatus(RowWriter *table, const LeaseAnswer *answer)
{
	RowWriterSetIf(table, NOTIFICATION_LAST_STATUS, answer->status != 0,
				   Int32GetDatum(answer->status));
	RowWriterSetIf(table, NOTIFICATION_LAST_ERROR, answer->error[0] != '\0',
				   CStringGetTextDatum(answer->error));
}

static void
PutBack(RowWriter *queue, const LeaseAnswer *answer)
{
	queue->isnull[QUEUE_LEASED_UNTIL] = true;
	RowWriterSet(queue, QUEUE_NEXT_AT, TimestampTzGetDatum(answer->next_at));
	if (answer->untried)
		RowWriterSet(queue, QUEUE_FIRST_ATTEMPT,
					 Int32GetDatum(DatumGetInt32(queue->values[QUEUE_FIRST_ATTEMPT]) + 1));
	SetStatus(queue, answer);
	(void) RowWriterUpdate(queue);
}

/* False: another transaction holds what the history has of this id. */
static bool
MoveToHistory(RowWriter *queue, RowWriter *history, const LeaseAnswer *answer,
			  bool careful)
{
	if (careful && Find(history, answer->id))
	{
		if (!RowWriterLock(history, LockTupleExclusive, false))
			return false;
		RowWriterDelete(history);
	}
	memcpy(history->values, queue->values, NOTIFICATION_COLUMNS * sizeof(Datum));
	memcpy(history->isnull, queue->isnull, NOTIFICATION_COLUMNS * sizeof(bool));
	SetStatus(history, answer);
	RowWriterSet(history, HISTORY_STATE, CStringGetTextDatum(StateName(answer->verdict)));
	RowWriterSetIf(history, HISTORY_SENT_AT, answer->sent_at != DT_NOBEGIN,
				   TimestampTzGetDatum(answer->sent_at));
	RowWriterSet(history, HISTORY_ENDED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	RowWriterInsert(history);
	RowWriterDelete(queue);
	return true;
}

/* False: others hold what it came from. */
static bool
GiveBack(RowWriter *queue, RowWriter *history, LeaseAnswer *answer, bool careful,
		 LeaseGiver give_back)
{
	ArrayType  *users = DatumGetArrayTypeP(queue->values[NOTIFICATION_USER_IDS]);
	LeaseGiven	given = give_back(answer->id, DatumGetInt64(queue->values[NOTIFICATION_TEMPLATE_ID]),
								  (const int64 *) ARR_DATA_PTR(users),
								  ArrayGetNItems(ARR_NDIM(users), ARR_DIMS(users)));

	if (given == LEASE_HELD)
		return false;
	if (given == LEASE_GIVEN)
	{
		RowWriterDelete(queue);
		return true;
	}
	answer->verdict = LEASE_MISSED;
	return MoveToHistory(queue, history, answer, careful);
}

/*
 * LeaseRecord records what became of notifications.  Those that another has taken
 * meanwhile are left alone; those whose row another transaction holds, or is
 * changing, are marked as held, to be recorded later.
 *
 * give_back: called for those that are given back, in the transaction.
 *
 * careful: after an error, that ids may be in the history already; else these are
 * an error (looking each time would cost a fiftieth of a notification).
 */
void
LeaseRecord(LeaseAnswer *answers, int nanswers, bool careful, LeaseGiver give_back)
{
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext,
													  "coupon answer",
													  ALLOCSET_SMALL_SIZES);
	QueryScope	scope;
	RowWriter	queue,
				history;

	QueryBegin(&scope);
	OutboxOpenQueue(&queue);
	OutboxOpenHistory(&history);
	for (int i = 0; i < nanswers; i++)
	{
		LeaseAnswer *answer = &answers[i];
		MemoryContext caller = MemoryContextSwitchTo(row_context);

		answer->held = false;
		if (Find(&queue, answer->id) && IsOfAttempt(&queue, answer))
		{
			bool		retry = answer->verdict == LEASE_RETRY;

			answer->held = !RowWriterLock(&queue, retry ? LockTupleNoKeyExclusive :
										  LockTupleExclusive, !careful);
			if (!answer->held && retry)
				PutBack(&queue, answer);
			else if (!answer->held && answer->verdict == LEASE_GIVE_BACK)
				answer->held = !GiveBack(&queue, &history, answer, careful, give_back);
			else if (!answer->held)
				answer->held = !MoveToHistory(&queue, &history, answer, careful);
		}
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
	}
	RowWriterClose(&history);
	RowWriterClose(&queue);
	QueryEnd(&scope);
	MemoryContextDelete(row_context);
}
