/*
 * task_batch.c
 *		Give coupons to the users of one batch of a task.
 *
 * A batch is one transaction: it takes a row of coupon_task_batch, issues the
 * coupons, records the failures, and marks the row done.  So a line is handled
 * exactly once, whatever dies when.  Runners lock the rows of the batches that
 * they are at and skip those of others; the task, locked for share, keeps its
 * state meanwhile.
 *
 * The lines of a batch are ordered by partition and user, for the sake of the
 * indexes, and so are the batches of a section (section.c).  For each user we
 * look first whether he has a coupon of the template, also one that is not
 * committed yet: such a line is put off, for a batch waits for no claim.  Then
 * stock is reserved for all who have none, and their coupons are inserted.  An
 * index refuses those whose claim came in between; these are put off as well,
 * and their units given back.
 *
 * Stock goes to the lines in the order of the file.  So a section is handled
 * in the order of users only while there is stock in plenty; otherwise in that
 * of the file.  A batch that cannot have all that it wants, or would leave too
 * little for earlier batches that others are still at, gives its units back and
 * is begun again by a runner who is alone: he holds the task for update.  Claims
 * go on all the while and compete for the stock as they always do.
 *
 * Everything runs in the memory of one SPI connection, which goes with the
 * batch.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/id.h"
#include "base/locks.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/subxact.h"
#include "notification/outbox.h"
#include "store/insert.h"
#include "store/user_filter.h"
#include "task/input_rows.h"
#include "task/section.h"
#include "task/stage.h"
#include "task/task_batch.h"
#include "template/template.h"

#define LOCKED_AT_A_TIME 128	/* users, where rows go through SQL */
/* Beside outcome codes: stock may not suffice; others have shut the template, for as long as they like. */
#define NOT_ENOUGH (-1)
#define SHUT (-2)

typedef struct Batch
{
	const Task *task;
	bool		alone;			/* no other runner is at the task */
	bool		wait;			/* for others */
	char		request_id[TASK_REQUEST_ID]; /* stored with its coupons */
	SectionPart part;
	Line	   *lines;
	int			nlines;
	TemplateView view;
	TimestampTz now;
} Batch;

#define UNDONE "task_id OPERATOR(pg_catalog.=) $1 AND done_at IS NULL"

static OwnerQuery take_batch = {
	"SELECT " SECTION_PART_COLUMNS
	" FROM %1$s.coupon_task_batch WHERE " UNDONE
	" ORDER BY batch LIMIT 1 FOR UPDATE SKIP LOCKED",
	1, {INT8OID}
};

static OwnerQuery any_undone = {
	"SELECT 1 FROM %1$s.coupon_task_batch WHERE " UNDONE " LIMIT 1",
	1, {INT8OID}
};

/*
 * This keeps batches locked that others have done meanwhile, while it waits for
 * the next; weakly enough that lines put off by them can be settled.
 */
static OwnerQuery wait_for_undone = {
	"SELECT 1 FROM %1$s.coupon_task_batch WHERE " UNDONE
	" ORDER BY batch LIMIT $2 FOR KEY SHARE",
	2, {INT8OID, INT8OID}
};

static OwnerQuery wait_for_put_off = {
	"SELECT 1 FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 ORDER BY row_num LIMIT 1 FOR SHARE",
	1, {INT8OID}
};

/* $5 and $4: a range has the planner use the index, where batches are many. */
static OwnerQuery other_lines = {
	"SELECT pg_catalog.sum(lines)::bigint FROM %1$s.coupon_task_batch WHERE " UNDONE
	" AND batch OPERATOR(pg_catalog.>) $5 AND batch OPERATOR(pg_catalog.<) $4"
	" AND batch OPERATOR(pg_catalog.<>) $2"
	" AND (batch OPERATOR(pg_catalog.<) $2"
	"  OR (first_line OPERATOR(pg_catalog.=) $3 AND NOT in_file_order))",
	5, {INT8OID, INT4OID, INT8OID, INT8OID, INT8OID}
};

static OwnerQuery batch_done = {
	"UPDATE %1$s.coupon_task_batch SET done_at = pg_catalog.clock_timestamp(),"
	" issued = $3, failed = $4, put_off = $5"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND batch OPERATOR(pg_catalog.=) $2",
	5, {INT8OID, INT4OID, INT4OID, INT4OID, INT4OID}
};

