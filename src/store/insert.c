/*
 * insert.c
 *		Put the rows of claimed coupons into user_coupon.
 *
 * Two ways, one meaning: INSERT … ON CONFLICT DO NOTHING.
 *
 * The direct way goes to the partition and through the table and index access
 * methods, as logical apply does.  ON CONFLICT first looks for a conflict in
 * every unique index and then inserts speculatively; the claim path has looked
 * already, under the user's lock (rows.c), so only the second half is left.
 * It also leaves out the CHECK of user_coupon, whose terms hold by
 * construction here, and our own trigger, which would do nothing.  What it
 * gains over the way through SQL is in docs/design.md.
 *
 * It is taken for a partition on which nothing needs the executor: see
 * CatalogLockForInsert.  As soon as somebody adds a trigger, a column, a
 * constraint or the like, the rows go through SQL.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "base/array.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/owner_query.h"
#include "base/subxact.h"
#include "store/insert.h"
#include "store/user_filter.h"

/* A bare "unnest" of several arrays is the parser's own, whatever the path. */
static OwnerQuery insert_rows = {
	"INSERT INTO %1$s.user_coupon (id, user_id, receive_seq, template_id, source,"
	" holder, received_at, use_start, use_end, request_id)"
	" SELECT i, u, s, $4, $5, 0, $6, $7, $8, $9"
	" FROM unnest($1, $2, $3) AS x (i, u, s)"
	" ON CONFLICT DO NOTHING RETURNING id, user_id, template_id, holder",
	9, {INT8ARRAYOID, INT8ARRAYOID, INT4ARRAYOID, INT8OID, TEXTOID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID}
};

/* Rows that did not come back, and are there. */
static OwnerQuery stored_all_the_same = {
	"SELECT 1 FROM unnest($1, $2) AS x (i, u) JOIN %1$s.user_coupon c"
	" ON c.user_id OPERATOR(pg_catalog.=) x.u AND c.id OPERATOR(pg_catalog.=) x.i LIMIT 1",
	2, {INT8ARRAYOID, INT8ARRAYOID}
};

#define INSERT_CHUNK 1000		/* rows of a batch that are in memory twice */

/* Partitions opened by one call, by hash remainder. */
typedef struct DirectInsert
{
	EState	   *estate;
	ResultRelInfo *open[COUPON_PARTITIONS];
	TupleTableSlot *slot[COUPON_PARTITIONS];
	Datum		values[COUPON_COLUMNS];
	bool		nulls[COUPON_COLUMNS];
} DirectInsert;

/* What InsertAll is to insert. */
typedef struct DirectBatch
{
	const InsertCommon *common;
	InsertRow  *rows;
	int			nrows;
} DirectBatch;

/* The rows of the statement that is running, ascending by id. */
static struct
{
	int64		template_id;
	const InsertRow *rows;
	int			nrows;
}			running;

static int
CompareRowIds(const void *id, const void *row)
{
	int64		left = *(const int64 *) id;
	int64		right = ((const InsertRow *) row)->coupon_id;

	return left < right ? -1 : left > right;
}

/*
 * InsertIsRunning tells whether there are any rows that InsertIsOurs may be
 * asked about.
 */
bool
InsertIsRunning(void)
{
	return running.nrows > 0;
}

/*
 * InsertIsOurs tells triggers on user_coupon that a row is the claim path's own,
 * which the stock counter knows of.  A user's trigger may write others meanwhile.
 */
bool
InsertIsOurs(int64 template_id, int64 user_id, int64 coupon_id)
{
	const InsertRow *row;

	if (!InsertIsRunning() || template_id != running.template_id)
		return false;
	row = bsearch(&coupon_id, running.rows, running.nrows, sizeof(InsertRow),
				  CompareRowIds);
	return row != NULL && row->user_id == user_id;
}

/* Run the statement with our triggers told which rows are ours. */
static void
RunInsertRows(Datum *values, const char *nulls, int64 template_id,
			  const InsertRow *rows, int nrows)
{
	/* Volatile, for PG_FINALLY: a user's trigger may claim as well. */
	volatile int64 outer_template = running.template_id;
	const InsertRow *volatile outer_rows = running.rows;
	volatile int outer_nrows = running.nrows;

	running.template_id = template_id;
	running.rows = rows;
	running.nrows = nrows;
	PG_TRY();
	{
		QueryRun(&insert_rows, values, nulls);
	}
	PG_FINALLY();
	{
		running.template_id = outer_template;
		running.rows = outer_rows;
		running.nrows = outer_nrows;
	}
	PG_END_TRY();
}

