/*
 * rows.c
 *		Reading user_coupon and coupon_template through their indexes, below
 *		the level of SQL.
 *
 * Three things need it, and SQL cannot do them well.  The limit check must see
 * rows of transactions that are still open, so that a user who presses twice
 * waits for the first press instead of taking a second unit of stock.  The
 * count after a crash must use a certain index, where a planner that has seen
 * no statistics yet may read the whole campaign.  And an id that does not
 * exist must cost one index probe.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "store/rows.h"
#include "store/user_filter.h"

/* An index scan with everything that has to be closed again. */
typedef struct RowScan
{
	Relation	heap;
	Relation	index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
} RowScan;

/* The heap is open and locked; the slot is made with the first row. */
static void
BeginScan(RowScan *rs, Relation heap, Oid index, Snapshot snapshot,
		  ScanKey keys, int nkeys, bool index_only)
{
	rs->heap = heap;
	rs->index = index_open(index, AccessShareLock);
	rs->slot = NULL;
	rs->scan = CompatIndexBeginScan(rs->heap, rs->index, snapshot, nkeys);
	rs->scan->xs_want_itup = index_only;
	index_rescan(rs->scan, keys, nkeys, NULL, 0);
}

/*
 * Fetch the next row; false at the end.  Most scans find nothing, and those
 * cost no slot.
 */
static bool
NextRow(RowScan *rs, ScanDirection direction)
{
	if (rs->slot == NULL)
	{
		if (index_getnext_tid(rs->scan, direction) == NULL)
			return false;
		rs->slot = table_slot_create(rs->heap, NULL);
		if (index_fetch_heap(rs->scan, rs->slot))
			return true;
	}
	return index_getnext_slot(rs->scan, direction, rs->slot);
}

static void
EndScan(RowScan *rs)
{
	index_endscan(rs->scan);
	if (rs->slot != NULL)
		ExecDropSingleTupleTableSlot(rs->slot);
	index_close(rs->index, AccessShareLock);
	table_close(rs->heap, AccessShareLock);
}

static void
KeyInt8(ScanKey key, int column, StrategyNumber strategy, RegProcedure proc,
		int64 value)
{
	ScanKeyInit(key, column, strategy, proc, Int64GetDatum(value));
}

static int64
SlotInt8(TupleTableSlot *slot, AttrNumber att)
{
	bool		isnull;

	return DatumGetInt64(slot_getattr(slot, att, &isnull));
}

/* Whether the row was made by an UPDATE rather than by an INSERT. */
static bool
IsUpdatedVersion(TupleTableSlot *slot)
{
	bool		should_free;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, &should_free);
	bool		updated = (tuple->t_data->t_infomask & HEAP_UPDATED) != 0;

	if (should_free)
		heap_freetuple(tuple);
	return updated;
}

static bool
HasRequestId(TupleTableSlot *slot, AttrNumber att, const char *request_id)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, att, &isnull);
	text	   *stored;

	if (isnull)
		return false;
	stored = DatumGetTextPP(value);
	return VARSIZE_ANY_EXHDR(stored) == strlen(request_id) &&
		memcmp(VARDATA_ANY(stored), request_id, strlen(request_id)) == 0;
}

/*
 * Take one row into the account; false when no further row can matter.
 */
static bool
AddRow(const AttrNumber *column, TupleTableSlot *slot, const char *request_id,
	   RowsOfUser *rows)
{
	bool		isnull;
	int32		seq = DatumGetInt32(slot_getattr(slot, column[COUPON_RECEIVE_SEQ], &isnull));

	rows->last_seq = Max(rows->last_seq, seq);
	if (request_id == NULL)
		return false;			/* the scan runs backward: this is the last */
	if (!HasRequestId(slot, column[COUPON_REQUEST_ID], request_id))
		return true;

	rows->repeated = true;
	rows->coupon_id = SlotInt8(slot, column[COUPON_ID]);
	rows->receive_seq = seq;
	rows->use_end = DatumGetTimestampTz(slot_getattr(slot, column[COUPON_USE_END], &isnull));
	return false;
}

/* Many probes of one partition share what opening it costs. */
struct RowsLeaf
{
	CatalogLeaf leaf;
	RowScan		scan;
	SnapshotData dirty;			/* the scan points to it */
};

