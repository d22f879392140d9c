/*
 * remind_rows.c
 *		Reminders of a sale that are due: read, and marked as fired.
 *
 * Half of the price of a reminder is the mark: a new version of the row and an
 * entry in two indexes.  So it goes past the executor (direct.c) while it can:
 * a walk along the index, and each row is marked where it is met.  Else all of
 * them are read and locked by one statement, and marked by another.
 *
 * Nobody is waited for: a row that somebody else holds, or has changed since
 * the snapshot of this look, is passed over.  So what is marked is a row as it
 * was when the look began, either way.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "array.h"
#include "catalog.h"
#include "query.h"
#include "remind_rows.h"

/* Columns of coupon_remind as it is installed. */
enum
{
	COLUMN_USER_ID,
	COLUMN_TEMPLATE_ID,
	COLUMN_BITMAP,
	COLUMN_FIRED,
	COLUMN_NEXT_MINUTES,
	COLUMN_NOTIFICATIONS,
	COLUMNS
};

static const Oid types[COLUMNS] = {INT8OID, INT8OID, InvalidOid, InvalidOid, INT2OID, INT8ARRAYOID};

static const DirectLayout layout = {COLUMNS, 1, 4, types};

/* What becomes of rows that were read by a statement, by columns for another. */
struct RemindMarks
{
	Datum	   *tid;
	Datum	   *first;			/* of its ids, from 1 */
	Datum	   *last;
	int64	   *fired;
	int64	   *user_id;
	int64	   *ids;
	int			nids;
};

static OwnerQuery take_due = {
	"SELECT ctid, user_id, bitmap, fired, notifications FROM %1$s.coupon_remind"
	" WHERE template_id OPERATOR(pg_catalog.=) $1 AND next_minutes OPERATOR(pg_catalog.>=) $2"
	"  AND next_minutes OPERATOR(pg_catalog.<=) $3"
	" LIMIT $4 FOR UPDATE SKIP LOCKED",
	4, {INT8OID, INT2OID, INT2OID, INT4OID}
};

#define MARK_NARGS 7

/*
 * Row n has the ids from first to last of one flat array.  A place is of one
 * table, and another may inherit from it: so it must be the user's as well.
 */
static OwnerQuery mark_fired = {
	"UPDATE %1$s.coupon_remind r SET fired = u.fired::%1$s.remind_bitmap,"
	" notifications = ($5)[u.first : u.last]"
	" FROM unnest($1, $2, $3, $4, $6) AS u (tid, fired, first, last, user_id)"
	" WHERE r.ctid OPERATOR(pg_catalog.=) u.tid AND r.user_id OPERATOR(pg_catalog.=) u.user_id"
	"  AND r.template_id OPERATOR(pg_catalog.=) $7",
	MARK_NARGS, {TIDARRAYOID, INT8ARRAYOID, INT4ARRAYOID, INT4ARRAYOID, INT8ARRAYOID,
	INT8ARRAYOID, INT8OID}
};

/* False: it has to be done through SQL. */
static bool
BeginWalk(RemindRows *rows, int nearest, int farthest)
{
	static const AttrNumber columns[] = {COLUMN_TEMPLATE_ID + 1, COLUMN_NEXT_MINUTES + 1};
	ScanKeyData keys[3];

	if (!DirectOpen(&rows->table, CatalogGet()->remind_table, &layout))
		return false;
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(rows->template_id));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT2GE,
				Int16GetDatum(nearest));
	ScanKeyInit(&keys[2], 2, BTLessEqualStrategyNumber, F_INT2LE,
				Int16GetDatum(farthest));
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!DirectScanBegin(&rows->table, columns, lengthof(columns), keys, lengthof(keys)))
	{
		PopActiveSnapshot();
		DirectClose(&rows->table);
		return false;
	}
	rows->row_context = AllocSetContextCreate(CurrentMemoryContext, "coupon fired reminder",
											  ALLOCSET_SMALL_SIZES);
	return true;
}

static void
ReadAll(RemindRows *rows, int nearest, int farthest)
{
	Datum		args[4];
	int			nids = 0;
	int			n;

	args[0] = Int64GetDatum(rows->template_id);
	args[1] = Int16GetDatum(nearest);
	args[2] = Int16GetDatum(farthest);
	args[3] = Int32GetDatum(rows->limit);
	rows->nread = n = (int) QueryRun(&take_due, args, NULL);
	rows->read = palloc(n * sizeof(RemindRow));
	for (int i = 0; i < n; i++)
	{
		RemindRow  *row = &rows->read[i];
		bool		isnull;

		row->tid = *(ItemPointer) DatumGetPointer(QueryValue(i, 1, &isnull));
		row->user_id = DatumGetInt64(QueryValue(i, 2, &isnull));
		row->bitmap = DatumGetRemindBitmap(QueryValue(i, 3, &isnull));
		row->fired = DatumGetRemindBitmap(QueryValue(i, 4, &isnull));
		row->notifications = QueryValue(i, 5, &row->no_notifications);
		nids += pg_popcount64(row->bitmap);
	}
	rows->marks = palloc(sizeof(struct RemindMarks));
	rows->marks->tid = palloc(n * sizeof(Datum));
	rows->marks->first = palloc(n * sizeof(Datum));
	rows->marks->last = palloc(n * sizeof(Datum));
	rows->marks->fired = palloc(n * sizeof(int64));
	rows->marks->user_id = palloc(n * sizeof(int64));
	rows->marks->ids = palloc(nids * sizeof(int64));
	rows->marks->nids = 0;
}