/* Whether a row of the result is the one that was sent. */
static bool
IsAsSent(int row, const InsertCommon *common, const InsertRow *sent)
{
	bool		isnull;

	return DatumGetInt64(QueryValue(row, 1, &isnull)) == sent->coupon_id &&
		DatumGetInt64(QueryValue(row, 2, &isnull)) == sent->user_id &&
		DatumGetInt64(QueryValue(row, 3, &isnull)) == common->template_id &&
		DatumGetInt32(QueryValue(row, 4, &isnull)) == 0 && !isnull;
}

/* Whether a row that was not inserted is there. */
static bool
AnyMissingIsStored(const InsertRow *rows, int nrows)
{
	int64	   *ids = palloc(nrows * sizeof(int64));
	int64	   *users = palloc(nrows * sizeof(int64));
	Datum		values[2];
	int			n = 0;

	for (int i = 0; i < nrows; i++)
	{
		if (rows[i].inserted)
			continue;
		ids[n] = rows[i].coupon_id;
		users[n++] = rows[i].user_id;
	}
	values[0] = ArrayOfInt8(ids, n);
	values[1] = ArrayOfInt8(users, n);
	return QueryRun(&stored_all_the_same, values, NULL) > 0;
}

static int
InsertThroughSql(const InsertCommon *common, InsertRow *rows, int nrows)
{
	int64	   *ids = palloc(2 * nrows * sizeof(int64));
	Datum	   *seqs = palloc(nrows * sizeof(Datum));
	Datum		values[9];
	char		nulls[] = "         ";
	QueryScope	scope;
	int			made = 0;

	for (int i = 0; i < nrows; i++)
	{
		ids[i] = rows[i].coupon_id;
		ids[nrows + i] = rows[i].user_id;
		seqs[i] = Int32GetDatum(rows[i].receive_seq);
	}
	values[0] = ArrayOfInt8(ids, nrows);
	values[1] = ArrayOfInt8(ids + nrows, nrows);
	values[2] = PointerGetDatum(construct_array(seqs, nrows, INT4OID, sizeof(int32),
												true, TYPALIGN_INT));
	values[3] = Int64GetDatum(common->template_id);
	values[4] = CStringGetTextDatum(common->source);
	values[5] = TimestampTzGetDatum(common->received_at);
	values[6] = TimestampTzGetDatum(common->use_start);
	values[7] = TimestampTzGetDatum(common->use_end);
	values[8] = (Datum) 0;
	if (common->request_id != NULL)
		values[8] = CStringGetTextDatum(common->request_id);
	else
		nulls[8] = 'n';

	QueryBegin(&scope);
	RunInsertRows(values, nulls, common->template_id, rows, nrows);
	/* Rows come back in the order of insertion, without those in conflict. */
	for (int i = 0; i < nrows; i++)
	{
		rows[i].inserted = made < (int) SPI_processed && IsAsSent(made, common, &rows[i]);
		made += rows[i].inserted;
	}
	/* Units are counted by the rows: nobody else may store them, or others. */
	if (made < (int) SPI_processed ||
		(made < nrows && AnyMissingIsStored(rows, nrows)))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("a trigger or rule on \"user_coupon\" has stored a claimed coupon otherwise"),
				 errdetail("Id, user, template and holder of a claimed coupon are what its stock is counted by."),
				 errhint("Let the trigger return the row with these columns as they are.")));
	QueryEnd(&scope);
	return made;
}

static void
SetColumn(DirectInsert *direct, CouponColumn column, Datum value)
{
	direct->values[column - 1] = value;
	direct->nulls[column - 1] = false;
}

static void
SetCommonColumns(DirectInsert *direct, const InsertCommon *common)
{
	memset(direct->nulls, true, sizeof(direct->nulls));
	SetColumn(direct, COUPON_TEMPLATE_ID, Int64GetDatum(common->template_id));
	SetColumn(direct, COUPON_RECEIVED_AT, TimestampTzGetDatum(common->received_at));
	SetColumn(direct, COUPON_USE_START, TimestampTzGetDatum(common->use_start));
	SetColumn(direct, COUPON_USE_END, TimestampTzGetDatum(common->use_end));
	SetColumn(direct, COUPON_HOLDER, Int32GetDatum(HOLDER_DATABASE));
	SetColumn(direct, COUPON_STATUS, Int16GetDatum(0));
	SetColumn(direct, COUPON_SOURCE, CStringGetTextDatum(common->source));
	if (common->request_id != NULL)
		SetColumn(direct, COUPON_REQUEST_ID,
				  CStringGetTextDatum(common->request_id));
}