static void
SetUserKeys(ScanKey keys, int64 template_id, int64 user_id)
{
	KeyInt8(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, template_id);
	KeyInt8(&keys[1], 2, BTEqualStrategyNumber, F_INT8EQ, user_id);
}

/*
 * The lock goes with the scan: the insert takes its locks in the order in
 * which DDL does, the parent's first.
 */
static void
OpenLeaf(RowsLeaf *leaf, int number, ScanKey keys)
{
	CatalogOpenLeaf(number, &leaf->leaf);
	InitDirtySnapshot(leaf->dirty);
	BeginScan(&leaf->scan, leaf->leaf.rel, leaf->leaf.user_index, &leaf->dirty,
			  keys, 2, false);
}

/* Add up the rows of the scan; see RowsProbe. */
static void
ReadUserRows(RowsLeaf *leaf, const char *request_id, RowsOfUser *rows,
			 RowsOpenClaim *open)
{
	memset(rows, 0, sizeof(*rows));
	if (open != NULL)
		open->xid = InvalidTransactionId;
	while (NextRow(&leaf->scan, BackwardScanDirection))
	{
		if (!TransactionIdIsValid(leaf->dirty.xmin))
		{
			/* A row that an open transaction is deleting still counts. */
			if (!AddRow(leaf->leaf.column, leaf->scan.slot, request_id, rows))
				break;
		}

		/*
		 * Of a row being updated the old version is alive, and counted.
		 */
		else if (open != NULL && !IsUpdatedVersion(leaf->scan.slot))
		{
			open->xid = leaf->dirty.xmin;
			open->speculative_token = leaf->dirty.speculativeToken;
			break;
		}
	}
}

/*
 * RowsProbe finds how many coupons of a template a user has had, and the one
 * claimed with this request id (NULL: do not look).
 *
 * It reads with SnapshotDirty: what is committed now, whatever the isolation
 * level, and what is not committed yet.  Where an open transaction has inserted
 * such a row, the account is not complete: "open" tells which, or the row is
 * passed over if "open" is NULL.
 *
 * Since an index scan with this snapshot can miss a row while it is being
 * updated, the unique index has the last word at the insert.
 */
void
RowsProbe(int64 template_id, int64 user_id, const char *request_id,
		  RowsOfUser *rows, RowsOpenClaim *open)
{
	ScanKeyData keys[2];
	RowsLeaf	leaf;

	SetUserKeys(keys, template_id, user_id);
	OpenLeaf(&leaf, CatalogLeafNumber(user_id), keys);
	ReadUserRows(&leaf, request_id, rows, open);
	EndScan(&leaf.scan);
}

/*
 * RowsOpenLeaf opens a partition for RowsProbeLeaf, which is RowsProbe for one
 * of its users; RowsCloseLeaf closes it.
 */
RowsLeaf *
RowsOpenLeaf(int number)
{
	RowsLeaf   *leaf = palloc(sizeof(RowsLeaf));
	ScanKeyData keys[2];

	SetUserKeys(keys, 0, 0);
	OpenLeaf(leaf, number, keys);
	return leaf;
}

void
RowsProbeLeaf(RowsLeaf *leaf, int64 template_id, int64 user_id,
			  const char *request_id, RowsOfUser *rows, RowsOpenClaim *open)
{
	ScanKeyData keys[2];

	SetUserKeys(keys, template_id, user_id);
	index_rescan(leaf->scan.scan, keys, 2, NULL, 0);
	ReadUserRows(leaf, request_id, rows, open);
}

void
RowsCloseLeaf(RowsLeaf *leaf)
{
	EndScan(&leaf->scan);
	pfree(leaf);
}

/*
 * RowsWaitFor waits until that transaction has ended, or taken its row back.
 * The caller holds nothing that it may need.
 */
void
RowsWaitFor(const RowsOpenClaim *open)
{
	if (open->speculative_token != 0)
		SpeculativeInsertionWait(open->xid, open->speculative_token);
	else
		XactLockTableWait(open->xid, NULL, NULL, XLTW_None);
}

