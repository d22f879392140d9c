/*
 * task.c
 *		Distribution tasks: their rows, states and verbs.
 *
 *		draft ── submit ──► pending ── send_at ──► in_progress ──► success
 *		  │                   ▲ │                    │   │
 *		  │            submit │ │                    │   └── template gone, over …
 *		  │                 failed ◄─────────────────│──────────┘
 *		  └───────────────────┴─┴──── cancel ────────┴──► cancelled
 *
 * A backend that changes a state holds the lock of the task for update; one that
 * handles a batch, or loads the stage, holds it for share.  So a cancel waits for the
 * batches that are running, at most one per runner, and no other begins.  It
 * is a lock of the lock manager, which serves in the order of asking: with a
 * lock of the row a runner would take it again and again before a cancel that
 * waits for it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/channel_names.h"
#include "base/commit_wakeup.h"
#include "base/errors.h"
#include "base/guc.h"
#include "base/locks.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "notification/outbox.h"
#include "task/check.h"
#include "task/stage.h"
#include "task/task.h"

PG_FUNCTION_INFO_V1(coupon_task_create);
PG_FUNCTION_INFO_V1(coupon_task_submit);
PG_FUNCTION_INFO_V1(coupon_task_clear);
PG_FUNCTION_INFO_V1(coupon_task_pause);
PG_FUNCTION_INFO_V1(coupon_task_resume);
PG_FUNCTION_INFO_V1(coupon_task_cancel);

#define MIN_BATCH_OF_SHOP 1000	/* lines */
#define MAX_NAME 200			/* characters, as the CHECK has it */
#define MAX_FIRST_ROW INT64CONST(1000000000000)

static const char *const state_names[] = {
	[TASK_DRAFT] = "draft",
	[TASK_PENDING] = "pending",
	[TASK_IN_PROGRESS] = "in_progress",
	[TASK_PAUSED] = "paused",
	[TASK_SUCCESS] = "success",
	[TASK_FAILED] = "failed",
	[TASK_CANCELLED] = "cancelled",
};

static OwnerQuery read_task = {
	"SELECT state, template_id, first_row, COALESCE(lines, 0), attempts, notify,"
	" submitted_at, shop_number, send_at"
	" FROM %1$s.coupon_task WHERE id OPERATOR(pg_catalog.=) $1"
	" AND ($2 IS NULL OR shop_number OPERATOR(pg_catalog.=) ANY ($2))",
	2, {INT8OID, INT8ARRAYOID}
};

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

static OwnerQuery make_pending = {
	"UPDATE %1$s.coupon_task SET state = 'pending'::pg_catalog.text, lines = $2, send_at = $3,"
	" submitted_at = pg_catalog.clock_timestamp(), submitted_by = session_user, fail_reason = NULL,"
	" attempts = 0, last_error = NULL, retry_at = NULL, finished_at = NULL"
	" WHERE id OPERATOR(pg_catalog.=) $1",
	3, {INT8OID, INT8OID, TIMESTAMPTZOID}
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
	" attempts = 0, last_error = NULL, retry_at = NULL"
	" WHERE id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static OwnerQuery end_task = {
	"UPDATE %1$s.coupon_task t SET state = $2, issued = n.issued, failed = n.failed,"
	" finished_at = pg_catalog.clock_timestamp(), retry_at = NULL,"
	" cancelled_by = CASE WHEN $2 OPERATOR(pg_catalog.=) 'cancelled'::pg_catalog.text THEN session_user END"
	" FROM (SELECT COALESCE(pg_catalog.sum(b.issued), 0)::bigint AS issued,"
	"   COALESCE(pg_catalog.sum(b.failed), 0)::bigint AS failed"
	"   FROM %1$s.coupon_task_batch b WHERE b.task_id OPERATOR(pg_catalog.=) $1) n"
	" WHERE t.id OPERATOR(pg_catalog.=) $1",
	2, {INT8OID, TEXTOID}
};

