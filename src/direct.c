/*
 * direct.c
 *		Writing rows of our own tables without the executor.
 *
 * Reminders and pushes come a few at a time, and each is written four times: it
 * fires, waits, is leased, is over.  Starting a statement and evaluating what
 * holds by construction costs more than the rows, so the busy ones go to the
 * table and index access methods themselves, as logical apply does.
 *
 * Only while the table is as it was installed: DirectOpen refuses one that has
 * anything which needs the executor, a trigger, a column, a constraint of
 * somebody's, a rule, or a table that inherits from it.  The caller has a
 * statement for that case, with the same meaning.  He fills rows that satisfy
 * the CHECKs.
 *
 * Rows to be inserted are gathered and go into the table by whole pages, then
 * into the indexes one by one.  A row with a key that is there already is an
 * error.
 *
 * Rows are found by their place, or along an index in its order.
 *
 * Locks: the table as an INSERT or UPDATE does, to the end of the transaction.
 * Rows that somebody else holds are waited for by an update alone.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "direct.h"
#include "installed.h"

/* Whether the table is as it was installed. */
static bool
IsAsInstalled(Relation rel, const DirectLayout *layout)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			nfilled = 0;

	if (desc->natts != layout->ncolumns || rel->trigdesc != NULL ||
		rel->rd_rules != NULL || rel->rd_rel->relforcerowsecurity ||
		rel->rd_rel->relkind != RELKIND_RELATION || rel->rd_rel->relhassubclass ||
		(desc->constr == NULL ? 0 : desc->constr->num_check) != layout->nchecks)
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		if (layout->types[i] != InvalidOid &&
			layout->types[i] != TupleDescAttr(desc, i)->atttypid)
			return false;
		nfilled += TupleDescAttr(desc, i)->attnotnull;
	}
	return nfilled == layout->nfilled &&
		InstalledChecksOnly(rel, RelationGetRelationName(rel));
}

/*
 * DirectOpen locks a table and prepares to write to it, where there is an active
 * snapshot; false: it has to be written through SQL.
 */
bool
DirectOpen(DirectTable *table, Oid relation, const DirectLayout *layout)
{
	PreventCommandIfReadOnly("INSERT");
	memset(table, 0, sizeof(DirectTable));
	table->rel = table_open(relation, RowExclusiveLock);
	if (!IsAsInstalled(table->rel, layout))
	{
		table_close(table->rel, NoLock);
		return false;
	}
	table->estate = CreateExecutorState();
	table->estate->es_output_cid = GetCurrentCommandId(true);
	table->info = makeNode(ResultRelInfo);
	InitResultRelInfo(table->info, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->info, false);
	return true;
}

/* Whether the table reaches so far: it may have been written anew since. */
static bool
HasPlace(DirectTable *table, ItemPointer tid)
{
	BlockNumber block = ItemPointerGetBlockNumber(tid);

	/* Only growing, under our lock. */
	if (block >= table->nblocks)
		table->nblocks = RelationGetNumberOfBlocks(table->rel);
	return block < table->nblocks;
}

/*
 * DirectFetch returns the row at a place as it is committed now, until the next
 * one is fetched; NULL: there is none, or none any more.
 */
TupleTableSlot *
DirectFetch(DirectTable *table, ItemPointer tid)
{
	if (table->read == NULL)
		table->read = table_slot_create(table->rel, NULL);
	if (!HasPlace(table, tid) ||
		!table_tuple_fetch_row_version(table->rel, tid, SnapshotSelf,
									   table->read))
		return NULL;
	slot_getallattrs(table->read);
	return table->read;
}

/* Whether an index has just these columns, of every row, in ascending order. */
static bool
IsIndexOn(Relation index, const AttrNumber *columns, int ncolumns)
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
		if (form->indkey.values[i] != columns[i] || index->rd_indoption[i] != 0)
			return false;
	}
	return true;
}

/*
 * DirectScanBegin begins a walk along an index on just these columns, counted
 * from 1, over the rows that fit the keys, as the active snapshot sees them; the
 * attributes of the keys are those of the index.  False: there is no such index.
 */
bool
DirectScanBegin(DirectTable *table, const AttrNumber *columns, int ncolumns,
				ScanKey keys, int nkeys)
{
	Relation	index = NULL;

	for (int i = 0; i < table->info->ri_NumIndices && index == NULL; i++)
	{
		if (IsIndexOn(table->info->ri_IndexRelationDescs[i], columns, ncolumns))
			index = table->info->ri_IndexRelationDescs[i];
	}
	if (index == NULL)
		return false;
	for (int i = 0; i < nkeys; i++)
		keys[i].sk_collation = index->rd_indcollation[keys[i].sk_attno - 1];
	if (table->read == NULL)
		table->read = table_slot_create(table->rel, NULL);
	table->scan = CompatIndexBeginScan(table->rel, index, GetActiveSnapshot(), nkeys);
	index_rescan(table->scan, keys, nkeys, NULL, 0);
	return true;
}

/*
 * DirectScanNext returns the next row, until one is asked for again; NULL: there
 * is none.  The place is in its tts_tid.
 */
