/*
 * row_writer.c
 *		Reading and writing rows of our own tables by the executor's row functions.
 *
 * Reminders and notifications come a few at a time, and each is written four
 * times: it fires, waits, is leased, is over.  Starting a statement for a few
 * rows costs more than the rows.  So the rows are found along an index and given
 * to ExecSimpleRelationInsert, -Update and -Delete, which logical replication
 * applies its changes by (execReplication.c).  These fire row triggers, check
 * constraints, compute generated columns and write the indexes.
 *
 * What they leave out of a statement: triggers FOR EACH STATEMENT, rules, row
 * security and tables that inherit.  docs/operations.md says so.
 *
 * Columns of ours are found by name, so a table may have more of them.
 *
 * Locks: the table as an INSERT or UPDATE does, to the end of the transaction.
 * A row is locked before it is changed (RowWriterLock), and nobody is waited
 * for there.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/attached.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/row_writer.h"

static bool
IsOurs(const RowWriter *writer, AttrNumber attno)
{
	for (int c = 0; c < writer->ncolumns; c++)
	{
		if (writer->attno[c] == attno)
			return true;
	}
	return false;
}

/* Defaults of the columns that somebody has added. */
static void
PrepareDefaults(RowWriter *writer)
{
	TupleDesc	desc = RelationGetDescr(writer->rel);

	writer->defaults = palloc0(desc->natts * sizeof(ExprState *));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Expr	   *expr;

		if (att->attisdropped || att->attgenerated != '\0' || IsOurs(writer, i + 1))
			continue;
		expr = (Expr *) build_column_default(writer->rel, i + 1);
		if (expr != NULL)
			writer->defaults[i] = ExecPrepareExpr(expr, writer->estate);
	}
}

/* As a statement has them: for triggers AFTER UPDATE OF. */
static Bitmapset *
UpdatedColumns(const RowWriter *writer, uint32 updated)
{
	Bitmapset  *set = NULL;

	for (int c = 0; c < writer->ncolumns; c++)
	{
		if (updated & (1 << c))
			set = bms_add_member(set, writer->attno[c] - FirstLowInvalidHeapAttributeNumber);
	}
	return set;
}

/*
 * RowWriterOpen locks a table and prepares to read and write its rows, as they
 * are now: it takes a snapshot, which is active up to RowWriterClose.  columns:
 * those of ours, by which rows are read and filled; updated: a bit for each of them
 * that updates change.  Raises VC009 where a column is missing, or the table is
 * none.
 *
 * Writers are closed in the reverse order.  After an error the (sub)transaction
 * cleans up in place of RowWriterClose.
 */
void
RowWriterOpen(RowWriter *writer, Oid relation, const InstalledColumn *columns,
			  int ncolumns, uint32 updated)
{
	EState	   *estate;
	MemoryContext old;

	Assert(ncolumns <= ROW_WRITER_COLUMNS);
	PreventCommandIfReadOnly("INSERT");
	PreventCommandIfParallelMode("INSERT");
	memset(writer, 0, sizeof(RowWriter));
	writer->rel = table_open(relation, RowExclusiveLock);
	if (writer->rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("\"%s\" is not an ordinary table",
						RelationGetRelationName(writer->rel))));
	writer->ncolumns = ncolumns;
	InstalledFindColumns(writer->rel, columns, ncolumns, writer->attno);

	AttachedCheck(list_make1_oid(relation));
	PushActiveSnapshot(GetTransactionSnapshot());
	writer->estate = estate = CreateExecutorState();
	old = MemoryContextSwitchTo(estate->es_query_cxt);
	CompatInitRangeTable(estate, writer->rel, UpdatedColumns(writer, updated));
	writer->info = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->info, writer->rel, 1, NULL, 0);
	/* AFTER triggers find it here, and ExecCloseResultRelations. */
	estate->es_opened_result_relations = lappend(NIL, writer->info);
	estate->es_output_cid = GetCurrentCommandId(true);
	estate->es_snapshot = GetActiveSnapshot();
	ExecOpenIndices(writer->info, false);
	CompatEvalPlanQualInit(&writer->epq, estate);
	writer->read = table_slot_create(writer->rel, &estate->es_tupleTable);
	writer->write = ExecInitExtraTupleSlot(estate, RelationGetDescr(writer->rel),
										   &TTSOpsVirtual);
	PrepareDefaults(writer);
	MemoryContextSwitchTo(old);
	AfterTriggerBeginQuery();
}

