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

#include "base/array.h"
#include "base/id.h"
#include "base/owner_query.h"
#include "notification/lease.h"
#include "notification/outbox.h"

#define KEEP_LEASE USECS_PER_MINUTE

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
		case LEASE_MUTED:
			return "muted";
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
	RowWriterSetIf(table, NOTIFICATION_LAST_ANSWER, answer->text != NULL,
				   answer->text == NULL ? (Datum) 0 : CStringGetTextDatum(answer->text));
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

/* Put what was read from the queue, and changed since, into the history. */
static void
AddToHistory(const RowWriter *queue, RowWriter *history, const LeaseAnswer *answer)
{
	memcpy(history->values, queue->values, NOTIFICATION_COLUMNS * sizeof(Datum));
	memcpy(history->isnull, queue->isnull, NOTIFICATION_COLUMNS * sizeof(bool));
	SetStatus(history, answer);
	RowWriterSet(history, HISTORY_STATE, CStringGetTextDatum(StateName(answer->verdict)));
	RowWriterSetIf(history, HISTORY_SENT_AT, answer->sent_at != DT_NOBEGIN,
				   TimestampTzGetDatum(answer->sent_at));
	RowWriterSet(history, HISTORY_ENDED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	RowWriterInsert(history);
}

/* Lock what the history has of an id, if it has; false: another transaction holds it. */
static bool
LockOld(RowWriter *history, int64 id, bool careful, bool *found)
{
	*found = careful && Find(history, id);
	return !*found || RowWriterLock(history, LockTupleExclusive, false);
}

/* False: another transaction holds what the history has of this id. */
static bool
MoveToHistory(RowWriter *queue, RowWriter *history, const LeaseAnswer *answer,
			  bool careful)
{
	bool		old;

	if (!LockOld(history, answer->id, careful, &old))
		return false;
	if (old)
		RowWriterDelete(history);
	AddToHistory(queue, history, answer);
	RowWriterDelete(queue);
	return true;
}

static bool
IsAmong(int64 id, const LeaseUsers *users)
{
	for (int i = 0; i < users->n; i++)
	{
		if (users->ids[i] == id)
			return true;
	}
	return false;
}

/* The users of a row that are among some, or not. */
static LeaseUsers
Select(const LeaseUsers *all, const LeaseUsers *some, bool among)
{
	int64	   *ids = palloc(Max(all->n, 1) * sizeof(int64));
	LeaseUsers	selected = {0, ids};

	for (int i = 0; i < all->n; i++)
	{
		if (IsAmong(all->ids[i], some) == among)
			ids[selected.n++] = all->ids[i];
	}
	return selected;
}

/* Those who are tried again, under an id of their own: it is another request. */
static void
QueueAgain(RowWriter *queue, LeaseAnswer *answer, int64 id, LeaseUsers users)
{
	strlcpy(answer->error, "the answer names these recipients, to be tried again", sizeof(answer->error));
	SetStatus(queue, answer);
	RowWriterSet(queue, NOTIFICATION_ID, Int64GetDatum(id));
	RowWriterSet(queue, NOTIFICATION_USER_IDS, ArrayOfInt8(users.ids, users.n));
	RowWriterSet(queue, QUEUE_NEXT_AT, TimestampTzGetDatum(answer->next_at));
	queue->isnull[QUEUE_LEASED_UNTIL] = true;
	RowWriterInsert(queue);
}

/* Those who are given up. */
static void
GiveUp(RowWriter *queue, RowWriter *history, LeaseAnswer *answer, LeaseUsers users)
{
	answer->verdict = LEASE_DEAD;
	strlcpy(answer->error, "the answer names these recipients", sizeof(answer->error));
	RowWriterSet(queue, NOTIFICATION_ID, Int64GetDatum(IdNext()));
	RowWriterSet(queue, NOTIFICATION_USER_IDS, ArrayOfInt8(users.ids, users.n));
	AddToHistory(queue, history, answer);
}

/* Its answer is known, but cannot be recorded yet: nobody shall send it again meanwhile. */
static void
KeepLease(RowWriter *queue)
{
	TimestampTz now = GetCurrentTimestamp();

	if (DatumGetTimestampTz(queue->values[QUEUE_LEASED_UNTIL]) > now + KEEP_LEASE / 2)
		return;
	RowWriterSet(queue, QUEUE_LEASED_UNTIL, TimestampTzGetDatum(now + KEEP_LEASE));
	(void) RowWriterUpdate(queue);
}

/*
 * A request whose answer names some of its recipients becomes up to three: those who have got it,
 * under its id, those who are given up, and those who are tried again.  False: others hold
 * what it came from, or its id in the history.
 */
static bool
Divide(RowWriter *queue, RowWriter *history, LeaseAnswer *answer, bool careful, const LeaseOrigin *origin)
{
	ArrayType  *array = DatumGetArrayTypeP(queue->values[NOTIFICATION_USER_IDS]);
	LeaseUsers	users = {ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), (const int64 *) ARR_DATA_PTR(array)};
	LeaseUsers	dead = Select(&users, &answer->dead, true);
	LeaseUsers	others = Select(&users, &answer->dead, false);
	LeaseUsers	again = Select(&others, &answer->again, true);
	LeaseUsers	rest = Select(&others, &answer->again, false);
	int64		again_id = again.n > 0 ? IdNext() : 0;
	LeaseAnswer part = *answer;
	bool		old;

	if (!LockOld(history, answer->id, careful, &old))
		return false;
	if (again.n > 0 && !queue->isnull[NOTIFICATION_TEMPLATE_ID] &&
		origin->move(answer->id, again_id, DatumGetInt64(queue->values[NOTIFICATION_TEMPLATE_ID]),
					 again.ids, again.n) == LEASE_HELD)
	{
		KeepLease(queue);
		return false;
	}
	if (old)
		RowWriterDelete(history);
	RowWriterDelete(queue);		/* what was read of it is still there */
	if (rest.n > 0)
	{
		RowWriterSet(queue, NOTIFICATION_USER_IDS, ArrayOfInt8(rest.ids, rest.n));
		AddToHistory(queue, history, answer);
	}
	if (dead.n > 0)
		GiveUp(queue, history, &part, dead);
	if (again.n > 0)
		QueueAgain(queue, &part, again_id, again);
	return true;
}

/* False: others hold what it came from. */
static bool
GiveBack(RowWriter *queue, RowWriter *history, LeaseAnswer *answer, bool careful,
		 const LeaseOrigin *origin)
{
	ArrayType  *users = DatumGetArrayTypeP(queue->values[NOTIFICATION_USER_IDS]);
	LeaseGiven	given = origin->give_back(answer->id,
										  DatumGetInt64(queue->values[NOTIFICATION_TEMPLATE_ID]),
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
 * origin: called for those that are given back or divided, in the transaction.
 *
 * careful: after an error, that ids may be in the history already; else these are
 * an error (looking each time would cost a fiftieth of a notification).
 */
void
LeaseRecord(LeaseAnswer *answers, int nanswers, bool careful, const LeaseOrigin *origin)
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
				answer->held = !GiveBack(&queue, &history, answer, careful, origin);
			else if (!answer->held && answer->dead.n + answer->again.n > 0)
				answer->held = !Divide(&queue, &history, answer, careful, origin);
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
