/*
 * distribute.c
 *		Give coupons to the users of one batch of a task.
 *
 * A batch is one transaction: it takes a row of coupon_task_batch, issues the
 * coupons, records the failures, and marks the row done.  So a line is handled
 * exactly once, whatever dies when.  Runners lock the rows of the batches that
 * they are at and skip those of others; the row of the task, locked for share,
 * keeps the state from changing meanwhile.
 *
 * Within a batch the lines are ordered by partition and user, for the sake of
 * the indexes.  For each user we look first whether he has a coupon of the
 * template, also one that is not committed yet: such a line is put off, for a
 * batch waits for no claim.  Then stock is reserved for all who have none, and
 * their coupons are inserted.  An index refuses those whose claim came in
 * between; these are put off as well, and their units given back.
 *
 * Stock goes to the lines in the order of the file.  A batch that cannot have
 * all that it wants, or would leave too little for earlier batches that others
 * are still at, gives its units back and is left until those have ended.
 * Claims go on all the while and compete for the stock as they always do.
 *
 * Everything runs in the memory of one SPI connection, which goes with the
 * batch.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "claim.h"
#include "distribute.h"
#include "id.h"
#include "insert.h"
#include "outcome.h"
#include "query.h"
#include "stage.h"
#include "template.h"

#define OTHERS_FIRST (-1)		/* beside outcome codes: stock may not suffice */
#define MAX_SHOWN_USER_ID 100	/* bytes of a bad user id that are kept */

typedef enum LineFate
{
	LINE_WANTED,				/* is to get a coupon, if there is stock */
	LINE_ISSUED,
	LINE_PUT_OFF,
	LINE_ALREADY_RECEIVED,
	LINE_OUT_OF_STOCK,
	LINE_INVALID_USER_ID,
	LINE_DUPLICATE				/* of the line before it in order of users */
} LineFate;

static const char *const causes[] = {
	[LINE_ALREADY_RECEIVED] = "already_received",
	[LINE_OUT_OF_STOCK] = "out_of_stock",
	[LINE_INVALID_USER_ID] = "invalid_user_id",
	[LINE_DUPLICATE] = "duplicate_line",
};

typedef struct Line
{
	int64		row_num;
	int64		user_id;		/* 0: invalid */
	const char *text;			/* of an invalid user id; NULL: there is none */
	const char *detail;
	int			leaf;
	LineFate	fate;
} Line;

typedef struct Batch
{
	const Task *task;
	char		request_id[32]; /* stored with its coupons */
	int32		number;
	int64		first_line;
	int64		last_line;
	int64		first_row;
	Line	   *lines;
	int			nlines;
	int			count[LINE_DUPLICATE + 1];	/* lines by fate, at the end */
	TemplateView view;
	TimestampTz now;
} Batch;

#define UNDONE "task_id OPERATOR(pg_catalog.=) $1 AND done_at IS NULL"

static OwnerQuery take_batch = {
	"SELECT batch, first_line, last_line, first_row, lines"
	" FROM %1$s.coupon_task_batch WHERE " UNDONE
	" ORDER BY batch LIMIT 1 FOR UPDATE SKIP LOCKED",
	1, {INT8OID}
};

static OwnerQuery any_undone = {
	"SELECT 1 FROM %1$s.coupon_task_batch WHERE " UNDONE " LIMIT 1",
	1, {INT8OID}
};

static OwnerQuery wait_for_undone = {
	"SELECT 1 FROM %1$s.coupon_task_batch WHERE " UNDONE
	" ORDER BY batch LIMIT 1 FOR SHARE",
	1, {INT8OID}
};

static OwnerQuery earlier_lines = {
	"SELECT pg_catalog.sum(lines)::bigint FROM %1$s.coupon_task_batch WHERE " UNDONE
	" AND batch OPERATOR(pg_catalog.<) $2",
	2, {INT8OID, INT4OID}
};