/*
 * Look which users have a coupon, or are claiming one: the rows of those of
 * whom user_filter.c does not know that they surely have not.
 */
static void
ProbeUsers(Batch *batch)
{
	bool		filtered = TemplateFetch(batch->task->template_id, &batch->view) &&
		batch->view.filter_complete;
	RowsLeaf   *leaf = NULL;
	int			number = -1;

	for (int i = 0; i < batch->nlines; i++)
	{
		Line	   *line = &batch->lines[i];
		RowsOfUser	rows;
		RowsOpenClaim open;

		if (line->fate != LINE_WANTED)
			continue;
		if (filtered && !UserFilterMayHave(batch->view.key.relation,
										  batch->task->template_id, line->user_id))
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

/*
 * Lines that stock must be left for: those of earlier batches that are open,
 * and all of a section in the order of users.
 */
static int64
OtherLines(const Batch *batch)
{
	Datum		args[5];
	bool		isnull;
	Datum		n;

	args[0] = Int64GetDatum(batch->task->id);
	args[1] = Int32GetDatum(batch->part.batch);
	args[2] = Int64GetDatum(batch->part.first_line);
	args[3] = Int64GetDatum((int64) batch->part.batch + SECTION_BATCHES);
	args[4] = Int64GetDatum(0);
	QueryRun(&other_lines, args, NULL);
	n = QueryValue(0, 1, &isnull);
	return isnull ? 0 : DatumGetInt64(n);
}

/*
 * Whether the order of users will do: the stock suffices for the section, and
 * for as much again, which claims may take while the section is handled.
 */
static bool
IsPlenty(Batch *batch)
{
	StockNumbers numbers;

	if (batch->part.in_file_order ||
		!TemplateFetch(batch->task->template_id, &batch->view) ||
		!StockRead(&batch->view.key, &numbers))
		return true;			/* or we shall see when it comes to reserving */
	return numbers.quota == CACHE_UNLIMITED ||
		numbers.quota - numbers.issued >= 2 * (OtherLines(batch) + batch->nlines);
}

/*
 * Whether the stock suffices for this batch, and what is left for other lines.
 * A runner who is alone decides over all there is.
 */
static bool
IsEnough(const Batch *batch, int64 wanted, int64 got)
{
	StockNumbers numbers;
	int64		others = OtherLines(batch);

	if (got < wanted)
		return batch->alone && others == 0;
	return others == 0 ||
		(StockRead(&batch->view.key, &numbers) &&
		 (numbers.quota == CACHE_UNLIMITED ||
		  numbers.quota - numbers.issued >= others));
}

/*
 * Reserve units for the wanted lines: sets how many there were.  Returns
 * OUTCOME_OK, or the code by which the template gives nothing at all, or
 * NOT_ENOUGH, or SHUT.
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
		if (!TemplateFetch(batch->task->template_id, &batch->view) ||
			!TaskOwnsTemplate(batch->task, &batch->view))
			return OUTCOME_NOT_FOUND;
		batch->now = GetCurrentTimestamp();
		code = TemplateJudge(&batch->view, TASK_OPEN_TO, batch->now);
		/* Users may get it before the others may pick it up. */
		if (code == OUTCOME_NOT_STARTED)
			code = OUTCOME_OK;
		if (code != OUTCOME_OK || wanted == 0)
			return code;

		reserved = TemplateReserve(&batch->view, wanted, got);
		if (reserved == STOCK_CHANGED)
			continue;
		if (reserved == STOCK_CLOSED || reserved == STOCK_RECOUNT)
		{
			if (batch->wait)
				TemplateWait(&batch->view, reserved);
			else if (!TemplateTryWait(&batch->view, reserved))
				return SHUT;
			continue;
		}
		if (IsEnough(batch, wanted, *got))
			return OUTCOME_OK;
		if (*got > 0)
			StockTakeBack(&batch->view.key, *got);
		return NOT_ENOUGH;
	}
}

/*
 * Insert the coupons of those lines that are wanted; lines in conflict with a
 * claim that came in between are put off.  Returns the number of coupons.
 */
