/*
 * check.c
 *		What running a task would do, before it is run: coupon_task_check, and the
 *		warnings of coupon_task_submit.
 *
 * It reads and changes nothing, and takes no lock but that of the task, for share: so
 * it tells how things are now, and claims and the clock go on.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/channel_names.h"
#include "base/errors.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "task/check.h"
#include "task/input_rows.h"
#include "task/stage.h"

PG_FUNCTION_INFO_V1(coupon_task_check);
PG_FUNCTION_INFO_V1(coupon_stage_user);

#define MAX_WARNINGS 3

/* Lines of a task that are not handled yet, of $2. */
static OwnerQuery lines_left = {
	"SELECT $2 OPERATOR(pg_catalog.-) COALESCE(pg_catalog.sum(issued OPERATOR(pg_catalog.+) failed), 0)::pg_catalog.int8"
	" FROM %1$s.coupon_task_batch WHERE task_id OPERATOR(pg_catalog.=) $1",
	2, {INT8OID, INT8OID}
};

static OwnerQuery channel_is_on = {
	"SELECT 1 FROM %1$s.coupon_channel_state WHERE channel OPERATOR(pg_catalog.=) $1 AND enabled",
	1, {TEXTOID}
};

/* How the template will be at the task's time, as far as it is known now. */
static int
JudgeTemplate(const Task *task, TemplateView *view)
{
	TimestampTz at = TIMESTAMP_NOT_FINITE(task->send_at) ? GetCurrentTimestamp() : task->send_at;
	int			code;

	if (!TemplateFetchAnywhere(task->template_id, view) || !TaskOwnsTemplate(task, view))
		return OUTCOME_NOT_FOUND;
	code = TemplateJudge(view, TASK_OPEN_TO, at);
	return code == OUTCOME_NOT_STARTED ? OUTCOME_OK : code;
}

/* Channels of a task that send nothing: their number, and their names if wanted. */
static int
CountSilentChannels(const Task *task, StringInfo names)
{
	QueryScope	scope;
	int			n = 0;

	QueryBegin(&scope);
	for (int channel = 0; channel < CHANNELS; channel++)
	{
		Datum		arg;

		if ((task->notify & (1 << channel)) == 0)
			continue;
		arg = CStringGetTextDatum(ChannelName(channel));
		if (QueryRun(&channel_is_on, &arg, NULL) > 0)
			continue;
		if (names != NULL)
			appendStringInfo(names, "%s%s", n > 0 ? ", " : "", ChannelName(channel));
		n++;
	}
	QueryEnd(&scope);
	return n;
}

static int64
LinesLeft(const Task *task)
{
	Datum		args[2] = {Int64GetDatum(task->id), Int64GetDatum(task->lines)};
	QueryScope	scope;
	bool		isnull;
	int64		n;

	QueryBegin(&scope);
	QueryRun(&lines_left, args, NULL);
	n = DatumGetInt64(QueryValue(0, 1, &isnull));
	QueryEnd(&scope);
	return n;
}

/*
 * TaskWarnings tells what stands in the way of a task that is submitted: a text[], empty
 * where nothing does.  None of it stops the task now; the shop may mend it in time.
 */
Datum
TaskWarnings(const Task *task)
{
	TemplateView view;
	int			code = JudgeTemplate(task, &view);
	int64		lines = LinesLeft(task);
	StringInfoData channels;
	Datum		warnings[MAX_WARNINGS];
	int			n = 0;

	initStringInfo(&channels);
	if (code == OUTCOME_NOT_PUBLISHED)
		warnings[n++] = CStringGetTextDatum("the template is not published: the task waits for that");
	else if (code != OUTCOME_OK)
		warnings[n++] = CStringGetTextDatum(psprintf("the template cannot be given at that time: %s",
													 OutcomeName(code)));
	if (code != OUTCOME_NOT_FOUND && TemplateStockLeft(&view) < lines)
		warnings[n++] = CStringGetTextDatum(psprintf("%lld coupons are left for %lld lines",
													 (long long) TemplateStockLeft(&view),
													 (long long) lines));
	if (CountSilentChannels(task, &channels) > 0)
		warnings[n++] = CStringGetTextDatum(psprintf("channels that are not set up, or off: %s",
													 channels.data));
	return PointerGetDatum(construct_array(warnings, n, TEXTOID, -1, false, TYPALIGN_INT));
}