static OwnerQuery batch_done = {
	"UPDATE %1$s.coupon_task_batch SET done_at = pg_catalog.clock_timestamp(),"
	" issued = $3, failed = $4, put_off = $5"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND batch OPERATOR(pg_catalog.=) $2",
	5, {INT8OID, INT4OID, INT4OID, INT4OID, INT4OID}
};

static OwnerQuery insert_failures = {
	"INSERT INTO %1$s.coupon_task_failure (task_id, row_num, user_id, cause, detail)"
	" SELECT $1, r, u, c, d FROM unnest($2, $3, $4, $5) AS x (r, u, c, d)",
	5, {INT8OID, INT8ARRAYOID, TEXTARRAYOID, TEXTARRAYOID, TEXTARRAYOID}
};

static OwnerQuery insert_put_off = {
	"INSERT INTO %1$s.coupon_task_put_off (task_id, batch, row_num, user_id)"
	" SELECT $1, $2, r, u FROM unnest($3, $4) AS x (r, u)",
	4, {INT8OID, INT4OID, INT8ARRAYOID, INT8ARRAYOID}
};

static OwnerQuery lock_put_off = {
	"SELECT batch, row_num, user_id FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1"
	" ORDER BY row_num LIMIT 100 FOR UPDATE SKIP LOCKED",
	1, {INT8OID}
};

static OwnerQuery delete_put_off = {
	"DELETE FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND row_num OPERATOR(pg_catalog.=) $2",
	2, {INT8OID, INT8OID}
};

static OwnerQuery any_put_off = {
	"SELECT 1 FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 LIMIT 1",
	1, {INT8OID}
};

static OwnerQuery put_off_done = {
	"UPDATE %1$s.coupon_task_batch"
	" SET put_off = put_off OPERATOR(pg_catalog.-) 1,"
	" issued = issued OPERATOR(pg_catalog.+) $3, failed = failed OPERATOR(pg_catalog.+) $4"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND batch OPERATOR(pg_catalog.=) $2",
	4, {INT8OID, INT4OID, INT4OID, INT4OID}
};

/* The request id of all coupons of a task: it tells them from others. */
static void
SetRequestId(char *request_id, Size size, int64 task_id)
{
	snprintf(request_id, size, "task " INT64_FORMAT, task_id);
}

/*
 * Read a user id as it stands in a file: digits, perhaps with space around
 * them, or after the byte order mark with which some programs begin a file.
 * Returns what is wrong, or NULL.
 */
static const char *
ParseUserId(const char *s, const char *end, int64 *user_id)
{
	int64		n = 0;

	*user_id = 0;
	if (end - s >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0)
		s += 3;
	while (s < end && isspace((unsigned char) *s))
		s++;
	while (s < end && isspace((unsigned char) end[-1]))
		end--;
	if (s == end)
		return "empty";
	if (*s == '-' && end - s > 1 && strspn(s + 1, "0123456789") >= end - s - 1)
		return "not positive";
	for (; s < end; s++)
	{
		if (*s < '0' || *s > '9')
			return "not a number";
		if (pg_mul_s64_overflow(n, 10, &n) || pg_add_s64_overflow(n, *s - '0', &n))
			return "too large";
	}
	if (n == 0)
		return "not positive";
	*user_id = n;
	return NULL;
}

/* In the order of the stage, which is that of the file. */
static int
CompareRows(const void *a, const void *b)
{
	int64		left = ((const Line *) a)->row_num;
	int64		right = ((const Line *) b)->row_num;

	return left < right ? -1 : left > right;
}

/* In the order of the indexes, a user's first line first; invalid ones last. */
static int
CompareUsers(const void *a, const void *b)
{
	const Line *left = a;
	const Line *right = b;

	if (left->leaf != right->leaf)
		return left->leaf - right->leaf;
	if (left->user_id != right->user_id)
		return left->user_id < right->user_id ? -1 : 1;
	return CompareRows(a, b);
}