/* Whether an index has just these columns, of every row, in ascending order. */
static bool
IsIndexOn(const RowWriter *writer, Relation index, const int *columns, int ncolumns)
{
	Form_pg_index form = index->rd_index;

	if (index->rd_rel->relam != BTREE_AM_OID || !form->indisvalid ||
		form->indnkeyatts != ncolumns ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;
	/* As the planner: older snapshots may miss rows in it. */
	if (form->indcheckxmin &&
		!TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							   TransactionXmin))
		return false;
	for (int i = 0; i < ncolumns; i++)
	{
		if (form->indkey.values[i] != writer->attno[columns[i]] || index->rd_indoption[i] != 0)
			return false;
	}
	return true;
}

/*
 * RowWriterScan begins a walk along the index on just these columns, over the
 * rows that fit the keys, whose attributes are those of the index.  An earlier
 * walk ends.  Raises VC009 where there is no such index.
 */
void
RowWriterScan(RowWriter *writer, const int *columns, int ncolumns, ScanKey keys, int nkeys)
{
	Relation	index = NULL;
	MemoryContext caller;

	for (int i = 0; i < writer->info->ri_NumIndices && index == NULL; i++)
	{
		if (IsIndexOn(writer, writer->info->ri_IndexRelationDescs[i], columns, ncolumns))
			index = writer->info->ri_IndexRelationDescs[i];
	}
	if (index == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("table \"%s\" lacks an index that its rows are found by",
						RelationGetRelationName(writer->rel)),
				 errdetail("It is the one on %d columns that begin with \"%s\".", ncolumns,
						   NameStr(TupleDescAttr(RelationGetDescr(writer->rel),
												 writer->attno[columns[0]] - 1)->attname)),
				 errhint("Create the index again as the documentation lists it.")));
	for (int i = 0; i < nkeys; i++)
		keys[i].sk_collation = index->rd_indcollation[keys[i].sk_attno - 1];
	/* A scan keeps memory that it allocates as it goes. */
	caller = MemoryContextSwitchTo(writer->estate->es_query_cxt);
	if (writer->scan != NULL && writer->scan->indexRelation != index)
	{
		index_endscan(writer->scan);
		writer->scan = NULL;
	}
	if (writer->scan == NULL)
		writer->scan = CompatIndexBeginScan(writer->rel, index, writer->estate->es_snapshot,
											nkeys);
	index_rescan(writer->scan, keys, nkeys, NULL, 0);
	ItemPointerSetInvalid(&writer->after);
	MemoryContextSwitchTo(caller);
}

/*
 * RowWriterPassOver goes on behind an entry that another walk over the same equal keys has
 * come to: a B-tree has these in the order of their row pointers.
 */
void
RowWriterPassOver(RowWriter *writer, const ItemPointerData *entry)
{
	writer->after = *entry;
}

/* The next entry of the index whose row is to be seen; false: there is none. */
static bool
NextEntry(RowWriter *writer)
{
	ItemPointer entry;

	while ((entry = index_getnext_tid(writer->scan, ForwardScanDirection)) != NULL)
	{
		if (ItemPointerIsValid(&writer->after) && ItemPointerCompare(entry, &writer->after) <= 0)
			continue;
		writer->entry = *entry; /* which changes to the row's own */
		if (index_fetch_heap(writer->scan, writer->read))
			return true;
	}
	return false;
}

/*
 * RowWriterNext reads the next row of the walk into the columns, where it stays
 * until another is read; false: there is none.
 */
bool
RowWriterNext(RowWriter *writer)
{
	MemoryContext caller = MemoryContextSwitchTo(writer->estate->es_query_cxt);
	bool		found;

	CHECK_FOR_INTERRUPTS();
	found = NextEntry(writer);
	MemoryContextSwitchTo(caller);
	if (!found)
		return false;
	slot_getallattrs(writer->read);
	for (int c = 0; c < writer->ncolumns; c++)
	{
		writer->values[c] = writer->read->tts_values[writer->attno[c] - 1];
		writer->isnull[c] = writer->read->tts_isnull[writer->attno[c] - 1];
	}
	return true;
}