static void
PutCheck(FunctionCallInfo fcinfo, const char *name, const char *verdict, int64 n)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[3] = {CStringGetTextDatum(name), CStringGetTextDatum(verdict), Int64GetDatum(n)};
	bool		nulls[3] = {false, false, n < 0};

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
CheckLines(FunctionCallInfo fcinfo, const Task *task, StageSurvey *survey)
{
	QueryScope	scope;
	TemplateView view;
	/* A template that is another shop's by now tells nothing of who has it. */
	int64		template_id = JudgeTemplate(task, &view) == OUTCOME_NOT_FOUND ? 0 : task->template_id;

	QueryBegin(&scope);
	QueryPlanByIndex();
	StageLook(task->id, template_id, survey);
	QueryEnd(&scope);
	PutCheck(fcinfo, "lines", survey->lines > 0 ? "ok" : "error", survey->lines);
	PutCheck(fcinfo, "invalid", survey->invalid == 0 ? "ok" : "warning", survey->invalid);
	PutCheck(fcinfo, "duplicate", survey->duplicate == 0 ? "ok" : "warning", survey->duplicate);
	PutCheck(fcinfo, "held", survey->held == 0 ? "ok" : "warning", survey->held);
}

static void
CheckTemplate(FunctionCallInfo fcinfo, const Task *task, const StageSurvey *survey)
{
	TemplateView view;
	int			code = JudgeTemplate(task, &view);
	int64		wanted = survey->lines - survey->invalid - survey->duplicate - survey->held;
	int64		left = code == OUTCOME_NOT_FOUND ? 0 : TemplateStockLeft(&view);

	PutCheck(fcinfo, "stock", left >= wanted ? "ok" : "warning", left == CACHE_UNLIMITED ? -1 : left);
	PutCheck(fcinfo, "template", code == OUTCOME_OK ? "ok" :
			 code == OUTCOME_NOT_PUBLISHED ? "warning" : "error", -1);
}

/*
 * coupon_task_check(task_id) → check_name, verdict, n: a row for lines, invalid,
 * duplicate, held (users who have the template), stock (left; null: no end), template (at
 * the task's time) and channels (that send nothing).  verdict: ok, warning, error.
 *
 * Raises VC014 where there is no such task, or it has ended.
 */
Datum
coupon_task_check(PG_FUNCTION_ARGS)
{
	Task		task;
	StageSurvey survey;
	int			silent;

	ArgRequire(fcinfo, 0, "task_id");
	InitMaterializedSRF(fcinfo, 0);
	if (!TaskRead(PG_GETARG_INT64(0), TASK_FOR_SHARE, &task))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld does not exist", (long long) PG_GETARG_INT64(0))));
	if (task.state == TASK_SUCCESS || task.state == TASK_CANCELLED)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TASK_STATE),
				 errmsg("task %lld has ended: its state is %s", (long long) task.id,
						TaskStateName(task.state))));
	CheckLines(fcinfo, &task, &survey);
	CheckTemplate(fcinfo, &task, &survey);
	silent = CountSilentChannels(&task, NULL);
	PutCheck(fcinfo, "channels", silent == 0 ? "ok" : "warning", silent);
	return (Datum) 0;
}

/*
 * coupon_stage_user(user_id) → bigint: a user id as it stands in a file, null: it is none.
 */
Datum
coupon_stage_user(PG_FUNCTION_ARGS)
{
	Datum		value = PG_GETARG_DATUM(0);
	Line		line;

	if (toast_raw_datum_size(value) - VARHDRSZ > LINE_MAX_USER_ID)
		PG_RETURN_NULL();
	LineFill(&line, 0, DatumGetTextPP(value), false);
	if (line.user_id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(line.user_id);
}