/* In the order in which a runner waits for them. */
static OwnerQuery lock_batches = {
	"SELECT pg_catalog.count(*) FROM (SELECT FROM %1$s.coupon_task_batch"
	" WHERE task_id OPERATOR(pg_catalog.=) $1 ORDER BY batch FOR UPDATE) b",
	1, {INT8OID}
};

static OwnerQuery delete_batches = {
	"DELETE FROM %1$s.coupon_task_batch WHERE task_id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static OwnerQuery delete_put_off = {
	"DELETE FROM %1$s.coupon_task_put_off WHERE task_id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static OwnerQuery fail_task = {
	"UPDATE %1$s.coupon_task SET state = 'failed'::pg_catalog.text, fail_reason = $2,"
	" finished_at = pg_catalog.clock_timestamp()"
	" WHERE id OPERATOR(pg_catalog.=) $1"
	" AND state OPERATOR(pg_catalog.=) ANY ('{pending,in_progress}'::pg_catalog.text[])"
	" AND submitted_at OPERATOR(pg_catalog.=) $3",
	3, {INT8OID, TEXTOID, TIMESTAMPTZOID}
};

static OwnerQuery task_totals = {
	"SELECT COALESCE(t.issued, pg_catalog.sum(b.issued), 0)::bigint,"
	" COALESCE(t.failed, pg_catalog.sum(b.failed), 0)::bigint"
	" FROM %1$s.coupon_task t LEFT JOIN %1$s.coupon_task_batch b"
	"   ON b.task_id OPERATOR(pg_catalog.=) t.id"
	" WHERE t.id OPERATOR(pg_catalog.=) $1 GROUP BY t.id",
	1, {INT8OID}
};

/*
 * TaskStateName returns the name of a state.
 */
const char *
TaskStateName(TaskState state)
{
	return state_names[state];
}

static TaskState
StateOfName(const char *name)
{
	for (int i = 0; i < lengthof(state_names); i++)
	{
		if (strcmp(state_names[i], name) == 0)
			return (TaskState) i;
	}
	elog(ERROR, "unknown state \"%s\" of a task", name);
}

/*
 * TaskRequestId writes the request id that all coupons of a task carry: it
 * tells them from others.
 */
void
TaskRequestId(const Task *task, char *request_id)
{
	snprintf(request_id, TASK_REQUEST_ID, "task " INT64_FORMAT, task->id);
}

static uint32
ChannelBits(ArrayType *names)
{
	Datum	   *elements;
	int			n;
	uint32		bits = 0;

	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	for (int i = 0; i < n; i++)
		bits |= 1 << ChannelOfName(TextDatumGetCString(elements[i]));
	return bits;
}

/*
 * TaskTryRead locks a task until the end of the transaction, and reads its
 * row.  There is none for a user who is bound to another shop; he locks none.
 */