/* Make a line of a row of the stage; row_num is still its number there. */
static void
FillLine(Line *line, HeapTuple row, TupleDesc desc)
{
	bool		isnull;
	Datum		value;
	text	   *user;

	line->row_num = DatumGetInt64(SPI_getbinval(row, desc, 1, &isnull));
	line->user_id = 0;
	line->text = NULL;
	line->detail = "empty";
	value = SPI_getbinval(row, desc, 2, &isnull);
	if (!isnull)
	{
		user = DatumGetTextPP(value);
		line->detail = ParseUserId(VARDATA_ANY(user),
								   VARDATA_ANY(user) + VARSIZE_ANY_EXHDR(user),
								   &line->user_id);
		if (line->detail != NULL)
			line->text = pnstrdup(VARDATA_ANY(user),
								  pg_mbcliplen(VARDATA_ANY(user),
											   VARSIZE_ANY_EXHDR(user),
											   MAX_SHOWN_USER_ID));
	}
	line->fate = line->detail == NULL ? LINE_WANTED : LINE_INVALID_USER_ID;
	line->leaf = line->detail == NULL ? CatalogLeafNumber(line->user_id) :
		COUPON_PARTITIONS;
}

static void
ReadLines(Batch *batch)
{
	uint64		n = StageRead(batch->task->id, batch->first_line, batch->last_line);
	bool		sorted = true;

	if (n != batch->nlines)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the stage of task %lld has been changed since it was sealed",
						(long long) batch->task->id),
				 errdetail("Batch %d has " UINT64_FORMAT " lines instead of %d.",
						   batch->number, n, batch->nlines)));
	batch->lines = palloc(n * sizeof(Line));
	for (int i = 0; i < batch->nlines; i++)
	{
		FillLine(&batch->lines[i], SPI_tuptable->vals[i], SPI_tuptable->tupdesc);
		sorted = sorted && (i == 0 || batch->lines[i - 1].row_num < batch->lines[i].row_num);
	}
	SPI_freetuptable(SPI_tuptable);

	if (!sorted)
		qsort(batch->lines, batch->nlines, sizeof(Line), CompareRows);
	for (int i = 0; i < batch->nlines; i++)
		batch->lines[i].row_num = batch->first_row + i;
	qsort(batch->lines, batch->nlines, sizeof(Line), CompareUsers);
	for (int i = 1; i < batch->nlines; i++)
	{
		if (batch->lines[i].user_id != 0 &&
			batch->lines[i].user_id == batch->lines[i - 1].user_id)
			batch->lines[i].fate = LINE_DUPLICATE;
	}
}

/* Look which users have a coupon, or are claiming one. */
static void
ProbeUsers(Batch *batch)
{
	RowsLeaf   *leaf = NULL;
	int			number = -1;

	for (int i = 0; i < batch->nlines; i++)
	{
		Line	   *line = &batch->lines[i];
		RowsOfUser	rows;
		RowsOpenClaim open;

		if (line->fate != LINE_WANTED)
			continue;
		if (line->leaf != number)
		{
			CHECK_FOR_INTERRUPTS();
			if (leaf != NULL)
				RowsCloseLeaf(leaf);
			leaf = RowsOpenLeaf(line->leaf);
			number = line->leaf;
		}
		RowsProbeLeaf(leaf, batch->task->template_id, line->user_id,
					  batch->request_id, &rows, &open);
		if (rows.last_seq > 0)
			line->fate = rows.repeated ? LINE_DUPLICATE : LINE_ALREADY_RECEIVED;
		else if (TransactionIdIsValid(open.xid))
			line->fate = LINE_PUT_OFF;
	}
	if (leaf != NULL)
		RowsCloseLeaf(leaf);
}

static int
CountFate(const Batch *batch, LineFate fate)
{
	int			n = 0;

	for (int i = 0; i < batch->nlines; i++)
		n += batch->lines[i].fate == fate;
	return n;
}

/* Lines of earlier batches that other runners are at. */
static int64
EarlierLines(const Batch *batch)
{
	Datum		args[2];
	bool		isnull;
	Datum		n;

	args[0] = Int64GetDatum(batch->task->id);
	args[1] = Int32GetDatum(batch->number);
	QueryRun(&earlier_lines, args, NULL);
	n = QueryValue(0, 1, &isnull);
	return isnull ? 0 : DatumGetInt64(n);
}