static int
InsertWanted(Batch *batch, Line *lines, int nlines, bool direct)
{
	InsertCommon common;
	InsertRow  *rows = palloc(nlines * sizeof(InsertRow));
	int			n = 0;
	int			made;

	common.template_id = batch->task->template_id;
	common.source = TASK_SOURCE;
	common.request_id = batch->request_id;
	common.received_at = batch->now;
	TemplateUseWindow(&batch->view, batch->now, &common.use_start, &common.use_end);
	for (int i = 0; i < nlines; i++)
	{
		if (lines[i].fate != LINE_WANTED)
			continue;
		rows[n].coupon_id = IdNext();
		rows[n].user_id = lines[i].user_id;
		rows[n].leaf = lines[i].leaf;
		rows[n++].receive_seq = 1;
	}
	made = InsertBatch(&common, rows, n, direct);

	n = 0;
	for (int i = 0; i < nlines; i++)
	{
		if (lines[i].fate == LINE_WANTED)
			lines[i].fate = rows[n++].inserted ? LINE_ISSUED : LINE_PUT_OFF;
	}
	pfree(rows);
	return made;
}

/* What InsertSome is to insert, and how many it has. */
typedef struct SomeLines
{
	Batch	   *batch;
	Line	   *lines;
	int			nlines;
	int			made;
} SomeLines;

static bool
InsertSome(void *arg)
{
	SomeLines  *some = arg;

	some->made = InsertWanted(some->batch, some->lines, some->nlines, false);
	return true;
}

/*
 * InsertWanted through SQL, where a trigger or constraint of somebody's may refuse a line
 * with an error: then each by itself, and that line has failed.
 */
static int
InsertUnlessRefused(Batch *batch, Line *lines, int nlines)
{
	SomeLines	some = {batch, lines, nlines, 0};
	ErrorData  *error;
	int			made = 0;

	if (SubxactRun(InsertSome, &some, &error))
		return some.made;
	if (!InsertWasRefused(error))
		ReThrowError(error);
	if (nlines == 1)
	{
		lines->fate = LINE_REFUSED;
		lines->detail = LineDetail(error->message);
		return 0;
	}
	FreeErrorData(error);
	for (int i = 0; i < nlines; i++)
	{
		if (lines[i].fate == LINE_WANTED)
			made += InsertUnlessRefused(batch, &lines[i], 1);
	}
	return made;
}