TaskFound
TaskTryRead(int64 task_id, TaskLock lock, bool wait, Task *task)
{
	LOCKTAG		tag;
	Datum		args[2];
	char		nulls[2] = {' ', ' '};
	QueryScope	scope;
	bool		isnull;
	bool		found;

	args[0] = Int64GetDatum(task_id);
	RoleBoundShops(ROLE_OPERATOR, &args[1], &nulls[1]);
	QueryBegin(&scope);
	found = QueryRun(&read_task, args, nulls) == 1;
	QueryEnd(&scope);
	if (!found)
		return TASK_NOT_FOUND;
	LockTagOfTask(&tag, task_id);
	if (LockAcquire(&tag, lock == TASK_FOR_UPDATE ? ExclusiveLock : ShareLock,
					false, !wait) == LOCKACQUIRE_NOT_AVAIL)
		return TASK_LOCKED;

	QueryBegin(&scope);
	found = QueryRun(&read_task, args, nulls) == 1;
	if (found)
	{
		task->id = task_id;
		task->state = StateOfName(TextDatumGetCString(QueryRequired(0, 1, TEXTOID)));
		task->template_id = DatumGetInt64(QueryValue(0, 2, &isnull));
		task->first_row = DatumGetInt64(QueryValue(0, 3, &isnull));
		task->lines = DatumGetInt64(QueryValue(0, 4, &isnull));
		task->attempts = DatumGetInt32(QueryValue(0, 5, &isnull));
		task->notify = ChannelBits(DatumGetArrayTypeP(QueryRequired(0, 6, TEXTARRAYOID)));
		task->submitted_at = DatumGetTimestampTz(QueryValue(0, 7, &isnull));
		task->shop_number = DatumGetInt64(QueryValue(0, 8, &isnull));
		task->has_shop = !isnull;
		task->send_at = DatumGetTimestampTz(QueryValue(0, 9, &isnull));
		if (isnull)
			task->send_at = GetCurrentTimestamp();
	}
	QueryEnd(&scope);
	return found ? TASK_FOUND : TASK_NOT_FOUND;
}

/*
 * TaskRead is TaskTryRead that waits for the lock; tells whether there is such
 * a task.
 */
bool
TaskRead(int64 task_id, TaskLock lock, Task *task)
{
	return TaskTryRead(task_id, lock, true, task) == TASK_FOUND;
}

/*
 * TaskOwnsTemplate tells whether the template is of the shop that it was of
 * when the task was made.  One made later, with the id of one that was
 * deleted, may be another's.
 */
bool
TaskOwnsTemplate(const Task *task, const TemplateView *view)
{
	return task->has_shop == view->attrs.has_shop &&
		(!task->has_shop || task->shop_number == view->attrs.shop_number);
}

/*
 * TaskEnd ends a task for good: its totals stay, its lines go.  The
 * task is locked for update.
 */
void
TaskEnd(int64 task_id, TaskState state)
{
	Datum		args[2];
	QueryScope	scope;

	QueryBegin(&scope);
	args[0] = Int64GetDatum(task_id);
	args[1] = CStringGetTextDatum(TaskStateName(state));
	QueryRun(&end_task, args, NULL);
	QueryRun(&lock_batches, args, NULL);
	QueryRun(&delete_batches, args, NULL);
	QueryRun(&delete_put_off, args, NULL);
	if (state == TASK_CANCELLED)
		OutboxWithdrawTask(task_id);
	StageDrop(task_id);
	QueryEnd(&scope);
}

/*
 * TaskFail stops a task for a reason that somebody has to look at; what is
 * left of it can be submitted again.  It goes on where that has been done
 * already, since the submission that the reason is about.
 */
void
TaskFail(int64 task_id, TimestampTz submitted_at, const char *reason)
{
	Datum		args[3];
	QueryScope	scope;

	QueryBegin(&scope);
	args[0] = Int64GetDatum(task_id);
	args[1] = CStringGetTextDatum(reason);
	args[2] = TimestampTzGetDatum(submitted_at);
	QueryRun(&fail_task, args, NULL);
	QueryEnd(&scope);
}

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

/* What others commit after our snapshot, lines or batches, would be missed. */
static void
RequireReadCommitted(void)
{
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_WRONG_ISOLATION),
				 errmsg("a task cannot be submitted or cancelled at isolation level REPEATABLE READ or SERIALIZABLE"),
				 errhint("Use READ COMMITTED.")));
}

/* All shops share the worker: none has it commit for each line. */
static int
BatchSize(void)
{
	return RoleIsBound(ROLE_OPERATOR) ? Max(coupon_batch_size, MIN_BATCH_OF_SHOP) : coupon_batch_size;
}

/*
 * TaskSubmit seals the file of a task and makes it due at send_at; now: as
 * soon as possible.  Returns an outcome, and the task as it is then.
 */