/*
 * RemindRowsBegin begins a look at the rows of a sale whose next reminder lies
 * between so many minutes before the start; it ends when "limit" of them are
 * marked.  The snapshot is taken here.  Up to RemindRowsEnd between QueryBegin
 * and QueryEnd of the caller's.
 */
void
RemindRowsBegin(RemindRows *rows, int64 template_id, int nearest, int farthest, int limit)
{
	memset(rows, 0, sizeof(RemindRows));
	rows->template_id = template_id;
	rows->limit = limit;
	rows->direct = BeginWalk(rows, nearest, farthest);
	if (!rows->direct)
		ReadAll(rows, nearest, farthest);
}

static bool
Walk(RemindRows *rows)
{
	RemindRow  *row = &rows->row;
	const TupleTableSlot *slot;

	if (rows->nmarked == rows->limit)
		return false;
	CHECK_FOR_INTERRUPTS();
	MemoryContextReset(rows->row_context);
	slot = DirectScanNext(&rows->table);
	if (slot == NULL)
		return false;
	row->tid = slot->tts_tid;
	row->user_id = DatumGetInt64(slot->tts_values[COLUMN_USER_ID]);
	row->bitmap = DatumGetRemindBitmap(slot->tts_values[COLUMN_BITMAP]);
	row->fired = DatumGetRemindBitmap(slot->tts_values[COLUMN_FIRED]);
	row->notifications = slot->tts_values[COLUMN_NOTIFICATIONS];
	row->no_notifications = slot->tts_isnull[COLUMN_NOTIFICATIONS];
	return true;
}

/*
 * RemindRowsNext returns the next row, until another is asked for; NULL: there
 * is none.
 */
const RemindRow *
RemindRowsNext(RemindRows *rows)
{
	if (rows->direct)
		return Walk(rows) ? &rows->row : NULL;
	if (rows->nrows == rows->nread)
		return NULL;
	rows->row = rows->read[rows->nrows++];
	return &rows->row;
}

static bool
MarkHere(RemindRows *rows, RemindBitmap fired, const int64 *ids)
{
	TupleTableSlot *slot = DirectNewVersion(&rows->table);
	int			minutes = RemindFarthest(rows->row.bitmap & ~fired);
	MemoryContext caller = MemoryContextSwitchTo(rows->row_context);
	ItemPointerData tid = rows->row.tid;

	DirectSet(slot, COLUMN_FIRED, RemindBitmapGetDatum(fired));
	DirectSet(slot, COLUMN_NEXT_MINUTES, Int16GetDatum(minutes));
	slot->tts_isnull[COLUMN_NEXT_MINUTES] = minutes == 0;
	DirectSet(slot, COLUMN_NOTIFICATIONS, ArrayOfInt8(ids, pg_popcount64(fired)));
	MemoryContextSwitchTo(caller);
	/* Another tick may be at the same row, again and again: so always a lock. */
	return DirectLock(&rows->table, &tid) && DirectUpdate(&rows->table, &tid);
}

static void
MarkLater(RemindRows *rows, RemindBitmap fired, const int64 *ids)
{
	struct RemindMarks *marks = rows->marks;
	int			n = rows->nmarked;

	marks->tid[n] = PointerGetDatum(&rows->read[rows->nrows - 1].tid);
	marks->fired[n] = (int64) fired;
	marks->user_id[n] = rows->row.user_id;
	marks->first[n] = Int32GetDatum(marks->nids + 1);
	memcpy(marks->ids + marks->nids, ids, pg_popcount64(fired) * sizeof(int64));
	marks->nids += pg_popcount64(fired);
	marks->last[n] = Int32GetDatum(marks->nids);
}

/*
 * RemindRowsMark stores the last row with what has fired of it now, and the ids
 * of these, in the order of the bits; at the latest RemindRowsEnd does it.
 * False: somebody else has changed the row, or holds it.
 */
bool
RemindRowsMark(RemindRows *rows, RemindBitmap fired, const int64 *ids)
{
	if (!rows->direct)
		MarkLater(rows, fired, ids);
	else if (!MarkHere(rows, fired, ids))
		return false;
	rows->nmarked++;
	return true;
}

/* The rows are locked: what does not succeed would fire again. */
static void
MarkThroughSql(RemindRows *rows)
{
	const struct RemindMarks *marks = rows->marks;
	int			n = rows->nmarked;
	Datum		args[MARK_NARGS];

	args[0] = PointerGetDatum(construct_array(marks->tid, n, TIDOID, sizeof(ItemPointerData),
											  false, TYPALIGN_SHORT));
	args[1] = ArrayOfInt8(marks->fired, n);
	args[2] = PointerGetDatum(construct_array(marks->first, n, INT4OID, sizeof(int32),
											  true, TYPALIGN_INT));
	args[3] = PointerGetDatum(construct_array(marks->last, n, INT4OID, sizeof(int32),
											  true, TYPALIGN_INT));
	args[4] = ArrayOfInt8(marks->ids, marks->nids);
	args[5] = ArrayOfInt8(marks->user_id, n);
	args[6] = Int64GetDatum(rows->template_id);
	if (QueryRun(&mark_fired, args, NULL) != n)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("reminders cannot be marked as fired"),
				 errhint("Look for triggers and rules on coupon_remind.")));
}

/*
 * RemindRowsEnd ends the look, and returns how many rows are marked.
 */
int
RemindRowsEnd(RemindRows *rows)
{
	if (rows->direct)
	{
		DirectScanEnd(&rows->table);
		PopActiveSnapshot();
		DirectClose(&rows->table);
		MemoryContextDelete(rows->row_context);
	}
	else if (rows->nmarked > 0)
		MarkThroughSql(rows);
	return rows->nmarked;
}
