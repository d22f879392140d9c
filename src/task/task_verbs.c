/*
 * task_verbs.c
 *		The verbs of tasks: coupon_task_create, _submit, _pause, _resume, _clear and
 *		_cancel.  How they are run is in runner.c.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/channel_names.h"
#include "base/commit_wakeup.h"
#include "base/errors.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "task/check.h"
#include "task/stage.h"
#include "task/task.h"

PG_FUNCTION_INFO_V1(coupon_task_create);
PG_FUNCTION_INFO_V1(coupon_task_submit);
PG_FUNCTION_INFO_V1(coupon_task_pause);
PG_FUNCTION_INFO_V1(coupon_task_resume);
PG_FUNCTION_INFO_V1(coupon_task_clear);
PG_FUNCTION_INFO_V1(coupon_task_cancel);

#define MAX_NAME 200			/* characters, as the CHECK has it */
#define MAX_FIRST_ROW INT64CONST(1000000000000)

static OwnerQuery insert_task = {
	"INSERT INTO %1$s.coupon_task"
	" (name, template_id, shop_number, notify, first_row, request_id)"
	" VALUES ($1, $2, $3, $4, $5, $6)"
	" ON CONFLICT (shop_number, request_id) WHERE request_id IS NOT NULL DO NOTHING RETURNING id",
	6, {TEXTOID, INT8OID, INT8OID, TEXTARRAYOID, INT8OID, TEXTOID}
};

static OwnerQuery task_of_request = {
	"SELECT id, name OPERATOR(pg_catalog.=) $3 AND template_id OPERATOR(pg_catalog.=) $4"
	"  AND notify OPERATOR(pg_catalog.=) $5 AND first_row OPERATOR(pg_catalog.=) $6"
	" FROM %1$s.coupon_task WHERE request_id OPERATOR(pg_catalog.=) $1"
	" AND COALESCE(shop_number, 0) OPERATOR(pg_catalog.=) COALESCE($2, 0)",
	6, {TEXTOID, INT8OID, TEXTOID, INT8OID, TEXTARRAYOID, INT8OID}
};

static OwnerQuery pause_task = {
	"UPDATE %1$s.coupon_task SET state = 'paused'::pg_catalog.text,"
	" paused_at = pg_catalog.clock_timestamp(), paused_by = session_user"
	" WHERE id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static OwnerQuery resume_task = {
	"UPDATE %1$s.coupon_task SET state = CASE WHEN started_at IS NULL"
	" THEN 'pending'::pg_catalog.text ELSE 'in_progress'::pg_catalog.text END,"
	" attempts = 0, last_error = NULL, retry_at = NULL,"
	" send_at = CASE WHEN started_at IS NULL THEN send_at"
	"  ELSE LEAST(send_at, pg_catalog.clock_timestamp()) END"
	" WHERE id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static OwnerQuery task_totals = {
	"SELECT COALESCE(t.issued, pg_catalog.sum(b.issued), 0)::bigint,"
	" COALESCE(t.failed, pg_catalog.sum(b.failed), 0)::bigint"
	" FROM %1$s.coupon_task t LEFT JOIN %1$s.coupon_task_batch b"
	"   ON b.task_id OPERATOR(pg_catalog.=) t.id"
	" WHERE t.id OPERATOR(pg_catalog.=) $1 GROUP BY t.id",
	1, {INT8OID}
};

static void
PutRow(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* The shop of the template, for which this user must be allowed to act. */
static Datum
ShopOfTemplate(int64 template_id, char *null)
{
	TemplateView view;

	if (!TemplateFetchAnywhere(template_id, &view) ||
		!RoleSeesShop(ROLE_OPERATOR, view.attrs.has_shop, view.attrs.shop_number))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("template %lld does not exist", (long long) template_id)));
	*null = view.attrs.has_shop ? ' ' : 'n';
	return Int64GetDatum(view.attrs.shop_number);
}

static void
CheckChannels(ArrayType *notify)
{
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	if (ArrayGetNItems(ARR_NDIM(notify), ARR_DIMS(notify)) > CHANNELS)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("notify names more than %d channels", CHANNELS)));
	deconstruct_array(notify, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &n);
	for (int i = 0; i < n; i++)
		(void) ChannelRequire(nulls[i] ? "NULL" : TextDatumGetCString(elements[i]));
}