/* Open a partition with its indexes, once per call. */
static void
OpenLeaf(DirectInsert *direct, int number)
{
	Relation	rel = table_open(CatalogGet()->leaf[number], NoLock);
	ResultRelInfo *info = makeNode(ResultRelInfo);

	InitResultRelInfo(info, rel, 1, NULL, 0);
	ExecOpenIndices(info, false);
	direct->open[number] = info;
	direct->slot[number] = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsVirtual);
}

static void
CloseLeaves(DirectInsert *direct)
{
	for (int i = 0; i < COUPON_PARTITIONS; i++)
	{
		if (direct->open[i] == NULL)
			continue;
		ExecDropSingleTupleTableSlot(direct->slot[i]);
		ExecCloseIndices(direct->open[i]);
		table_close(direct->open[i]->ri_RelationDesc, NoLock);
	}
	FreeExecutorState(direct->estate);
}

/*
 * Insert one row speculatively, as ON CONFLICT does: a conflict that an index
 * reports takes the row back, and nobody has seen it.
 */
static bool
InsertDirectly(DirectInsert *direct, ResultRelInfo *info, TupleTableSlot *slot)
{
	TransactionId xid = GetCurrentTransactionId();
	uint32		token = SpeculativeInsertionLockAcquire(xid);
	bool		conflict = false;

	table_tuple_insert_speculative(info->ri_RelationDesc, slot,
								   direct->estate->es_output_cid, 0, NULL, token);
	(void) CompatExecInsertIndexTuples(info, slot, direct->estate, &conflict);
	table_tuple_complete_speculative(info->ri_RelationDesc, slot, token, !conflict);
	SpeculativeInsertionLockRelease(xid);
	ResetPerTupleExprContext(direct->estate);
	return !conflict;
}

static int
InsertThroughLeaves(const InsertCommon *common, InsertRow *rows, int nrows)
{
	DirectInsert direct = {0};
	int			made = 0;

	PreventCommandIfReadOnly("coupon claim");
	PreventCommandIfParallelMode("coupon claim");
	direct.estate = CreateExecutorState();
	direct.estate->es_output_cid = GetCurrentCommandId(true);
	SetCommonColumns(&direct, common);

	for (int i = 0; i < nrows; i++)
	{
		int			number = rows[i].leaf;
		TupleTableSlot *slot;

		if (direct.open[number] == NULL)
			OpenLeaf(&direct, number);
		SetColumn(&direct, COUPON_ID, Int64GetDatum(rows[i].coupon_id));
		SetColumn(&direct, COUPON_USER_ID, Int64GetDatum(rows[i].user_id));
		SetColumn(&direct, COUPON_RECEIVE_SEQ, Int32GetDatum(rows[i].receive_seq));

		slot = ExecClearTuple(direct.slot[number]);
		memcpy(slot->tts_values, direct.values, sizeof(direct.values));
		memcpy(slot->tts_isnull, direct.nulls, sizeof(direct.nulls));
		ExecStoreVirtualTuple(slot);
		rows[i].inserted = InsertDirectly(&direct, direct.open[number], slot);
		made += rows[i].inserted;
	}
	CloseLeaves(&direct);
	CommandCounterIncrement();
	return made;
}

/*
 * InsertCoupons inserts rows, ascending by id, and returns how many; the others have met a
 * conflict with a unique index and are marked.  Their users are locked, and
 * the rows satisfy the CHECK of user_coupon.
 */
int
InsertCoupons(const InsertCommon *common, InsertRow *rows, int nrows)
{
	Oid			relation = CatalogGet()->template_table;
	bool		wanted[COUPON_PARTITIONS] = {false};

	for (int i = 0; i < nrows; i++)
	{
		UserFilterAdd(relation, common->template_id, rows[i].user_id);
		rows[i].leaf = CatalogLeafNumber(rows[i].user_id);
		wanted[rows[i].leaf] = true;
	}
	if (CatalogLockForInsert(wanted))
		return InsertThroughLeaves(common, rows, nrows);
	return InsertThroughSql(common, rows, nrows);
}

/*
 * InsertWasRefused tells whether an error is the word of a trigger or constraint of
 * somebody's about the rows, and not a fault that others would meet too.
 */
bool
InsertWasRefused(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_RAISE_EXCEPTION ||
		ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION;
}

/*
 * InsertLockBatch locks all partitions for InsertBatch, and tells whether it
 * may insert directly.
 */