/*
 * Whether what is left after this batch has taken its part is certain to
 * suffice for the earlier batches that are still open.
 */
static bool
LeavesEnough(const Batch *batch, int64 wanted, int64 got)
{
	StockNumbers numbers;
	int64		earlier = EarlierLines(batch);

	if (earlier == 0)
		return true;
	return got == wanted && StockRead(&batch->view.key, &numbers) &&
		(numbers.quota == CACHE_UNLIMITED ||
		 numbers.quota - numbers.issued >= earlier);
}

/*
 * Reserve units for the wanted lines: sets how many there were.  Returns
 * OUTCOME_OK, or the code by which the template gives nothing at all, or
 * OTHERS_FIRST.
 */
static int
ReserveUnits(Batch *batch, int64 wanted, int64 *got)
{
	for (;;)
	{
		StockResult reserved;
		int			code;

		CHECK_FOR_INTERRUPTS();
		*got = 0;
		if (!TemplateFetch(batch->task->template_id, &batch->view))
			return OUTCOME_NOT_FOUND;
		batch->now = GetCurrentTimestamp();
		code = TemplateJudge(&batch->view,
							 TEMPLATE_OPEN_TO(TEMPLATE_ANYONE) |
							 TEMPLATE_OPEN_TO(TEMPLATE_TASK), batch->now);
		if (code != OUTCOME_OK || wanted == 0)
			return code;

		reserved = TemplateReserve(&batch->view, wanted, got);
		if (reserved == STOCK_CHANGED)
			continue;
		if (reserved == STOCK_CLOSED || reserved == STOCK_RECOUNT)
		{
			TemplateWait(&batch->view, reserved);
			continue;
		}
		if (LeavesEnough(batch, wanted, *got))
			return OUTCOME_OK;
		if (*got > 0)
			StockTakeBack(&batch->view.key, *got);
		return OTHERS_FIRST;
	}
}

static int
CompareInt8(const void *a, const void *b)
{
	int64		left = *(const int64 *) a;
	int64		right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/* Only the first lines of the file, as many as there are units, get one. */
static void
CutToStock(Batch *batch, int64 wanted, int64 got)
{
	int64	   *rows = palloc(wanted * sizeof(int64));
	int			n = 0;

	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate == LINE_WANTED)
			rows[n++] = batch->lines[i].row_num;
	}
	qsort(rows, n, sizeof(int64), CompareInt8);
	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate == LINE_WANTED && batch->lines[i].row_num >= rows[got])
			batch->lines[i].fate = LINE_OUT_OF_STOCK;
	}
	pfree(rows);
}

static const char *
SourceOf(const TemplateView *view)
{
	return view->attrs.has_shop ? "shop" : "platform";
}

/*
 * Insert the coupons of the wanted lines; lines in conflict with a claim that
 * came in between are put off.  Returns the number of coupons.
 */
static int
InsertWanted(Batch *batch, int64 wanted, bool direct)
{
	InsertCommon common;
	InsertRow  *rows = palloc(wanted * sizeof(InsertRow));
	int			n = 0;
	int			made;

	common.template_id = batch->task->template_id;
	common.source = SourceOf(&batch->view);
	common.request_id = batch->request_id;
	common.received_at = batch->now;
	TemplateUseWindow(&batch->view, batch->now, &common.use_start, &common.use_end);
	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate != LINE_WANTED)
			continue;
		rows[n].coupon_id = IdNext();
		rows[n].user_id = batch->lines[i].user_id;
		rows[n++].receive_seq = 1;
	}
	Assert(n == wanted);
	made = InsertBatch(&common, rows, n, direct);

	n = 0;
	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate == LINE_WANTED)
			batch->lines[i].fate = rows[n++].inserted ? LINE_ISSUED : LINE_PUT_OFF;
	}
	pfree(rows);
	return made;
}