/*
 * RowsCountIssued counts the coupons of a template that its stock in this
 * database has given out, past the watermark.
 *
 * by_id: read all ids past the watermark, through the index on (id), for a
 * template with many coupons; else all coupons of the template.
 */
int64
RowsCountIssued(int64 template_id, int64 watermark, bool by_id,
				Snapshot snapshot)
{
	ScanKeyData key;
	int64		count = 0;

	if (by_id)
		KeyInt8(&key, 1, BTGreaterStrategyNumber, F_INT8GT, watermark);
	else
		KeyInt8(&key, 1, BTEqualStrategyNumber, F_INT8EQ, template_id);

	for (int i = 0; i < COUPON_PARTITIONS; i++)
	{
		CatalogLeaf leaf;
		RowScan		rs;

		CatalogOpenLeaf(i, &leaf);
		BeginScan(&rs, leaf.rel, by_id ? leaf.id_index : leaf.user_index, snapshot,
				  &key, 1, false);
		while (NextRow(&rs, ForwardScanDirection))
		{
			bool		isnull;
			int32		holder;

			CHECK_FOR_INTERRUPTS();
			holder = DatumGetInt32(slot_getattr(rs.slot, leaf.column[COUPON_HOLDER],
												&isnull));
			if (!isnull && holder == HOLDER_DATABASE &&
				SlotInt8(rs.slot, leaf.column[COUPON_ID]) > watermark &&
				SlotInt8(rs.slot, leaf.column[COUPON_TEMPLATE_ID]) == template_id)
				count++;
		}
		EndScan(&rs);
	}
	return count;
}

/*
 * RowsLoadUserFilter notes all users who have rows of a template in the filter
 * of user_filter.c, and returns the number of index entries read; it stops where
 * there are more than "upto".
 *
 * It reads the index and nothing else, whatever snapshot would see the rows:
 * an entry of a dead row does no harm, and one of a prepared transaction must
 * not be missed.  A row whose entry is still on its way has been noted by the
 * one who inserts it.
 */
int64
RowsLoadUserFilter(int64 template_id, int64 upto)
{
	Oid			relation = CatalogGet()->template_table;
	int64		read = 0;
	ScanKeyData key;

	KeyInt8(&key, 1, BTEqualStrategyNumber, F_INT8EQ, template_id);
	for (int i = 0; i < COUPON_PARTITIONS && read <= upto; i++)
	{
		CatalogLeaf leaf;
		RowScan		rs;

		CatalogOpenLeaf(i, &leaf);
		BeginScan(&rs, leaf.rel, leaf.user_index, SnapshotAny, &key, 1, true);
		while (read <= upto &&
			   index_getnext_tid(rs.scan, ForwardScanDirection) != NULL)
		{
			bool		isnull;
			Datum		user = index_getattr(rs.scan->xs_itup, 2,
											 rs.scan->xs_itupdesc, &isnull);

			CHECK_FOR_INTERRUPTS();
			UserFilterAdd(relation, template_id, DatumGetInt64(user));
			read++;
		}
		EndScan(&rs);
	}
	return read;
}

/* Whether the row in a slot was inserted by this transaction. */
static bool
IsOwnRow(TupleTableSlot *slot)
{
	HeapTupleHeader header = ExecFetchSlotHeapTuple(slot, false, NULL)->t_data;

	/* A frozen row keeps a number that comes again some day. */
	return !HeapTupleHeaderXminFrozen(header) &&
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(header));
}

/*
 * RowsTemplateExists tells whether there is such a template, as committed now, for
 * the price of one index probe; own: whether this transaction has written its row.
 */
bool
RowsTemplateExists(int64 template_id, bool *own)
{
	ScanKeyData key;
	RowScan		rs;
	Oid			primary_key;
	Relation	templates = CatalogOpenTemplates(&primary_key);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());	/* with the lock */
	bool		found;

	KeyInt8(&key, 1, BTEqualStrategyNumber, F_INT8EQ, template_id);
	BeginScan(&rs, templates, primary_key, snapshot, &key, 1, false);
	found = NextRow(&rs, ForwardScanDirection);
	*own = found && IsOwnRow(rs.slot);
	EndScan(&rs);
	UnregisterSnapshot(snapshot);
	return found;
}