/* Whether the user of a line could be locked, and still has no coupon. */
static bool
LockUser(const Batch *batch, const Line *line, LOCKTAG *tag)
{
	RowsOfUser	rows;
	RowsOpenClaim open;

	LockTagOfUser(tag, batch->task->template_id, line->user_id);
	if (LockAcquire(tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	RowsProbe(batch->task->template_id, line->user_id, NULL, &rows, &open);
	if (rows.last_seq == 0 && !TransactionIdIsValid(open.xid))
		return true;
	(void) LockRelease(tag, ExclusiveLock, false);
	return false;
}

/*
 * The same through SQL, where an insert waits for a row that is not committed.
 * So that it meets none, users are locked, as claims lock them, and looked at
 * again; one that cannot be locked at once is put off.
 */
static int
InsertWantedThroughSql(Batch *batch)
{
	int			made = 0;

	for (int first = 0; first < batch->nlines; first += LOCKED_AT_A_TIME)
	{
		int			n = Min(batch->nlines - first, LOCKED_AT_A_TIME);
		LOCKTAG		tags[LOCKED_AT_A_TIME];
		int			nlocked = 0;

		CHECK_FOR_INTERRUPTS();
		for (int i = first; i < first + n; i++)
		{
			if (batch->lines[i].fate != LINE_WANTED)
				continue;
			if (LockUser(batch, &batch->lines[i], &tags[nlocked]))
				nlocked++;
			else
				batch->lines[i].fate = LINE_PUT_OFF;
		}
		if (nlocked > 0)
			made += InsertUnlessRefused(batch, batch->lines + first, n);
		while (nlocked > 0)
			(void) LockRelease(&tags[--nlocked], ExclusiveLock, false);
	}
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

		wanted = LinesCount(batch->lines, batch->nlines, LINE_WANTED);
		code = ReserveUnits(batch, wanted, &got);
		if (code != OUTCOME_OK && any)
		{
			PutOffWanted(batch);
			return OUTCOME_OK;
		}
		if (code != OUTCOME_OK)
			return code;
		if (got < wanted)
			LinesCutToStock(batch->lines, batch->nlines, got);
		made = 0;
		if (got > 0)
			made = direct ? InsertWanted(batch, batch->lines, batch->nlines, true) :
				InsertWantedThroughSql(batch);
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

/* Tell those who have got a coupon. */
static void
AnnounceIssued(const Batch *batch)
{
	int64	   *users;
	int			n = 0;

	if (batch->task->notify == 0)
		return;
	users = palloc(batch->nlines * sizeof(int64));
	for (int i = 0; i < batch->nlines; i++)
	{
		if (batch->lines[i].fate == LINE_ISSUED)
			users[n++] = batch->lines[i].user_id;
	}
	OutboxAddCoupons(batch->task->notify, batch->task->template_id, batch->task->id, users, n);
	pfree(users);
}

/* Record what became of the lines, all of which have their fate. */
static void
RecordBatch(Batch *batch)
{
	Datum		args[5];

	LinesSettleDuplicates(batch->lines, batch->nlines);
	args[0] = Int64GetDatum(batch->task->id);
	args[1] = Int32GetDatum(batch->part.batch);
	args[2] = Int32GetDatum(LinesCount(batch->lines, batch->nlines, LINE_ISSUED));
	args[3] = Int32GetDatum(LinesRecordFailures(batch->task->id, batch->lines,
												batch->nlines));
	args[4] = Int32GetDatum(LinesRecordPutOff(batch->task->id, batch->part.batch,
											  batch->lines, batch->nlines));
	QueryRun(&batch_done, args, NULL);
	AnnounceIssued(batch);
}

/* Take a batch that nobody is at. */
static bool
TakeBatch(Batch *batch)
{
	Datum		task_id = Int64GetDatum(batch->task->id);

	if (QueryRun(&take_batch, &task_id, NULL) == 0)
		return false;
	SectionReadPart(&batch->part, batch->task->id, 0);
	batch->nlines = batch->part.nlines;
	TaskRequestId(batch->task, batch->request_id);
	return true;
}

/* Returns OUTCOME_OK, or why nothing was done: as ReserveUnits. */
static int
HandleBatch(Batch *batch)
{
	bool		direct;
	int			code;

	if (!IsPlenty(batch))
		return NOT_ENOUGH;
	direct = InsertLockBatch();
	batch->lines = SectionLines(&batch->part);
	ProbeUsers(batch);
	code = IssueCoupons(batch, direct);
	if (code == OUTCOME_OK)
		RecordBatch(batch);
	return code;
}

/* What to do about a batch for which the stock may not suffice. */
static StepResult
GoInFileOrder(const Batch *batch)
{
	if (!batch->alone)
		return STEP_ALONE;
	if (batch->part.in_file_order || !SectionPutInFileOrder(&batch->part))
		return STEP_BUSY;
	return STEP_DIVIDED;
}

/*
 * DistributeBatch handles the next batch of a task, which is locked: for update
 * if the caller is alone, else for share.  wait: for whoever has shut the template; else
 * STEP_BUSY.
 */
StepResult
DistributeBatch(const Task *task, bool alone, bool wait, int *code)
{
	Batch		batch = {0};
	QueryScope	scope;
	StepResult result = STEP_MORE;

	batch.task = task;
	batch.alone = alone;
	batch.wait = wait;
	TemplateRequirePreload();
	QueryBegin(&scope);
	if (!TakeBatch(&batch))
	{
		Datum		task_id = Int64GetDatum(task->id);

		SectionForget(task->id);
		result = QueryRun(&any_undone, &task_id, NULL) > 0 ?
			STEP_BUSY : STEP_LAST;
	}
	else
	{
		*code = HandleBatch(&batch);
		if (*code == NOT_ENOUGH)
			result = GoInFileOrder(&batch);
		else if (*code == SHUT)
			result = STEP_BUSY;
		else if (*code != OUTCOME_OK)
			result = STEP_REFUSED;
	}
	QueryEnd(&scope);
	return result;
}

/*
 * DistributeWaitForOthers waits until others have done with the first batch,
 * or line put off, that they are at.  A runner who is alone may have found the
 * first batch free, and another one of its section not.
 */
void
DistributeWaitForOthers(int64 task_id, bool alone)
{
	Datum		args[2];
	QueryScope	scope;

	args[0] = Int64GetDatum(task_id);
	args[1] = Int64GetDatum(alone ? SECTION_BATCHES : 1);
	QueryBegin(&scope);
	if (QueryRun(&wait_for_undone, args, NULL) == 0)
		QueryRun(&wait_for_put_off, args, NULL);
	QueryEnd(&scope);
}
