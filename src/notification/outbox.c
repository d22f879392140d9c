/*
 * outbox.c
 *		The durable outbox of notifications: adding and withdrawing.
 *
 * A row is one request, with as many recipients as its channel takes at a
 * time: it is cut when it is added, and so keeps its id and its recipients
 * over all attempts, without a second table, and with a hundredth of the rows
 * where a hundred share a request.  A recipient is found by the id of the row,
 * which the caller keeps (coupon_remind.notifications), not by an index.
 *
 * Adding is part of the transaction that the notification tells of.  Leases and
 * answers are in lease.c; the network, outside any transaction, is in
 * bgworker/.
 *
 * Locks: a withdrawal holds the row, as does whoever leases it or records an
 * answer; each looks at it again when he has it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/array.h"
#include "base/catalog.h"
#include "base/channel_names.h"
#include "base/commit_wakeup.h"
#include "base/id.h"
#include "base/owner_query.h"
#include "notification/outbox.h"

PG_FUNCTION_INFO_V1(coupon_notification_sane);

/* In a history nobody has to take them at a time. */
#define MISSED_IN_A_ROW 1000

#define NOTIFICATION_BOTH \
	{"id", INT8OID}, {"channel", TEXTOID}, {"kind", TEXTOID}, {"template_id", INT8OID}, \
	{"minutes", INT2OID}, {"task_id", INT8OID}, {"user_ids", INT8ARRAYOID}, \
	{"address", TEXTOID}, {"due_at", TIMESTAMPTZOID}, {"attempts", INT4OID}, \
	{"last_status", INT4OID}, {"last_error", TEXTOID}, {"last_answer", TEXTOID}

static const InstalledColumn queue_columns[] = {
	NOTIFICATION_BOTH, {"next_at", TIMESTAMPTZOID}, {"first_attempt", INT4OID},
	{"leased_until", TIMESTAMPTZOID}, {"lane", INT2OID}
};

static const InstalledColumn history_columns[] = {
	NOTIFICATION_BOTH, {"state", TEXTOID}, {"sent_at", TIMESTAMPTZOID}, {"ended_at", TIMESTAMPTZOID}
};

/* Without a channel it waits; a template that a restore has yet to bring has no shop. */
static OwnerQuery batch_and_shop = {
	"SELECT (SELECT batch_size FROM %1$s.coupon_channel WHERE channel OPERATOR(pg_catalog.=) $1),"
	" (SELECT shop_number FROM %1$s.coupon_template WHERE id OPERATOR(pg_catalog.=) $2)",
	2, {TEXTOID, INT8OID}
};

/* A lease that has run out is nobody's. */
#define NOT_LEASED \
	" AND (leased_until IS NULL OR leased_until OPERATOR(pg_catalog.<=)" \
	"  pg_catalog.clock_timestamp())"

static OwnerQuery delete_of_task = {
	"DELETE FROM %1$s.coupon_notification WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY("
	" SELECT id FROM %1$s.coupon_notification WHERE task_id OPERATOR(pg_catalog.=) $1"
	" AND (leased_until IS NULL OR leased_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp())"
	" FOR UPDATE SKIP LOCKED))",
	1, {INT8OID}
};

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

/* Which lane a kind of notification goes to, see OUTBOX_LANES. */
static int
LaneOf(const char *kind, int64 shop_number)
{
	OutboxClass class = strcmp(kind, "coupon") == 0 ? OUTBOX_BULK : OUTBOX_MOMENT;

	return class * OUTBOX_LANES + (int) (shop_number & (OUTBOX_LANES - 1));
}

/* How many recipients share a row, and where it goes. */
static void
PlaceRows(OutboxAdded *added)
{
	Datum		args[2];
	int			batch_size;
	int64		shop_number;
	bool		no_channel;
	bool		no_shop;

	args[0] = CStringGetTextDatum(added->event.channel);
	args[1] = Int64GetDatum(added->event.template_id);
	QueryRun(&batch_and_shop, args, NULL);
	batch_size = DatumGetInt32(QueryValue(0, 1, &no_channel));
	shop_number = DatumGetInt64(QueryValue(0, 2, &no_shop));
	added->in_a_row = no_channel ? 1 : batch_size;
	added->lane = LaneOf(added->event.kind, no_shop ? 0 : shop_number);
}

