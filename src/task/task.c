/*
 * task.c
 *		Distribution tasks: their rows and states.
 *
 *		draft ── submit ──► pending ── send_at ──► in_progress ──► success
 *		  │                   ▲ │                    │   │
 *		  │            submit │ │                    │   └── template gone, over …
 *		  │                 failed ◄─────────────────│──────────┘
 *		  └───────────────────┴─┴──── cancel ────────┴──► cancelled
 *
 * One that is pending or in progress can be paused, goes on where it was when it is
 * resumed, and can be cancelled meanwhile.
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
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/channel_names.h"
#include "base/commit_wakeup.h"
#include "base/errors.h"
#include "base/guc.h"
#include "base/locks.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "notification/outbox.h"
#include "task/stage.h"
#include "task/task.h"

/* Lines of a batch of a shop. */
#define MIN_BATCH_OF_SHOP 1000
#define MAX_BATCH_OF_SHOP 5000

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

static OwnerQuery make_pending = {
	"UPDATE %1$s.coupon_task SET state = 'pending'::pg_catalog.text, lines = $2, send_at = $3,"
	" submitted_at = pg_catalog.clock_timestamp(), submitted_by = session_user, fail_reason = NULL,"
	" attempts = 0, last_error = NULL, retry_at = NULL, finished_at = NULL"
	" WHERE id OPERATOR(pg_catalog.=) $1",
	3, {INT8OID, INT8OID, TIMESTAMPTZOID}
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
 * TaskReadToSubmit is TaskRead for update, of a draft with its stage locked before, as those
 * who load it lock them.
 */
bool
TaskReadToSubmit(int64 task_id, Task *task)
{
	Datum		args[2];
	char		nulls[2] = {' ', ' '};
	QueryScope	scope;

	args[0] = Int64GetDatum(task_id);
	RoleBoundShops(ROLE_OPERATOR, &args[1], &nulls[1]);
	QueryBegin(&scope);
	if (QueryRun(&read_task, args, nulls) == 1 &&
		StateOfName(TextDatumGetCString(QueryRequired(0, 1, TEXTOID))) == TASK_DRAFT)
		StageLockToSeal(task_id);
	QueryEnd(&scope);
	return TaskRead(task_id, TASK_FOR_UPDATE, task);
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
 * TaskEnd ends a task for good: its totals stay, its lines go.  Of one that is cancelled
 * they stay, since some were not handled (coupon_task_rest), if its file was sealed.  The
 * task is locked for update.
 */
void
TaskEnd(int64 task_id, TaskState state)
{
	Datum		args[2];
	QueryScope	scope;
	bool		isnull;
	bool		sealed;

	QueryBegin(&scope);
	args[0] = Int64GetDatum(task_id);
	args[1] = CStringGetTextDatum(TaskStateName(state));
	QueryRun(&end_task, args, NULL);
	QueryRun(&lock_batches, args, NULL);
	sealed = DatumGetInt64(QueryValue(0, 1, &isnull)) > 0;
	if (state == TASK_CANCELLED)
		OutboxWithdrawTask(task_id);
	if (state != TASK_CANCELLED || !sealed)
	{
		QueryRun(&delete_batches, args, NULL);
		QueryRun(&delete_put_off, args, NULL);
		StageDrop(task_id);
	}
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

/*
 * TaskRequireReadCommitted raises VC010 at other levels: what others commit after our
 * snapshot, lines or batches, would be missed.
 */
void
TaskRequireReadCommitted(void)
{
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_WRONG_ISOLATION),
				 errmsg("a task cannot be changed at isolation level REPEATABLE READ or SERIALIZABLE"),
				 errhint("Use READ COMMITTED.")));
}

/* All shops share the worker: none has it commit for each line, or be away for long. */
static int
BatchSize(void)
{
	return RoleIsBound(ROLE_OPERATOR) ? Min(Max(coupon_batch_size, MIN_BATCH_OF_SHOP), MAX_BATCH_OF_SHOP) :
		coupon_batch_size;
}

/*
 * TaskSubmit seals the file of a task and makes it due at send_at; infinity: for calls
 * alone.  What only a call has started it makes due as well.  Returns an outcome, and
 * the task as it is then.
 */
int
TaskSubmit(int64 task_id, TimestampTz send_at, Task *task)
{
	int			batch_size = BatchSize();
	Datum		args[3];
	QueryScope	scope;

	TaskRequireReadCommitted();
	if (!TaskReadToSubmit(task_id, task))
		return OUTCOME_NOT_FOUND;
	if (task->state != TASK_DRAFT && task->state != TASK_PENDING &&
		task->state != TASK_FAILED &&
		!(task->state == TASK_IN_PROGRESS && TIMESTAMP_IS_NOEND(task->send_at)))
		return OUTCOME_WRONG_STATE;
	task->send_at = TIMESTAMP_IS_NOBEGIN(send_at) ? GetCurrentTimestamp() : send_at;

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
