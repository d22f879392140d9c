/*
 * deferred.c
 *		Lines of users who had a claim of the same template open when their
 *		batch came to them: each is handled alone, as a claim, when that has
 *		ended.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/subxact.h"
#include "claim/claim.h"
#include "notification/outbox.h"
#include "store/insert.h"
#include "task/input_rows.h"
#include "task/task_batch.h"
#include "template/template.h"

#define PAGE 100				/* lines that one query lists */
#define PAGES_OF_A_STEP 10

static OwnerQuery list_put_off = {
	"SELECT batch, row_num, user_id FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND row_num OPERATOR(pg_catalog.>) $2"
	" ORDER BY row_num LIMIT $3",
	3, {INT8OID, INT8OID, INT8OID}
};

static OwnerQuery lock_put_off = {
	"SELECT 1 FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND row_num OPERATOR(pg_catalog.=) $2"
	" FOR UPDATE SKIP LOCKED",
	2, {INT8OID, INT8OID}
};

static OwnerQuery delete_put_off = {
	"DELETE FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND row_num OPERATOR(pg_catalog.=) $2",
	2, {INT8OID, INT8OID}
};

static OwnerQuery put_off_done = {
	"UPDATE %1$s.coupon_task_batch"
	" SET put_off = put_off OPERATOR(pg_catalog.-) 1,"
	" issued = issued OPERATOR(pg_catalog.+) $3, failed = failed OPERATOR(pg_catalog.+) $4"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 AND batch OPERATOR(pg_catalog.=) $2",
	4, {INT8OID, INT4OID, INT4OID, INT4OID}
};

/* A line whose user had a claim open. */
typedef struct PutOffLine
{
	int32		batch;
	int64		row_num;
	int64		user_id;
} PutOffLine;

typedef struct PutOffClaim
{
	ClaimRequest request;
	int64		user_id;
	ClaimResult result;
} PutOffClaim;

/* Record what became of a line. */
static void
SettlePutOff(const Task *task, const PutOffLine *line, LineFate fate, const char *detail)
{
	Line		settled = {0};
	Datum		args[4];
	int			failed;

	settled.row_num = line->row_num;
	settled.user_id = line->user_id;
	settled.fate = fate;
	settled.detail = detail;
	failed = LinesRecordFailures(task->id, &settled, 1);
	args[0] = Int64GetDatum(task->id);
	args[1] = Int32GetDatum(line->batch);
	args[2] = Int32GetDatum(1 - failed);
	args[3] = Int32GetDatum(failed);
	QueryRun(&put_off_done, args, NULL);
	args[1] = Int64GetDatum(line->row_num);
	QueryRun(&delete_put_off, args, NULL);
	if (fate == LINE_ISSUED)
		OutboxAddCoupons(task->notify, task->template_id, task->id, &line->user_id, 1);
}

static bool
Claim(void *arg)
{
	PutOffClaim *claim = arg;

	ClaimCoupons(&claim->request, &claim->user_id, 1, &claim->result);
	return true;
}

/*
 * Claim, unless a trigger or constraint of somebody's own keeps the row out: false then,
 * "detail" says so, and the other lines of the task go on.
 */
static bool
ClaimUnlessRefused(PutOffClaim *claim, const char **detail)
{
	ErrorData  *error;

	*detail = "refused by a trigger or index of user_coupon";
	if (SubxactRun(Claim, claim, &error))
		return !claim->result.kept_out;
	if (!InsertWasRefused(error))
		ReThrowError(error);
	*detail = LineDetail(error->message);
	return false;
}

/*
 * Claim for the user of a line.  An answer that concerns the template as a
 * whole refuses the line no more than its batch.
 */
