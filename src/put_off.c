/*
 * put_off.c
 *		Lines of users who had a claim of the same template open when their
 *		batch came to them: each is handled alone, as a claim, when that has
 *		ended.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "claim.h"
#include "distribute.h"
#include "lines.h"
#include "outcome.h"
#include "query.h"
#include "template.h"

#define MAX_LOOK 100			/* lines that one step looks at: see lock_put_off */

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
		Line		failed = {0};

		failed.row_num = line->row_num;
		failed.user_id = line->user_id;
		failed.fate = code == OUTCOME_OVER_LIMIT ? LINE_ALREADY_RECEIVED :
			LINE_OUT_OF_STOCK;
		(void) LinesRecordFailures(task->id, &failed, 1);
	}
}

/*
 * Claim for the user of a line.  An answer that concerns the template as a
 * whole refuses the line no more than its batch.
 */
static DistributeResult
ClaimPutOff(const Task *task, const PutOffLine *line, int *code)
{
	char		request_id[TASK_REQUEST_ID];
	ClaimRequest request = {0};
	ClaimResult result;
	TemplateView view;

	TaskRequestId(task, request_id);
	request.template_id = task->template_id;
	request.request_id = request_id;
	request.open_to = TEMPLATE_OPEN_TO(TEMPLATE_ANYONE) | TEMPLATE_OPEN_TO(TEMPLATE_TASK);
	request.now = GetCurrentTimestamp();
	request.limit_cap = 1;
	request.source = TemplateFetch(task->template_id, &view) ? TaskSource(&view) : "platform";
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
	PutOffLine	lines[MAX_LOOK];
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