bool
InsertLockBatch(void)
{
	bool		wanted[COUPON_PARTITIONS];

	memset(wanted, true, sizeof(wanted));
	return CatalogLockForInsert(wanted);
}

/*
 * Insert rows of one partition: all into the table, by whole pages, and then
 * into the indexes.  An index reports a conflict, also with a row that is not
 * committed, and waits for nobody.  False at the first one.
 */
static bool
InsertIntoLeaf(DirectInsert *direct, int number, TupleTableSlot **slots,
			   InsertRow *rows, int n)
{
	ResultRelInfo *info = direct->open[number];

	for (int i = 0; i < n; i++)
	{
		SetColumn(direct, COUPON_ID, Int64GetDatum(rows[i].coupon_id));
		SetColumn(direct, COUPON_USER_ID, Int64GetDatum(rows[i].user_id));
		SetColumn(direct, COUPON_RECEIVE_SEQ, Int32GetDatum(rows[i].receive_seq));
		ExecClearTuple(slots[i]);
		memcpy(slots[i]->tts_values, direct->values, sizeof(direct->values));
		memcpy(slots[i]->tts_isnull, direct->nulls, sizeof(direct->nulls));
		ExecStoreVirtualTuple(slots[i]);
	}
	direct->estate->es_output_cid = GetCurrentCommandId(true);
	table_multi_insert(info->ri_RelationDesc, slots, n,
					   direct->estate->es_output_cid, 0, NULL);
	for (int i = 0; i < n; i++)
	{
		bool		conflict = false;

		(void) CompatExecInsertIndexTuples(info, slots[i], direct->estate, &conflict);
		ResetPerTupleExprContext(direct->estate);
		rows[i].inserted = !conflict;
		if (conflict)
			return false;
	}
	return true;
}

static bool
InsertBatchDirectly(const InsertCommon *common, InsertRow *rows, int nrows)
{
	DirectInsert direct = {0};
	TupleTableSlot *slots[INSERT_CHUNK];
	bool		all = true;
	int			n;

	PreventCommandIfReadOnly("coupon distribution");
	direct.estate = CreateExecutorState();
	SetCommonColumns(&direct, common);
	/* All partitions have the same columns: see CatalogLockForInsert. */
	OpenLeaf(&direct, 0);
	for (int i = 0; i < Min(nrows, INSERT_CHUNK); i++)
		slots[i] = MakeSingleTupleTableSlot(direct.slot[0]->tts_tupleDescriptor,
											&TTSOpsVirtual);

	for (int done = 0; done < nrows && all; done += n)
	{
		int			number = rows[done].leaf;

		for (n = 1; n < INSERT_CHUNK && done + n < nrows &&
			 rows[done + n].leaf == number; n++)
			;
		if (direct.open[number] == NULL)
			OpenLeaf(&direct, number);
		CHECK_FOR_INTERRUPTS();
		all = InsertIntoLeaf(&direct, number, slots, rows + done, n);
	}
	for (int i = 0; i < Min(nrows, INSERT_CHUNK); i++)
		ExecDropSingleTupleTableSlot(slots[i]);
	CloseLeaves(&direct);
	CommandCounterIncrement();
	return all;
}

static bool
InsertAll(void *arg)
{
	const DirectBatch *batch = arg;

	return InsertBatchDirectly(batch->common, batch->rows, batch->nrows);
}

/*
 * InsertBatch is InsertCoupons for many rows, ordered by partition.  It never
 * waits for a row that another transaction has inserted, except where rows go
 * through SQL.  InsertLockBatch was called before and has told whether direct.
 */
int
InsertBatch(const InsertCommon *common, InsertRow *rows, int nrows, bool direct)
{
	DirectBatch batch = {common, rows, nrows};
	Oid			relation = CatalogGet()->template_table;
	int			made = 0;

	for (int i = 0; i < nrows; i++)
		UserFilterAdd(relation, common->template_id, rows[i].user_id);

	/*
	 * All rows at once, or after a conflict each by itself: a speculative
	 * insert is taken back without a trace, where a row inserted and deleted
	 * again would reach logical subscribers, and conflict there.
	 */
	if (direct)
		return SubxactRun(InsertAll, &batch, NULL) ? nrows :
			InsertThroughLeaves(common, rows, nrows);
	for (int done = 0; done < nrows; done += INSERT_CHUNK)
		made += InsertThroughSql(common, rows + done,
								 Min(nrows - done, INSERT_CHUNK));
	return made;
}