TupleTableSlot *
DirectScanNext(DirectTable *table)
{
	if (!index_getnext_slot(table->scan, ForwardScanDirection, table->read))
		return NULL;
	slot_getallattrs(table->read);
	return table->read;
}

/*
 * DirectScanEnd ends the walk.
 */
void
DirectScanEnd(DirectTable *table)
{
	ExecClearTuple(table->read);
	index_endscan(table->scan);
	table->scan = NULL;
}

/*
 * DirectDelete deletes the row at a place; false: somebody has changed it, or
 * holds it.
 */
bool
DirectDelete(DirectTable *table, ItemPointer tid)
{
	TM_FailureData failure;

	CheckCmdReplicaIdentity(table->rel, CMD_DELETE);
	return table_tuple_delete(table->rel, tid, table->estate->es_output_cid,
							  GetActiveSnapshot(), InvalidSnapshot, false, &failure,
							  false) == TM_Ok;
}

static void
Flush(DirectTable *table)
{
	if (table->nrows == 0)
		return;
	table_multi_insert(table->rel, table->slots, table->nrows,
					   table->estate->es_output_cid, 0, NULL);
	for (int i = 0; i < table->nrows; i++)
	{
		(void) CompatExecInsertIndexTuples(table->info, table->slots[i], table->estate,
										   NULL);
		ResetPerTupleExprContext(table->estate);
	}
	table->nrows = 0;
}

/*
 * DirectNew returns a row to be filled, with nulls in it, for DirectInsert or
 * DirectUpdate.
 */
TupleTableSlot *
DirectNew(DirectTable *table)
{
	TupleTableSlot *slot;

	if (table->nrows == table->nslots)
		table->slots[table->nslots++] =
			MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
	slot = ExecClearTuple(table->slots[table->nrows]);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts * sizeof(bool));
	return slot;
}

/*
 * DirectNewVersion is DirectNew with the columns of the row that was fetched.
 */
TupleTableSlot *
DirectNewVersion(DirectTable *table)
{
	TupleTableSlot *slot = DirectNew(table);
	int			natts = slot->tts_tupleDescriptor->natts;

	memcpy(slot->tts_values, table->read->tts_values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, table->read->tts_isnull, natts * sizeof(bool));
	return slot;
}

/*
 * DirectInsert inserts the row that was filled, at the latest in DirectClose.
 */
void
DirectInsert(DirectTable *table)
{
	TupleTableSlot *slot = table->slots[table->nrows];

	ExecStoreVirtualTuple(slot);
	ExecMaterializeSlot(slot);	/* what it points to may go away */
	if (++table->nrows == DIRECT_ROWS)
		Flush(table);
}

/*
 * DirectMayBeHeld tells whether the row that was fetched bears the mark of
 * somebody who holds it, or did.
 */
bool
DirectMayBeHeld(const DirectTable *table)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(table->read, false, NULL);

	return (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/*
 * DirectLock locks the row that was fetched, at its place; false: somebody has
 * changed it, or holds it.  What was read of it stays where it is, on its page.
 */
bool
DirectLock(DirectTable *table, ItemPointer tid)
{
	TM_FailureData failure;

	return table_tuple_lock(table->rel, tid, GetActiveSnapshot(), table->read,
							table->estate->es_output_cid, LockTupleNoKeyExclusive,
							LockWaitSkip, 0, &failure) == TM_Ok;
}

/*
 * DirectUpdate replaces the row at a place by the one that was filled, and moves
 * the place there; false: somebody has changed it.  Who holds it is waited for:
 * heap_update knows nothing else (it asserts), so lock it before.  That is a WAL
 * record of its own; whoever is hardly ever in the way of others asks
 * DirectMayBeHeld before, and waits for those who take the row in between.
 */
bool
DirectUpdate(DirectTable *table, ItemPointer tid)
{
	TupleTableSlot *slot = table->slots[table->nrows];
	CompatUpdateIndexes update_indexes;
	TM_FailureData failure;
	LockTupleMode lockmode;

	CheckCmdReplicaIdentity(table->rel, CMD_UPDATE);
	ExecStoreVirtualTuple(slot);
	if (table_tuple_update(table->rel, tid, slot, table->estate->es_output_cid,
						   GetActiveSnapshot(), InvalidSnapshot, true, &failure,
						   &lockmode, &update_indexes) != TM_Ok)
		return false;
	CompatExecUpdateIndexTuples(table->info, slot, table->estate, update_indexes);
	*tid = slot->tts_tid;
	ResetPerTupleExprContext(table->estate);
	return true;
}

/*
 * DirectClose writes what is left, and makes all of it visible.  After an
 * error the transaction cleans up in its place.
 */
void
DirectClose(DirectTable *table)
{
	Flush(table);
	for (int i = 0; i < table->nslots; i++)
		ExecDropSingleTupleTableSlot(table->slots[i]);
	if (table->read != NULL)
		ExecDropSingleTupleTableSlot(table->read);
	ExecCloseIndices(table->info);
	FreeExecutorState(table->estate);
	table_close(table->rel, NoLock);
	CommandCounterIncrement();
}
