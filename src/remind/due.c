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

/* Walk over the rows whose next reminder lies between so many minutes before the start. */
static void
Walk(RemindRows *rows, int nearest, int farthest)
{
	static const int by_time[] = {REMIND_TEMPLATE_ID, REMIND_NEXT_MINUTES};
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(rows->template_id));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT2GE, Int16GetDatum(nearest));
	ScanKeyInit(&keys[2], 2, BTLessEqualStrategyNumber, F_INT2LE, Int16GetDatum(farthest));
	RowWriterScan(&rows->table, by_time, lengthof(by_time), keys, lengthof(keys));
}

static void
Open(RemindRows *rows, int64 template_id, RemindPosition *position, int farthest, int limit)
{
	rows->template_id = template_id;
	rows->position = position;
	rows->farthest = farthest;
	rows->limit = limit;
	rows->nmarked = 0;
	rows->row_context = AllocSetContextCreate(CurrentMemoryContext, "coupon fired reminder",
											  ALLOCSET_SMALL_SIZES);
	RowWriterOpen(&rows->table, CatalogGet()->remind_table, columns, lengthof(columns),
				  1 << REMIND_FIRED | 1 << REMIND_NEXT_MINUTES | 1 << REMIND_NOTIFICATIONS);
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
	Open(rows, template_id, NULL, farthest, limit);
	Walk(rows, nearest, farthest);
}

/*
 * RemindRowsGoOn does the same from a position on, which follows: minute by minute of the
 * next reminders, since rows that are looked at may stay where they are.  Those that are
 * marked move to fewer minutes, behind us.  At the end the position's minutes exceed
 * "farthest".
 */
void
RemindRowsGoOn(RemindRows *rows, int64 template_id, RemindPosition *position, int farthest, int limit)
{
	Open(rows, template_id, position, farthest, limit);
	Walk(rows, position->minutes, position->minutes);
	RowWriterPassOver(&rows->table, &position->entry);
}

/* On to the next minutes; false: there are none. */
static bool
NextMinutes(RemindRows *rows)
{
	RemindPosition *position = rows->position;

	if (position == NULL)
		return false;
	position->minutes += REMIND_STEP_MINUTES;
	ItemPointerSetInvalid(&position->entry);
	if (position->minutes > rows->farthest)
		return false;
	Walk(rows, position->minutes, position->minutes);
	return true;
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

	if (rows->nmarked == rows->limit)
		return NULL;
	while (!RowWriterNext(&rows->table))
	{
		if (!NextMinutes(rows))
			return NULL;
	}
	if (rows->position != NULL)
		rows->position->entry = table->entry;
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