/* Whether the row that was read bears the mark of a transaction that holds it, or did. */
static bool
MayBeHeld(const RowWriter *writer)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(writer->read, false, NULL);

	return (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/* BEFORE triggers look for a newer version of their row, which has to be ours. */
static bool
HasTriggersBefore(const RowWriter *writer)
{
	const TriggerDesc *triggers = writer->info->ri_TrigDesc;

	return triggers != NULL &&
		(triggers->trig_update_before_row || triggers->trig_delete_before_row);
}

/*
 * RowWriterLock locks the row that was read; false: another transaction has
 * changed it, or holds it.  What was read of it stays where it is, on its page.
 *
 * mode: LockTupleExclusive for a row that is to be deleted, else
 * LockTupleNoKeyExclusive.
 *
 * rarely_met: hardly anybody else is ever at such a row.  Then one that is free is
 * not locked, which spares a WAL record, and whoever takes it before it is written
 * is waited for; if the row has changed then, that is an error.
 */
bool
RowWriterLock(RowWriter *writer, LockTupleMode mode, bool rarely_met)
{
	TM_FailureData failure;
	ItemPointerData tid = writer->read->tts_tid;

	if (rarely_met && !MayBeHeld(writer) && !HasTriggersBefore(writer))
		return true;
	if (table_tuple_lock(writer->rel, &tid, writer->estate->es_snapshot, writer->read,
						 writer->estate->es_output_cid, mode,
						 LockWaitSkip, 0, &failure) != TM_Ok)
		return false;
	slot_getallattrs(writer->read);
	return true;
}

/*
 * RowWriterClear begins a new row, of nulls, to be filled and inserted.
 */
void
RowWriterClear(RowWriter *writer)
{
	memset(writer->isnull, true, sizeof(writer->isnull));
}

/* Puts our columns into the slot that is written; the others are there. */
static void
Fill(RowWriter *writer)
{
	for (int c = 0; c < writer->ncolumns; c++)
	{
		writer->write->tts_values[writer->attno[c] - 1] = writer->values[c];
		writer->write->tts_isnull[writer->attno[c] - 1] = writer->isnull[c];
	}
	ExecStoreVirtualTuple(writer->write);
	ItemPointerSetInvalid(&writer->write->tts_tid);
}

/*
 * RowWriterInsert inserts the row that was filled.
 *
 * Here and below the executor runs in the memory of the query, as in a statement:
 * what triggers are called with is looked up at the first row, and used for all.
 */
void
RowWriterInsert(RowWriter *writer)
{
	TupleTableSlot *slot = ExecClearTuple(writer->write);
	MemoryContext caller;

	for (int i = 0; i < slot->tts_tupleDescriptor->natts; i++)
	{
		slot->tts_isnull[i] = true;
		if (writer->defaults[i] != NULL)
			slot->tts_values[i] =
				ExecEvalExprSwitchContext(writer->defaults[i],
										  GetPerTupleExprContext(writer->estate),
										  &slot->tts_isnull[i]);
	}
	Fill(writer);
	caller = MemoryContextSwitchTo(writer->estate->es_query_cxt);
	ExecSimpleRelationInsert(writer->info, writer->estate, slot);
	MemoryContextSwitchTo(caller);
	ResetPerTupleExprContext(writer->estate);
}

/*
 * RowWriterUpdate replaces the row that was read, and is locked, by the columns
 * as they have been set since.  False: a trigger has prevented it.
 */
bool
RowWriterUpdate(RowWriter *writer)
{
	TupleTableSlot *slot = ExecClearTuple(writer->write);
	int			natts = slot->tts_tupleDescriptor->natts;
	MemoryContext caller;

	memcpy(slot->tts_values, writer->read->tts_values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, writer->read->tts_isnull, natts * sizeof(bool));
	Fill(writer);
	caller = MemoryContextSwitchTo(writer->estate->es_query_cxt);
	ExecSimpleRelationUpdate(writer->info, writer->estate, &writer->epq, writer->read, slot);
	MemoryContextSwitchTo(caller);
	ResetPerTupleExprContext(writer->estate);
	return ItemPointerIsValid(&slot->tts_tid);
}

/*
 * RowWriterDelete deletes the row that was read, and is locked.
 */
void
RowWriterDelete(RowWriter *writer)
{
	MemoryContext caller = MemoryContextSwitchTo(writer->estate->es_query_cxt);

	ExecSimpleRelationDelete(writer->info, writer->estate, &writer->epq, writer->read);
	MemoryContextSwitchTo(caller);
	ResetPerTupleExprContext(writer->estate);
}

/*
 * RowWriterClose fires what triggers wait for the end of a statement, and makes
 * all of it visible.
 */
void
RowWriterClose(RowWriter *writer)
{
	if (writer->scan != NULL)
		index_endscan(writer->scan);
	AfterTriggerEndQuery(writer->estate);
	EvalPlanQualEnd(&writer->epq);
	ExecResetTupleTable(writer->estate->es_tupleTable, false);
	ExecCloseResultRelations(writer->estate);
	FreeExecutorState(writer->estate);
	PopActiveSnapshot();
	table_close(writer->rel, NoLock);
	CommandCounterIncrement();
}
