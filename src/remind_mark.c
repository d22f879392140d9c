/*
 * remind_mark.c
 *		Marking reminders as fired: an UPDATE of many rows that are locked.
 *
 * Half of the price of a reminder is this: a new version of the row and an
 * entry in two indexes.  So it goes directly to the table and index access
 * methods, which saves over a quarter of a tick.  All columns are known, and
 * the CHECK of the table holds by construction.  As soon as the table has
 * anything that needs the executor, a trigger, a column, a constraint of
 * somebody's, or a rule, it is an UPDATE through SQL.
 *
 * The rows were locked by a statement of this transaction.  So nothing is
 * waited for here, and what does not succeed is an error.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "utils/array.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
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

/* Row n has the ids from first to last of one flat array. */
static OwnerQuery mark_fired = {
	"UPDATE %1$s.coupon_remind r SET fired = u.fired::%1$s.remind_bitmap,"
	" notifications = ($5)[u.first : u.last]"
	" FROM unnest($1, $2, $3, $4) AS u (tid, fired, first, last)"
	" WHERE r.ctid = u.tid",
	5, {TIDARRAYOID, INT8ARRAYOID, INT4ARRAYOID, INT4ARRAYOID, INT8ARRAYOID}
};

static Datum
MakeArray(Datum *elements, int n, Oid type)
{
	if (type == TIDOID)
		return PointerGetDatum(construct_array(elements, n, type, sizeof(ItemPointerData),
											   false, TYPALIGN_SHORT));
	if (type == INT4OID)
		return PointerGetDatum(construct_array(elements, n, type, sizeof(int32),
											   true, TYPALIGN_INT));
	return PointerGetDatum(construct_array(elements, n, type, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
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
MarkThroughSql(const RemindMark *rows, int nrows)
{
	Datum	   *column = palloc(4 * nrows * sizeof(Datum));
	Datum	   *ids;
	Datum		args[5];
	int			nids = 0;

	for (int i = 0; i < nrows; i++)
		nids += rows[i].nids;
	ids = palloc(nids * sizeof(Datum));
	nids = 0;
	for (int i = 0; i < nrows; i++)
	{
		column[i] = PointerGetDatum(&rows[i].tid);
		column[nrows + i] = RemindBitmapGetDatum(rows[i].fired);
		column[2 * nrows + i] = Int32GetDatum(nids + 1);
		for (int j = 0; j < rows[i].nids; j++)
			ids[nids++] = Int64GetDatum(rows[i].ids[j]);
		column[3 * nrows + i] = Int32GetDatum(nids);
	}
	args[0] = MakeArray(column, nrows, TIDOID);
	args[1] = MakeArray(column + nrows, nrows, INT8OID);
	args[2] = MakeArray(column + 2 * nrows, nrows, INT4OID);
	args[3] = MakeArray(column + 3 * nrows, nrows, INT4OID);
	args[4] = MakeArray(ids, nids, INT8OID);
	if (QueryRun(&mark_fired, args, NULL) != nrows)
		RaiseNotMarked();
}

/* Whether the table is as it was installed. */
static bool
CanMarkDirectly(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	return desc->natts == COLUMNS && desc->constr != NULL &&
		desc->constr->num_check == 1 && rel->trigdesc == NULL &&
		rel->rd_rules == NULL && !rel->rd_rel->relforcerowsecurity;
}

static void
FillSlot(TupleTableSlot *slot, int64 template_id, const RemindMark *row)
{
	Datum		ids[REMIND_CHANNELS * REMIND_SLOTS];
	int			minutes = RemindFarthest(row->bitmap & ~row->fired);

	for (int i = 0; i < row->nids; i++)
		ids[i] = Int64GetDatum(row->ids[i]);
	ExecClearTuple(slot);
	memset(slot->tts_isnull, false, COLUMNS * sizeof(bool));
	slot->tts_values[COLUMN_USER_ID] = Int64GetDatum(row->user_id);
	slot->tts_values[COLUMN_TEMPLATE_ID] = Int64GetDatum(template_id);
	slot->tts_values[COLUMN_BITMAP] = RemindBitmapGetDatum(row->bitmap);
	slot->tts_values[COLUMN_FIRED] = RemindBitmapGetDatum(row->fired);
	slot->tts_values[COLUMN_NEXT_MINUTES] = Int16GetDatum(minutes);
	slot->tts_isnull[COLUMN_NEXT_MINUTES] = minutes == 0;
	slot->tts_values[COLUMN_NOTIFICATIONS] = MakeArray(ids, row->nids, INT8OID);
	ExecStoreVirtualTuple(slot);
}

static void
MarkRow(ResultRelInfo *info, TupleTableSlot *slot, EState *estate, const RemindMark *row)
{
	ItemPointerData tid = row->tid;
	CompatUpdateIndexes update_indexes;
	TM_FailureData failure;
	LockTupleMode lockmode;
	TM_Result	result;

	result = table_tuple_update(info->ri_RelationDesc, &tid, slot, estate->es_output_cid,
								GetActiveSnapshot(), InvalidSnapshot, true, &failure,
								&lockmode, &update_indexes);
	if (result != TM_Ok)
		RaiseNotMarked();
	CompatExecUpdateIndexTuples(info, slot, estate, update_indexes);
}

static void
MarkDirectly(Relation rel, int64 template_id, const RemindMark *rows, int nrows)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *info = makeNode(ResultRelInfo);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	estate->es_output_cid = GetCurrentCommandId(true);
	InitResultRelInfo(info, rel, 0, NULL, 0);
	ExecOpenIndices(info, false);
	for (int i = 0; i < nrows; i++)
	{
		MemoryContext caller = MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));

		FillSlot(slot, template_id, &rows[i]);
		MarkRow(info, slot, estate, &rows[i]);
		MemoryContextSwitchTo(caller);
		ExecClearTuple(slot);
		ResetPerTupleExprContext(estate);
	}
	ExecDropSingleTupleTableSlot(slot);
	ExecCloseIndices(info);
	FreeExecutorState(estate);
	CommandCounterIncrement();
}

/*
 * RemindMarkFired stores rows of a template, of the table given, at least one,
 * all locked by this transaction.  Between QueryBegin and QueryEnd of the
 * caller's.
 */
void
RemindMarkFired(Oid relation, int64 template_id, const RemindMark *rows, int nrows)
{
	Relation	rel = table_open(relation, RowExclusiveLock);

	if (CanMarkDirectly(rel))
		MarkDirectly(rel, template_id, rows, nrows);
	else
		MarkThroughSql(rows, nrows);
	table_close(rel, NoLock);
}