/* Lines that are still wanted are for later. */
static void
PutOffWanted(Batch *batch)
{
	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate == LINE_WANTED)
			batch->lines[i].fate = LINE_PUT_OFF;
	}
}

/*
 * Issue coupons for the wanted lines, as far as stock goes.  Units that come
 * back from conflicts go to lines for which there were none.  A template that
 * stops giving in between stops the next batch: this one has coupons to record.
 */
static int
IssueCoupons(Batch *batch, bool direct)
{
	int64		wanted;
	int64		got;
	int			made;
	bool		any = false;

	do
	{
		int			code;

		wanted = CountFate(batch, LINE_WANTED);
		code = ReserveUnits(batch, wanted, &got);
		if (code != OUTCOME_OK && any)
		{
			PutOffWanted(batch);
			return OUTCOME_OK;
		}
		if (code != OUTCOME_OK)
			return code;
		if (got < wanted)
			CutToStock(batch, wanted, got);
		made = got > 0 ? InsertWanted(batch, got, direct) : 0;
		if (made < got)
			StockTakeBack(&batch->view.key, got - made);
		any = any || made > 0;
		for (int i = 0; made < got && i < batch->nlines; i++)
		{
			if (batch->lines[i].fate == LINE_OUT_OF_STOCK)
				batch->lines[i].fate = LINE_WANTED;
		}
	} while (made < got);
	return OUTCOME_OK;
}

/* A user's further lines share the fate of the first, unless that has a coupon. */
static void
SettleDuplicates(Batch *batch)
{
	for (int i = 1; i < batch->nlines; i++)
	{
		Line	   *line = &batch->lines[i];
		LineFate	first = line[-1].fate;

		if (line->user_id != 0 && line->user_id == line[-1].user_id &&
			(first == LINE_ALREADY_RECEIVED || first == LINE_OUT_OF_STOCK))
			line->fate = first;
	}
	for (int i = 0; i < batch->nlines; i++)
		batch->count[batch->lines[i].fate]++;
}

static Datum
ArrayOf(Datum *values, bool *nulls, int n, Oid type)
{
	int			lower = 1;

	return PointerGetDatum(construct_md_array(values, nulls, 1, &n, &lower, type,
											  type == INT8OID ? 8 : -1,
											  type == INT8OID ? FLOAT8PASSBYVAL : false,
											  type == INT8OID ? TYPALIGN_DOUBLE : TYPALIGN_INT));
}

static void
RecordFailures(const Batch *batch, int n)
{
	Datum	   *column[4];
	bool	   *nulls[4];
	Datum		args[5];
	int			row = 0;

	for (int c = 0; c < 4; c++)
	{
		column[c] = palloc(n * sizeof(Datum));
		nulls[c] = palloc0(n * sizeof(bool));
	}
	for (int i = 0; i < batch->nlines; i++)
	{
		const Line *line = &batch->lines[i];

		if (line->fate < LINE_ALREADY_RECEIVED)
			continue;
		column[0][row] = Int64GetDatum(line->row_num);
		nulls[1][row] = line->user_id == 0 && line->text == NULL;
		if (line->user_id != 0)
			column[1][row] = CStringGetTextDatum(psprintf(INT64_FORMAT, line->user_id));
		else if (line->text != NULL)
			column[1][row] = CStringGetTextDatum(line->text);
		column[2][row] = CStringGetTextDatum(causes[line->fate]);
		nulls[3][row] = line->detail == NULL;
		if (line->detail != NULL)
			column[3][row] = CStringGetTextDatum(line->detail);
		row++;
	}
	Assert(row == n);
	args[0] = Int64GetDatum(batch->task->id);
	args[1] = ArrayOf(column[0], nulls[0], n, INT8OID);
	for (int c = 1; c < 4; c++)
		args[c + 1] = ArrayOf(column[c], nulls[c], n, TEXTOID);
	QueryRun(&insert_failures, args, NULL);
}