static void
CheckCreateArguments(FunctionCallInfo fcinfo)
{
	ArgRequire(fcinfo, 0, "name");
	ArgRequire(fcinfo, 1, "template_id");
	ArgRequire(fcinfo, 2, "notify");
	ArgRequire(fcinfo, 3, "first_row");
	if (VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("name must not be empty")));
	if (pg_mbstrlen_with_len(VARDATA_ANY(PG_GETARG_TEXT_PP(0)),
							 VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0))) > MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("name is longer than %d characters", MAX_NAME)));
	if (PG_GETARG_INT64(3) < 1 || PG_GETARG_INT64(3) > MAX_FIRST_ROW)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("first row %lld is not one of a file", (long long) PG_GETARG_INT64(3)),
				 errhint("1 for a file without a header line, 2 after one.")));
	CheckChannels(PG_GETARG_ARRAYTYPE_P(2));
}

/*
 * The task that an earlier call with this request id has made; what it was made of
 * is that of the call, or a whole file would get the wrong coupon.
 */
static int64
TaskOfRequest(FunctionCallInfo fcinfo, Datum request_id, Datum shop, char shop_null)
{
	Datum		args[6] = {request_id, shop, PG_GETARG_DATUM(0), PG_GETARG_DATUM(1),
	PG_GETARG_DATUM(2), PG_GETARG_DATUM(3)};
	char		nulls[6] = {' ', shop_null, ' ', ' ', ' ', ' '};

	if (QueryRunLatest(&task_of_request, args, nulls) == 0 ||
		!DatumGetBool(QueryRequired(0, 2, BOOLOID)))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("the request id is in use"),
				 errdetail("It was given with another name, template, channels or first row."),
				 errhint("Use a UUID for each task, and the same arguments when you try again.")));
	return DatumGetInt64(QueryRequired(0, 1, INT8OID));
}

/*
 * coupon_task_create(name, template_id, notify, first_row, request_id): make a
 * task and the table for its lines.
 */
Datum
coupon_task_create(PG_FUNCTION_ARGS)
{
	const char *request_id = ArgRequestId(fcinfo, 4);
	Oid			caller = GetUserId();
	QueryScope	scope;
	Datum		args[6];
	char		nulls[6] = {' ', ' ', ' ', ' ', ' ', ' '};
	bool		isnull;
	int64		task_id;
	Oid			stage;
	Datum		values[2];
	bool		row_nulls[2] = {false};

	CheckCreateArguments(fcinfo);
	InitMaterializedSRF(fcinfo, 0);
	args[0] = PG_GETARG_DATUM(0);
	args[1] = PG_GETARG_DATUM(1);
	args[2] = ShopOfTemplate(PG_GETARG_INT64(1), &nulls[2]);
	args[3] = PG_GETARG_DATUM(2);
	args[4] = PG_GETARG_DATUM(3);
	args[5] = (Datum) 0;
	if (request_id != NULL)
		args[5] = CStringGetTextDatum(request_id);
	else
		nulls[5] = 'n';

	QueryBegin(&scope);
	if (QueryRun(&insert_task, args, nulls) == 1)
	{
		task_id = DatumGetInt64(QueryValue(0, 1, &isnull));
		StageCreate(task_id, caller);
	}
	else
		task_id = TaskOfRequest(fcinfo, args[5], args[2], nulls[2]);
	values[0] = Int64GetDatum(task_id);
	stage = StageOid(task_id);
	values[1] = ObjectIdGetDatum(stage);
	row_nulls[1] = !OidIsValid(stage);
	QueryEnd(&scope);
	PutRow(fcinfo, values, row_nulls);
	return (Datum) 0;
}

/*
 * coupon_task_submit(task_id, send_at) → code, outcome, lines, warnings
 */
Datum
coupon_task_submit(PG_FUNCTION_ARGS)
{
	Task		task = {0};
	int			code;
	Datum		values[4];
	bool		nulls[4] = {false};

	ArgRequire(fcinfo, 0, "task_id");
	InitMaterializedSRF(fcinfo, 0);
	code = TaskSubmit(PG_GETARG_INT64(0),
					  PG_ARGISNULL(1) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(1), &task);
	values[0] = Int32GetDatum(code);
	values[1] = CStringGetTextDatum(OutcomeName(code));
	values[2] = Int64GetDatum(task.lines);
	nulls[2] = code == OUTCOME_NOT_FOUND;
	nulls[3] = code != OUTCOME_OK;
	if (code == OUTCOME_OK)
		values[3] = TaskWarnings(&task);
	PutRow(fcinfo, values, nulls);
	return (Datum) 0;
}