/*
 * OutboxOpenQueue opens coupon_notification, for leases and answers too.
 */
void
OutboxOpenQueue(RowWriter *queue)
{
	RowWriterOpen(queue, CatalogGet()->queue_table, queue_columns, lengthof(queue_columns),
				  1 << NOTIFICATION_ATTEMPTS | 1 << NOTIFICATION_LAST_STATUS |
				  1 << NOTIFICATION_LAST_ERROR | 1 << NOTIFICATION_LAST_ANSWER | 1 << QUEUE_NEXT_AT |
				  1 << QUEUE_LEASED_UNTIL | 1 << QUEUE_FIRST_ATTEMPT);
}

/*
 * OutboxOpenHistory opens coupon_notification_history.
 */
void
OutboxOpenHistory(RowWriter *history)
{
	RowWriterOpen(history, CatalogGet()->history_table, history_columns,
				  lengthof(history_columns), 0);
}

/* What is the same in both tables; the users are those from "first". */
static void
FillRow(RowWriter *table, const OutboxAdded *added, int first)
{
	const OutboxEvent *event = &added->event;
	int			n = Min(added->nusers - first, added->in_a_row);

	RowWriterClear(table);
	RowWriterSet(table, NOTIFICATION_ID, Int64GetDatum(added->row_ids[first / added->in_a_row]));
	RowWriterSet(table, NOTIFICATION_CHANNEL, CStringGetTextDatum(event->channel));
	RowWriterSet(table, NOTIFICATION_KIND, CStringGetTextDatum(event->kind));
	RowWriterSetIf(table, NOTIFICATION_TEMPLATE_ID, event->template_id != 0,
				   Int64GetDatum(event->template_id));
	RowWriterSetIf(table, NOTIFICATION_MINUTES, event->minutes != 0, Int16GetDatum(event->minutes));
	RowWriterSetIf(table, NOTIFICATION_TASK_ID, event->task_id != 0, Int64GetDatum(event->task_id));
	if (event->address != NULL)
		RowWriterSet(table, NOTIFICATION_ADDRESS, CStringGetTextDatum(event->address));
	RowWriterSet(table, NOTIFICATION_USER_IDS, ArrayOfInt8(added->users + first, n));
	RowWriterSet(table, NOTIFICATION_DUE_AT, TimestampTzGetDatum(event->due_at));
	RowWriterSet(table, NOTIFICATION_ATTEMPTS, Int32GetDatum(0));
}

/* A row for each slice of the users. */
static void
AddRows(const OutboxAdded *added)
{
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "coupon notification",
													  ALLOCSET_SMALL_SIZES);
	RowWriter	table;

	if (added->missed)
		OutboxOpenHistory(&table);
	else
		OutboxOpenQueue(&table);
	for (int first = 0; first < added->nusers; first += added->in_a_row)
	{
		MemoryContext caller = MemoryContextSwitchTo(row_context);
		Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());

		FillRow(&table, added, first);
		if (added->missed)
		{
			RowWriterSet(&table, HISTORY_STATE, CStringGetTextDatum("missed"));
			RowWriterSet(&table, HISTORY_ENDED_AT, now);
		}
		else
		{
			/* of each row its own: a lease goes on where the last one stopped */
			RowWriterSet(&table, QUEUE_NEXT_AT, now);
			RowWriterSet(&table, QUEUE_FIRST_ATTEMPT, Int32GetDatum(0));
			RowWriterSet(&table, QUEUE_LANE, Int16GetDatum(added->lane));
		}
		RowWriterInsert(&table);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
	}
	RowWriterClose(&table);
	MemoryContextDelete(row_context);
}

/*
 * coupon_notification_sane(channel, kind, user_ids): the CHECK of
 * coupon_notification.  Returns true, or raises 23514 that names the column and the
 * rule it breaks.
 */