static StepResult
ClaimPutOff(const Task *task, const PutOffLine *line, bool wait, int *code)
{
	char		request_id[TASK_REQUEST_ID];
	PutOffClaim claim = {.user_id = line->user_id};
	const char *detail;
	TemplateView view;

	*code = OUTCOME_NOT_FOUND;
	if (!TemplateFetch(task->template_id, &view) || !TaskOwnsTemplate(task, &view))
		return STEP_REFUSED;
	TaskRequestId(task, request_id);
	claim.request.template_id = task->template_id;
	claim.request.request_id = request_id;
	claim.request.open_to = TASK_OPEN_TO;
	claim.request.early = true;
	claim.request.now = GetCurrentTimestamp();
	claim.request.limit_cap = 1;
	claim.request.source = TASK_SOURCE;
	claim.request.roles = ROLE_OPERATOR;
	claim.request.waiting = wait ? CLAIM_WAITS : CLAIM_WAITS_NOT;
	if (!ClaimUnlessRefused(&claim, &detail))
	{
		SettlePutOff(task, line, LINE_REFUSED, detail);
		return STEP_MORE;
	}
	if (claim.result.held_up)
		return STEP_HELD_UP;
	*code = claim.result.code;
	switch (claim.result.code)
	{
		case OUTCOME_OK:
			/* Repeated: the coupon is that of another line of the file. */
			SettlePutOff(task, line, claim.result.repeated ? LINE_DUPLICATE : LINE_ISSUED, NULL);
			return STEP_MORE;
		case OUTCOME_OVER_LIMIT:
			SettlePutOff(task, line, LINE_ALREADY_RECEIVED, NULL);
			return STEP_MORE;
		case OUTCOME_OUT_OF_STOCK:
			SettlePutOff(task, line, LINE_OUT_OF_STOCK, NULL);
			return STEP_MORE;
	}
	return STEP_REFUSED;
}

/*
 * Handle a line, unless its user still has a claim open, or another runner is
 * at it.
 */
static StepResult
TryPutOff(const Task *task, const PutOffLine *line, bool wait, RowsOpenClaim *open, int *code)
{
	Datum		args[2];
	RowsOfUser	rows;
	RowsOpenClaim found;

	RowsProbe(task->template_id, line->user_id, NULL, &rows, &found);
	if (TransactionIdIsValid(found.xid))
	{
		*open = found;
		return STEP_WAIT;
	}
	args[0] = Int64GetDatum(task->id);
	args[1] = Int64GetDatum(line->row_num);
	if (QueryRun(&lock_put_off, args, NULL) == 0)
		return STEP_BUSY;
	return ClaimPutOff(task, line, wait, code);
}

/* The next lines that were put off, in the order of the file. */
static int
ListPutOff(const Task *task, int64 after_row, PutOffLine *lines)
{
	Datum		args[3];
	bool		isnull;
	int			n;

	args[0] = Int64GetDatum(task->id);
	args[1] = Int64GetDatum(after_row);
	args[2] = Int64GetDatum(PAGE);
	n = (int) QueryRun(&list_put_off, args, NULL);
	for (int i = 0; i < n; i++)
	{
		lines[i].batch = DatumGetInt32(QueryValue(i, 1, &isnull));
		lines[i].row_num = DatumGetInt64(QueryValue(i, 2, &isnull));
		lines[i].user_id = DatumGetInt64(QueryValue(i, 3, &isnull));
	}
	SPI_freetuptable(SPI_tuptable);
	return n;
}

/*
 * Handle one line of some pages after a row; "one" is what came of it.  One that is held up
 * ends the look: each may take a moment.  False: none could be handled; "result" says why, or stays where there is none.
 */
static bool
TryPages(const Task *task, int64 last, bool wait, RowsOpenClaim *open, int *code,
		 StepResult *result, StepResult *one)
{
	PutOffLine	lines[PAGE];

	for (int page = 0; page < PAGES_OF_A_STEP; page++)
	{
		int			n = ListPutOff(task, last, lines);

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
		{
			*one = TryPutOff(task, &lines[i], wait, open, code);
			last = lines[i].row_num;
			if (*one == STEP_MORE || *one == STEP_REFUSED || *one == STEP_HELD_UP)
				return true;
			if (*one == STEP_BUSY || *result == STEP_LAST)
				*result = *one;
		}
		if (n < PAGE)
			break;
	}
	return false;
}

/*
 * DistributePutOff handles one line that was put off.  STEP_WAIT: the users of
 * those that were looked at have claims open, "open" is one of them; STEP_BUSY: others
 * are at those that have not.  A million may wait for one transaction: so a step looks at
 * the first of them, and then at some from anywhere.
 */
StepResult
DistributePutOff(const Task *task, bool wait, RowsOpenClaim *open, int *code)
{
	StepResult	result = STEP_LAST;
	StepResult	one;
	QueryScope	scope;
	int64		anywhere = task->first_row +
		(int64) (pg_prng_double(&pg_global_prng_state) * task->lines);

	QueryBegin(&scope);
	if (TryPages(task, 0, wait, open, code, &result, &one) ||
		(result != STEP_LAST && TryPages(task, anywhere, wait, open, code, &result, &one)))
		result = one == STEP_HELD_UP ? STEP_BUSY : one;
	QueryEnd(&scope);
	return result;
}