/* The task of the first argument, locked to be changed: OUTCOME_OK or _NOT_FOUND. */
static int
LockTask(FunctionCallInfo fcinfo, Task *task)
{
	ArgRequire(fcinfo, 0, "task_id");
	InitMaterializedSRF(fcinfo, 0);
	TaskRequireReadCommitted();
	return TaskRead(PG_GETARG_INT64(0), TASK_FOR_UPDATE, task) ? OUTCOME_OK : OUTCOME_NOT_FOUND;
}

/* Pause or resume: code, outcome; again is well, too. */
static Datum
ChangeState(FunctionCallInfo fcinfo, bool pause)
{
	Task		task;
	int			code = LockTask(fcinfo, &task);
	Datum		values[2];
	bool		nulls[2] = {false};

	if (code == OUTCOME_OK)
	{
		bool		open = task.state == TASK_PENDING || task.state == TASK_IN_PROGRESS;
		Datum		arg = Int64GetDatum(task.id);
		QueryScope	scope;

		if (!open && task.state != TASK_PAUSED)
			code = OUTCOME_WRONG_STATE;
		else if (open == pause)
		{
			QueryBegin(&scope);
			QueryRun(pause ? &pause_task : &resume_task, &arg, NULL);
			QueryEnd(&scope);
			WakeWorkerAtCommit(WAKE_TASKS);
		}
	}
	values[0] = Int32GetDatum(code);
	values[1] = CStringGetTextDatum(OutcomeName(code));
	PutRow(fcinfo, values, nulls);
	return (Datum) 0;
}

/*
 * coupon_task_pause(task_id) → code, outcome: hold a task, after the batches that run.
 */
Datum
coupon_task_pause(PG_FUNCTION_ARGS)
{
	return ChangeState(fcinfo, true);
}

/*
 * coupon_task_resume(task_id) → code, outcome: let it go on.
 */
Datum
coupon_task_resume(PG_FUNCTION_ARGS)
{
	return ChangeState(fcinfo, false);
}

/*
 * coupon_task_clear(task_id) → code, outcome, lines: removes what has been loaded into the
 * stage of a task that is not sealed.
 */
Datum
coupon_task_clear(PG_FUNCTION_ARGS)
{
	Task		task;
	int			code = OUTCOME_OK;
	Datum		values[3];
	bool		nulls[3] = {false};

	ArgRequire(fcinfo, 0, "task_id");
	InitMaterializedSRF(fcinfo, 0);
	values[2] = Int64GetDatum(0);
	if (!TaskRead(PG_GETARG_INT64(0), TASK_FOR_UPDATE, &task))
		code = OUTCOME_NOT_FOUND;
	else if (task.state != TASK_DRAFT)
		code = OUTCOME_WRONG_STATE;
	else
	{
		QueryScope	scope;

		QueryBegin(&scope);
		values[2] = Int64GetDatum(StageClear(PG_GETARG_INT64(0)));
		QueryEnd(&scope);
	}
	values[0] = Int32GetDatum(code);
	values[1] = CStringGetTextDatum(OutcomeName(code));
	nulls[2] = code != OUTCOME_OK;
	PutRow(fcinfo, values, nulls);
	return (Datum) 0;
}

/*
 * coupon_task_cancel(task_id) → code, outcome, issued, failed
 */
Datum
coupon_task_cancel(PG_FUNCTION_ARGS)
{
	Task		task;
	int			code = LockTask(fcinfo, &task);
	Datum		values[4];
	bool		nulls[4] = {false, false, true, true};

	if (code == OUTCOME_OK && task.state == TASK_SUCCESS)
		code = OUTCOME_WRONG_STATE;
	else if (code == OUTCOME_OK && task.state != TASK_CANCELLED)
		TaskEnd(task.id, TASK_CANCELLED);

	values[0] = Int32GetDatum(code);
	values[1] = CStringGetTextDatum(OutcomeName(code));
	if (code != OUTCOME_NOT_FOUND)
	{
		Datum		arg = Int64GetDatum(task.id);
		QueryScope	scope;

		QueryBegin(&scope);
		QueryRun(&task_totals, &arg, NULL);
		values[2] = QueryValue(0, 1, &nulls[2]);
		values[3] = QueryValue(0, 2, &nulls[3]);
		QueryEnd(&scope);
	}
	PutRow(fcinfo, values, nulls);
	return (Datum) 0;
}