static void
RecordPutOff(const Batch *batch, int n)
{
	Datum	   *rows = palloc(n * sizeof(Datum));
	Datum	   *users = palloc(n * sizeof(Datum));
	Datum		args[4];
	int			row = 0;

	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate != LINE_PUT_OFF)
			continue;
		rows[row] = Int64GetDatum(batch->lines[i].row_num);
		users[row++] = Int64GetDatum(batch->lines[i].user_id);
	}
	args[0] = Int64GetDatum(batch->task->id);
	args[1] = Int32GetDatum(batch->number);
	args[2] = ArrayOf(rows, NULL, n, INT8OID);
	args[3] = ArrayOf(users, NULL, n, INT8OID);
	QueryRun(&insert_put_off, args, NULL);
}

/* Record what became of the lines, all of which have their fate. */
static void
RecordBatch(Batch *batch)
{
	int			failed;
	Datum		args[5];

	SettleDuplicates(batch);
	failed = batch->nlines - batch->count[LINE_ISSUED] - batch->count[LINE_PUT_OFF];
	if (failed > 0)
		RecordFailures(batch, failed);
	if (batch->count[LINE_PUT_OFF] > 0)
		RecordPutOff(batch, batch->count[LINE_PUT_OFF]);

	args[0] = Int64GetDatum(batch->task->id);
	args[1] = Int32GetDatum(batch->number);
	args[2] = Int32GetDatum(batch->count[LINE_ISSUED]);
	args[3] = Int32GetDatum(failed);
	args[4] = Int32GetDatum(batch->count[LINE_PUT_OFF]);
	QueryRun(&batch_done, args, NULL);
}

/* Take a batch that nobody is at. */
static bool
TakeBatch(Batch *batch)
{
	Datum		task_id = Int64GetDatum(batch->task->id);
	bool		isnull;

	if (QueryRun(&take_batch, &task_id, NULL) == 0)
		return false;
	batch->number = DatumGetInt32(QueryValue(0, 1, &isnull));
	batch->first_line = DatumGetInt64(QueryValue(0, 2, &isnull));
	batch->last_line = DatumGetInt64(QueryValue(0, 3, &isnull));
	batch->first_row = DatumGetInt64(QueryValue(0, 4, &isnull));
	batch->nlines = DatumGetInt32(QueryValue(0, 5, &isnull));
	SetRequestId(batch->request_id, sizeof(batch->request_id), batch->task->id);
	return true;
}

/*
 * DistributeBatch handles the next batch of a task, whose row is locked for
 * share.  With DISTRIBUTE_REFUSED nothing of it stays if the caller aborts.
 */
DistributeResult
DistributeBatch(const Task *task, int *code)
{
	Batch		batch = {0};
	QueryScope	scope;
	DistributeResult result = DISTRIBUTE_DONE;

	batch.task = task;
	TemplateRequirePreload();
	QueryBegin(&scope);
	if (!TakeBatch(&batch))
	{
		Datum		task_id = Int64GetDatum(task->id);

		result = QueryRun(&any_undone, &task_id, NULL) > 0 ?
			DISTRIBUTE_BUSY : DISTRIBUTE_NOTHING;
	}
	else
	{
		bool		direct = InsertLockBatch();

		ReadLines(&batch);
		ProbeUsers(&batch);
		*code = IssueCoupons(&batch, direct);
		if (*code == OUTCOME_OK)
			RecordBatch(&batch);
		else
			result = *code == OTHERS_FIRST ? DISTRIBUTE_BUSY : DISTRIBUTE_REFUSED;
	}
	QueryEnd(&scope);
	return result;
}

/*
 * DistributeWaitForOthers waits until the first batch that others are at has
 * ended.
 */
void
DistributeWaitForOthers(int64 task_id)
{
	Datum		arg = Int64GetDatum(task_id);
	QueryScope	scope;

	QueryBegin(&scope);
	QueryRun(&wait_for_undone, &arg, NULL);
	QueryEnd(&scope);
}