Datum
coupon_notification_sane(PG_FUNCTION_ARGS)
{
	const char *kind = text_to_cstring(PG_GETARG_TEXT_PP(1));
	ArrayType  *users = PG_GETARG_ARRAYTYPE_P(2);

	if (ChannelOfName(text_to_cstring(PG_GETARG_TEXT_PP(0))) < 0)
		InstalledRefuse("coupon_notification", "channel", "must be sms, email, app, ch3 or ch4");
	if (strcmp(kind, "reminder") != 0 && strcmp(kind, "coupon") != 0 && strcmp(kind, "test") != 0)
		InstalledRefuse("coupon_notification", "kind", "must be reminder, coupon or test");
	if (ArrayGetNItems(ARR_NDIM(users), ARR_DIMS(users)) == 0 || array_contains_nulls(users))
		InstalledRefuse("coupon_notification", "user_ids", "must hold at least one user, and no null");
	PG_RETURN_BOOL(true);
}

/*
 * OutboxBegin begins to gather notifications of an event, in the current memory context;
 * missed: they came too late to be sent, and go to the history.  Up to OutboxEnd
 * between QueryBegin and QueryEnd of the caller's.
 */
OutboxAdded *
OutboxBegin(const OutboxEvent *event, bool missed)
{
	OutboxAdded *added = palloc0(sizeof(OutboxAdded));

	added->event = *event;
	added->missed = missed;
	if (missed)
		added->in_a_row = MISSED_IN_A_ROW;
	else
		PlaceRows(added);
	added->room = 64;
	added->users = palloc(added->room * sizeof(int64));
	added->row_ids = palloc(added->room * sizeof(int64));
	return added;
}

/*
 * OutboxPut adds a user, and returns the id of the row that he will be in.
 */
int64
OutboxPut(OutboxAdded *added, int64 user_id)
{
	int			row = added->nusers / added->in_a_row;

	if (added->nusers == added->room)
	{
		added->room *= 2;
		added->users = repalloc(added->users, added->room * sizeof(int64));
		added->row_ids = repalloc(added->row_ids, added->room * sizeof(int64));
	}
	if (row == added->nrows)
		added->row_ids[added->nrows++] = IdNext();
	added->users[added->nusers++] = user_id;
	return added->row_ids[row];
}

/*
 * OutboxTakeBack leaves out the user that was put last.
 */
void
OutboxTakeBack(OutboxAdded *added)
{
	added->nusers--;
}

/*
 * OutboxEnd adds what was put, and wakes the worker at commit.
 */
void
OutboxEnd(OutboxAdded *added)
{
	if (added->nusers > 0)
		AddRows(added);
	if (added->nusers > 0 && !added->missed)
		WakeWorkerAtCommit(WAKE_DELIVER);
	pfree(added->users);
	pfree(added->row_ids);
	pfree(added);
}

/*
 * OutboxAddCoupons tells users of the coupons that a task has just given them,
 * through each of the channels (bits by number).  The notifications come and go with the
 * coupons, in this transaction.  Between QueryBegin and QueryEnd of the caller's.
 */
void
OutboxAddCoupons(int channels, int64 template_id, int64 task_id,
				 const int64 *users, int nusers)
{
	for (int channel = 0; channel < CHANNELS; channel++)
	{
		OutboxEvent event = {.kind = "coupon", .channel = ChannelName(channel),
			.template_id = template_id, .task_id = task_id,
		.due_at = GetCurrentTimestamp()};
		OutboxAdded *added;

		if ((channels & (1 << channel)) == 0)
			continue;
		added = OutboxBegin(&event, false);
		for (int i = 0; i < nusers; i++)
			(void) OutboxPut(added, users[i]);
		OutboxEnd(added);
	}
}

/*
 * OutboxWithdraw takes a user out of a notification that nobody is sending.  False: it
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

/*
 * OutboxWithdrawTask takes back what a task announces and nobody is sending.  Between
 * QueryBegin and QueryEnd of the caller's.
 */
void
OutboxWithdrawTask(int64 task_id)
{
	Datum		arg = Int64GetDatum(task_id);

	QueryRun(&delete_of_task, &arg, NULL);
}
