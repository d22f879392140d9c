/*
 * remind_mark.c
 *		Marking reminders as fired: an UPDATE of many rows that are locked.
 *
 * Half of the price of a reminder is this: a new version of the row and an
 * entry in two indexes.  So it goes past the executor (direct.c) while it can,
 * which saves over a quarter of a tick; else it is an UPDATE through SQL.
 *
 * The rows were locked by a statement of this transaction.  So nothing is
 * waited for here, and what does not succeed is an error.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/memutils.h"

#include "array.h"
#include "direct.h"
#include "query.h"
#include "remind_mark.h"

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

#define MARK_NARGS 7

/*
 * Row n has the ids from first to last of one flat array.  A place is of one
 * table, and another may inherit from it: so it must be the user's as well.
 */
static OwnerQuery mark_fired = {
	"UPDATE %1$s.coupon_remind r SET fired = u.fired::%1$s.remind_bitmap,"
	" notifications = ($5)[u.first : u.last]"
	" FROM unnest($1, $2, $3, $4, $6) AS u (tid, fired, first, last, user_id)"
	" WHERE r.ctid = u.tid AND r.user_id = u.user_id AND r.template_id = $7",
	MARK_NARGS, {TIDARRAYOID, INT8ARRAYOID, INT4ARRAYOID, INT4ARRAYOID, INT8ARRAYOID,
	INT8ARRAYOID, INT8OID}
};

static Datum
MakeArray(Datum *elements, int n, Oid type)
{
	if (type == TIDOID)
		return PointerGetDatum(construct_array(elements, n, type, sizeof(ItemPointerData),
											   false, TYPALIGN_SHORT));
	return PointerGetDatum(construct_array(elements, n, type, sizeof(int32),
										   true, TYPALIGN_INT));
}

/* Not marked, they would fire again. */
static void
RaiseNotMarked(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("reminders cannot be marked as fired"),
			 errhint("Look for triggers and rules on coupon_remind.")));
}

static void
MarkThroughSql(int64 template_id, const RemindMark *rows, int nrows)
{
	Datum	   *column = palloc(3 * nrows * sizeof(Datum));
	int64	   *fired = palloc(nrows * sizeof(int64));
	int64	   *users = palloc(nrows * sizeof(int64));
	int64	   *ids;
	Datum		args[MARK_NARGS];
	int			nids = 0;

	for (int i = 0; i < nrows; i++)
		nids += rows[i].nids;
	ids = palloc(nids * sizeof(int64));
	nids = 0;
	for (int i = 0; i < nrows; i++)
	{
		column[i] = PointerGetDatum(&rows[i].tid);
		fired[i] = (int64) rows[i].fired;
		users[i] = rows[i].user_id;
		column[nrows + i] = Int32GetDatum(nids + 1);
		for (int j = 0; j < rows[i].nids; j++)
			ids[nids++] = rows[i].ids[j];
		column[2 * nrows + i] = Int32GetDatum(nids);
	}
	args[0] = MakeArray(column, nrows, TIDOID);
	args[1] = ArrayOfInt8(fired, nrows);
	args[2] = MakeArray(column + nrows, nrows, INT4OID);
	args[3] = MakeArray(column + 2 * nrows, nrows, INT4OID);
	args[4] = ArrayOfInt8(ids, nids);
	args[5] = ArrayOfInt8(users, nrows);
	args[6] = Int64GetDatum(template_id);
	if (QueryRun(&mark_fired, args, NULL) != nrows)
		RaiseNotMarked();
}

static void
FillSlot(TupleTableSlot *slot, int64 template_id, const RemindMark *row)
{
	int			minutes = RemindFarthest(row->bitmap & ~row->fired);

	memset(slot->tts_isnull, false, COLUMNS * sizeof(bool));
	slot->tts_values[COLUMN_USER_ID] = Int64GetDatum(row->user_id);
	slot->tts_values[COLUMN_TEMPLATE_ID] = Int64GetDatum(template_id);
	slot->tts_values[COLUMN_BITMAP] = RemindBitmapGetDatum(row->bitmap);
	slot->tts_values[COLUMN_FIRED] = RemindBitmapGetDatum(row->fired);
	slot->tts_values[COLUMN_NEXT_MINUTES] = Int16GetDatum(minutes);
	slot->tts_isnull[COLUMN_NEXT_MINUTES] = minutes == 0;
	slot->tts_values[COLUMN_NOTIFICATIONS] = ArrayOfInt8(row->ids, row->nids);
}

static void
MarkDirectly(DirectTable *table, int64 template_id, const RemindMark *rows, int nrows)
{
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext,
													  "coupon fired reminder",
													  ALLOCSET_SMALL_SIZES);

	for (int i = 0; i < nrows; i++)
	{
		TupleTableSlot *slot = DirectNew(table);
		MemoryContext caller = MemoryContextSwitchTo(row_context);
		ItemPointerData tid = rows[i].tid;

		FillSlot(slot, template_id, &rows[i]);
		MemoryContextSwitchTo(caller);
		if (!DirectUpdate(table, &tid, true))
			RaiseNotMarked();
		MemoryContextReset(row_context);
	}
	MemoryContextDelete(row_context);
	DirectClose(table);
}

/*
 * RemindMarkFired stores rows of a template, of the table given, at least one,
 * all locked by this transaction.  Between QueryBegin and QueryEnd of the
 * caller's.
 */
void
RemindMarkFired(Oid relation, int64 template_id, const RemindMark *rows, int nrows)
{
	DirectTable table;

	if (DirectOpen(&table, relation, &layout))
		MarkDirectly(&table, template_id, rows, nrows);
	else
		MarkThroughSql(template_id, rows, nrows);
}
