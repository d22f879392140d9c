/*
 * rest.c
 *		The lines of a task that were not handled.
 *
 * A task that was cancelled keeps its stage and its batches, until coupon_purge.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/args.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "task/section.h"
#include "task/task.h"

PG_FUNCTION_INFO_V1(coupon_task_rest);

static OwnerQuery undone_batches = {
	"SELECT " SECTION_PART_COLUMNS
	" FROM %1$s.coupon_task_batch WHERE task_id OPERATOR(pg_catalog.=) $1 AND done_at IS NULL ORDER BY batch",
	1, {INT8OID}
};

static OwnerQuery put_off_lines = {
	"SELECT row_num, user_id::pg_catalog.text FROM %1$s.coupon_task_put_off"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 ORDER BY row_num",
	1, {INT8OID}
};

static void
PutLine(FunctionCallInfo fcinfo, int64 row_num, Datum user, bool no_user)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[2] = {Int64GetDatum(row_num), user};
	bool		nulls[2] = {false, no_user};

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* The batches that nobody has done; the parts live in the current memory. */
static int
ReadParts(int64 task_id, SectionPart **parts)
{
	Datum		arg = Int64GetDatum(task_id);
	int			n = (int) QueryRun(&undone_batches, &arg, NULL);

	*parts = palloc(Max(n, 1) * sizeof(SectionPart));
	for (int i = 0; i < n; i++)
		SectionReadPart(*parts + i, task_id, i);
	return n;
}

static void
PutBatch(FunctionCallInfo fcinfo, const SectionPart *part)
{
	Line	   *lines = SectionLines(part);

	for (int i = 0; i < part->nlines; i++)
	{
		const Line *line = &lines[i];

		if (line->user_id != 0)
			PutLine(fcinfo, line->row_num, CStringGetTextDatum(psprintf(INT64_FORMAT, line->user_id)), false);
		else
			PutLine(fcinfo, line->row_num, line->text == NULL ? (Datum) 0 : CStringGetTextDatum(line->text),
					line->text == NULL);
	}
}

/* Lines of users who had a claim open when their batch came. */
static void
PutPutOff(FunctionCallInfo fcinfo, int64 task_id)
{
	Datum		arg = Int64GetDatum(task_id);
	int			n = (int) QueryRun(&put_off_lines, &arg, NULL);
	bool		isnull;

	for (int i = 0; i < n; i++)
		PutLine(fcinfo, DatumGetInt64(QueryValue(i, 1, &isnull)), QueryValue(i, 2, &isnull), false);
}

/*
 * coupon_task_rest(task_id) → row_num, user_id: the lines that were not handled: neither
 * issued nor in coupon_task_failure.
 *
 * Raises VC014 where there is no such task, or its file is not sealed.
 */
Datum
coupon_task_rest(PG_FUNCTION_ARGS)
{
	Task		task;
	SectionPart *parts;
	QueryScope	scope;
	int			n;

	ArgRequire(fcinfo, 0, "task_id");
	InitMaterializedSRF(fcinfo, 0);
	TaskRequireReadCommitted();
	if (!TaskRead(PG_GETARG_INT64(0), TASK_FOR_UPDATE, &task))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld does not exist", (long long) PG_GETARG_INT64(0))));
	if (task.state == TASK_DRAFT)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("the file of task %lld is not sealed", (long long) task.id),
				 errhint("All its lines are in its stage table.")));
	QueryBegin(&scope);
	n = ReadParts(task.id, &parts);
	for (int i = 0; i < n; i++)
	{
		MemoryContext caller = CurrentMemoryContext;
		MemoryContext batch = AllocSetContextCreate(caller, "coupon rest of a task", ALLOCSET_DEFAULT_SIZES);

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(batch);
		PutBatch(fcinfo, &parts[i]);
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(batch);
	}
	SectionForget(task.id);
	PutPutOff(fcinfo, task.id);
	QueryEnd(&scope);
	return (Datum) 0;
}