/* A line whose user had a claim open. */
typedef struct PutOffLine
{
	int32		batch;
	int64		row_num;
	int64		user_id;
} PutOffLine;

/* Handle it as a claim for one user, and record what became of it. */
static void
SettlePutOff(const Task *task, const PutOffLine *line, int code)
{
	bool		issued = code == OUTCOME_OK;
	Datum		args[5];

	args[0] = Int64GetDatum(task->id);
	args[1] = Int32GetDatum(line->batch);
	args[2] = Int32GetDatum(issued ? 1 : 0);
	args[3] = Int32GetDatum(issued ? 0 : 1);
	QueryRun(&put_off_done, args, NULL);
	args[1] = Int64GetDatum(line->row_num);
	QueryRun(&delete_put_off, args, NULL);
	if (!issued)
	{
		Batch		batch = {0};
		Line		failed = {0};

		failed.row_num = line->row_num;
		failed.user_id = line->user_id;
		failed.fate = code == OUTCOME_OVER_LIMIT ? LINE_ALREADY_RECEIVED :
			LINE_OUT_OF_STOCK;
		batch.task = task;
		batch.lines = &failed;
		batch.nlines = 1;
		RecordFailures(&batch, 1);
	}
}

/*
 * Claim for the user of a line.  An answer that concerns the template as a
 * whole refuses the line no more than its batch.
 */
static DistributeResult
ClaimPutOff(const Task *task, const PutOffLine *line, int *code)
{
	char		request_id[32];
	ClaimRequest request = {0};
	ClaimResult result;
	TemplateView view;

	SetRequestId(request_id, sizeof(request_id), task->id);
	request.template_id = task->template_id;
	request.request_id = request_id;
	request.open_to = TEMPLATE_OPEN_TO(TEMPLATE_ANYONE) | TEMPLATE_OPEN_TO(TEMPLATE_TASK);
	request.now = GetCurrentTimestamp();
	request.limit_cap = 1;
	request.source = TemplateFetch(task->template_id, &view) ? SourceOf(&view) : "platform";
	ClaimCoupons(&request, &line->user_id, 1, &result);
	*code = result.code;
	if (result.code != OUTCOME_OK && result.code != OUTCOME_OVER_LIMIT &&
		result.code != OUTCOME_OUT_OF_STOCK)
		return DISTRIBUTE_REFUSED;
	/* Its coupon is that of another line of the same file. */
	SettlePutOff(task, line, result.repeated ? OUTCOME_OVER_LIMIT : result.code);
	return DISTRIBUTE_DONE;
}

/*
 * DistributePutOff handles one line that was put off and whose user has no
 * claim open any more.  DISTRIBUTE_WAIT: all have; "open" is one of them.
 */
DistributeResult
DistributePutOff(const Task *task, RowsOpenClaim *open, int *code)
{
	Datum		task_id = Int64GetDatum(task->id);
	DistributeResult result = DISTRIBUTE_NOTHING;
	PutOffLine	lines[100];
	QueryScope	scope;
	int			n;

	QueryBegin(&scope);
	n = (int) QueryRun(&lock_put_off, &task_id, NULL);
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		lines[i].batch = DatumGetInt32(QueryValue(i, 1, &isnull));
		lines[i].row_num = DatumGetInt64(QueryValue(i, 2, &isnull));
		lines[i].user_id = DatumGetInt64(QueryValue(i, 3, &isnull));
	}
	for (int i = 0; i < n && result != DISTRIBUTE_DONE && result != DISTRIBUTE_REFUSED; i++)
	{
		RowsOfUser	rows;

		result = DISTRIBUTE_WAIT;
		RowsProbe(task->template_id, lines[i].user_id, NULL, &rows, open);
		if (!TransactionIdIsValid(open->xid))
			result = ClaimPutOff(task, &lines[i], code);
	}
	if (n == 0 && QueryRun(&any_put_off, &task_id, NULL) > 0)
		result = DISTRIBUTE_BUSY;
	QueryEnd(&scope);
	return result;
}