int
TaskSubmit(int64 task_id, bool now, TimestampTz send_at, Task *task)
{
	int			batch_size = BatchSize();
	Datum		args[3];
	QueryScope	scope;

	RequireReadCommitted();
	if (!TaskRead(task_id, TASK_FOR_UPDATE, task))
		return OUTCOME_NOT_FOUND;
	task->send_at = now || TIMESTAMP_IS_NOBEGIN(send_at) ? GetCurrentTimestamp() : send_at;
	if (task->state != TASK_DRAFT && task->state != TASK_PENDING &&
		task->state != TASK_FAILED)
		return OUTCOME_WRONG_STATE;

	QueryBegin(&scope);
	if (task->state == TASK_DRAFT)
		task->lines = StageSeal(task_id, task->first_row, batch_size);
	if (task->lines > 0)
	{
		args[0] = Int64GetDatum(task_id);
		args[1] = Int64GetDatum(task->lines);
		args[2] = TimestampTzGetDatum(task->send_at);
		QueryRun(&make_pending, args, NULL);
		task->state = TASK_PENDING;
		WakeWorkerAtCommit(WAKE_TASKS);
	}
	QueryEnd(&scope);
	return task->lines > 0 ? OUTCOME_OK : OUTCOME_EMPTY;
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
	code = TaskSubmit(PG_GETARG_INT64(0), PG_ARGISNULL(1),
					  PG_ARGISNULL(1) ? 0 : PG_GETARG_TIMESTAMPTZ(1), &task);
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

/* Pause or resume: code, outcome; again is well, too. */
static Datum
ChangeState(FunctionCallInfo fcinfo, bool pause)
{
	Task		task;
	int			code = OUTCOME_WRONG_STATE;
	bool		is_open;
	Datum		task_id;
	Datum		values[2];
	bool		nulls[2] = {false};

	ArgRequire(fcinfo, 0, "task_id");
	task_id = PG_GETARG_DATUM(0);
	InitMaterializedSRF(fcinfo, 0);
	RequireReadCommitted();
	if (!TaskRead(DatumGetInt64(task_id), TASK_FOR_UPDATE, &task))
		code = OUTCOME_NOT_FOUND;
	else if ((is_open = task.state == TASK_PENDING || task.state == TASK_IN_PROGRESS) ||
			 task.state == TASK_PAUSED)
	{
		QueryScope	scope;

		code = OUTCOME_OK;
		QueryBegin(&scope);
		if (is_open == pause)
			QueryRun(pause ? &pause_task : &resume_task, &task_id, NULL);
		QueryEnd(&scope);
		WakeWorkerAtCommit(WAKE_TASKS);
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
	int			code = OUTCOME_OK;
	Datum		task_id;
	Datum		values[4];
	bool		nulls[4] = {false};

	ArgRequire(fcinfo, 0, "task_id");
	task_id = PG_GETARG_DATUM(0);
	InitMaterializedSRF(fcinfo, 0);
	RequireReadCommitted();
	if (!TaskRead(DatumGetInt64(task_id), TASK_FOR_UPDATE, &task))
		code = OUTCOME_NOT_FOUND;
	else if (task.state == TASK_SUCCESS)
		code = OUTCOME_WRONG_STATE;
	else if (task.state != TASK_CANCELLED)
		TaskEnd(task.id, TASK_CANCELLED);

	values[0] = Int32GetDatum(code);
	values[1] = CStringGetTextDatum(OutcomeName(code));
	nulls[2] = nulls[3] = true;
	if (code != OUTCOME_NOT_FOUND)
	{
		QueryScope	scope;

		QueryBegin(&scope);
		QueryRun(&task_totals, &task_id, NULL);
		values[2] = QueryValue(0, 1, &nulls[2]);
		values[3] = QueryValue(0, 2, &nulls[3]);
		QueryEnd(&scope);
	}
	PutRow(fcinfo, values, nulls);
	return (Datum) 0;
}
