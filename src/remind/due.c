/*
 * due.c
 *		Reminders of a sale that are due: read, and marked as fired.
 *
 * Half of the price of a reminder is the mark: a new version of the row and an
 * entry in two indexes.  So it is a walk along the index, and each row is marked
 * where it is met (row_writer.c).
 *
 * Nobody is waited for: a row that another transaction holds, or has changed
 * since the snapshot of this look, is passed over.  So what is marked is a row as
 * it was when the look began.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

#include "base/array.h"
#include "base/catalog.h"
#include "remind/due.h"

/* Columns of coupon_remind; next_minutes is computed by the table. */
enum
{
	REMIND_USER_ID,
	REMIND_TEMPLATE_ID,
	REMIND_BITMAP,
	REMIND_FIRED,
	REMIND_NEXT_MINUTES,
	REMIND_NOTIFICATIONS,
};

static const InstalledColumn columns[] = {
	{"user_id", INT8OID}, {"template_id", INT8OID}, {"bitmap", InvalidOid},
	{"fired", InvalidOid}, {"next_minutes", INT2OID}, {"notifications", INT8ARRAYOID}
};

/*
 * RemindRowsBegin begins a look at the rows of a sale whose next reminder lies
 * between so many minutes before the start; it ends when "limit" of them are
 * marked.  The snapshot is taken here.  Up to RemindRowsEnd between QueryBegin
 * and QueryEnd of the caller's.
 */
void
RemindRowsBegin(RemindRows *rows, int64 template_id, int nearest, int farthest, int limit)
{
	static const int by_time[] = {REMIND_TEMPLATE_ID, REMIND_NEXT_MINUTES};
	ScanKeyData keys[3];

	rows->limit = limit;
	rows->nmarked = 0;
	rows->row_context = AllocSetContextCreate(CurrentMemoryContext, "coupon fired reminder",
											  ALLOCSET_SMALL_SIZES);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(template_id));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT2GE, Int16GetDatum(nearest));
	ScanKeyInit(&keys[2], 2, BTLessEqualStrategyNumber, F_INT2LE, Int16GetDatum(farthest));
	RowWriterOpen(&rows->table, CatalogGet()->remind_table, columns, lengthof(columns),
				  1 << REMIND_FIRED | 1 << REMIND_NEXT_MINUTES | 1 << REMIND_NOTIFICATIONS);
	RowWriterScan(&rows->table, by_time, lengthof(by_time), keys, lengthof(keys));
}

/*
 * RemindRowsNext returns the next row, until another is asked for; NULL: there
 * is none.
 */
const RemindRow *
RemindRowsNext(RemindRows *rows)
{
	const RowWriter *table = &rows->table;
	RemindRow  *row = &rows->row;

	if (rows->nmarked == rows->limit || !RowWriterNext(&rows->table))
		return NULL;
	MemoryContextReset(rows->row_context);
	row->user_id = DatumGetInt64(table->values[REMIND_USER_ID]);
	row->bitmap = DatumGetRemindBitmap(table->values[REMIND_BITMAP]);
	row->fired = DatumGetRemindBitmap(table->values[REMIND_FIRED]);
	row->notifications = table->values[REMIND_NOTIFICATIONS];
	row->no_notifications = table->isnull[REMIND_NOTIFICATIONS];
	return row;
}

/*
 * RemindRowsMark stores the last row with what has fired of it now, and the ids
 * of these, in the order of the bits.  False: another transaction has changed the
 * row, or holds it, or a trigger has prevented it.
 */
bool
RemindRowsMark(RemindRows *rows, RemindBitmap fired, const int64 *ids)
{
	MemoryContext caller = MemoryContextSwitchTo(rows->row_context);
	/* Another tick may be at the same rows: always a lock. */
	bool		marked = RowWriterLock(&rows->table, LockTupleNoKeyExclusive, false);

	if (marked)
	{
		RowWriterSet(&rows->table, REMIND_FIRED, RemindBitmapGetDatum(fired));
		RowWriterSet(&rows->table, REMIND_NOTIFICATIONS,
					 ArrayOfInt8(ids, pg_popcount64(fired)));
		marked = RowWriterUpdate(&rows->table);
	}
	MemoryContextSwitchTo(caller);
	rows->nmarked += marked;
	return marked;
}

/*
 * RemindRowsEnd ends the look, and returns how many rows are marked.
 */
int
RemindRowsEnd(RemindRows *rows)
{
	RowWriterClose(&rows->table);
	MemoryContextDelete(rows->row_context);
	return rows->nmarked;
}
