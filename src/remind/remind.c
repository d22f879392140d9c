/*
 * remind.c
 *		Reminders of sales: coupon_remind_create, coupon_remind_cancel,
 *		coupon_remind_list.
 *
 * A row tells for one user and one template, as bitmaps over channels and
 * minutes before the start, what the user wants and what has fired.  The start
 * itself is only in the template: it can be moved by one UPDATE.  What fires
 * is the business of remind/tick.c.
 *
 * The ids of what has fired stand in "notifications" in the order of the bits,
 * so that a cancel finds the row of the outbox by its key.
 *
 * Locks: whoever changes a row of coupon_remind holds it, then touches the
 * outbox.  Create and cancel wait for each other and for a tick; a tick passes
 * over a row that is locked and comes again.  So of a cancel and a tick one is
 * first: either the bit is gone when the tick looks, or it has fired and the
 * cancel takes it out of the outbox.
 *
 * Races: a reminder that is committed after its moment was not seen by the tick
 * that looked for it.  Its commit knows, and makes the worker look again at
 * what was due before.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/array.h"
#include "base/commit_wakeup.h"
#include "base/errors.h"
#include "base/installed.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "notification/outbox.h"
#include "remind/early.h"
#include "remind/remind.h"
#include "template/template.h"

PG_FUNCTION_INFO_V1(coupon_remind_next);
PG_FUNCTION_INFO_V1(coupon_remind_sane);
PG_FUNCTION_INFO_V1(coupon_remind_create);
PG_FUNCTION_INFO_V1(coupon_remind_cancel);
PG_FUNCTION_INFO_V1(coupon_remind_list);

/* A tick looks that far ahead. */
#define WAKE_AHEAD USECS_PER_HOUR

/* What a call asks for, checked. */
typedef struct Request
{
	int64		template_id;
	int64		user_id;
	int			channel;
	int			minutes;
	RemindBitmap bit;
	TemplateView view;
	TimestampTz moment;
} Request;

/* A row of coupon_remind, locked. */
typedef struct Row
{
	RemindBitmap bitmap;
	RemindBitmap fired;
	int			nids;
	int64		ids[REMIND_CHANNELS * REMIND_SLOTS];
} Row;

typedef struct Answer
{
	int			code;
	bool		has_bitmap;
	RemindBitmap bitmap;		/* of the row afterwards */
	bool		has_moment;
	TimestampTz moment;
} Answer;

/* No row: the bit is there already.  The row is locked then, too. */
static OwnerQuery add_bit = {
	"INSERT INTO %1$s.coupon_remind AS r (user_id, template_id, bitmap)"
	" VALUES ($1, $2, $3::%1$s.remind_bitmap)"
	" ON CONFLICT (user_id, template_id) DO UPDATE"
	" SET bitmap = r.bitmap OPERATOR(%1$s.|) excluded.bitmap"
	" WHERE NOT r.bitmap OPERATOR(%1$s.@>) excluded.bitmap"
	" RETURNING r.bitmap",
	3, {INT8OID, INT8OID, INT8OID}
};

static OwnerQuery lock_row = {
	"SELECT bitmap, fired, notifications FROM %1$s.coupon_remind"
	" WHERE user_id OPERATOR(pg_catalog.=) $1"
	"  AND template_id OPERATOR(pg_catalog.=) $2 FOR UPDATE",
	2, {INT8OID, INT8OID}
};

static OwnerQuery lock_row_unless_held = {
	"SELECT bitmap, fired, notifications FROM %1$s.coupon_remind"
	" WHERE user_id OPERATOR(pg_catalog.=) $1"
	"  AND template_id OPERATOR(pg_catalog.=) $2 FOR UPDATE SKIP LOCKED",
	2, {INT8OID, INT8OID}
};

static OwnerQuery row_is_there = {
	"SELECT 1 FROM %1$s.coupon_remind WHERE user_id OPERATOR(pg_catalog.=) $1"
	" AND template_id OPERATOR(pg_catalog.=) $2",
	2, {INT8OID, INT8OID}
};

static OwnerQuery store_row = {
	"UPDATE %1$s.coupon_remind SET bitmap = $3::%1$s.remind_bitmap,"
	" fired = $4::%1$s.remind_bitmap, notifications = $5"
	" WHERE user_id OPERATOR(pg_catalog.=) $1 AND template_id OPERATOR(pg_catalog.=) $2",
	5, {INT8OID, INT8OID, INT8OID, INT8OID, INT8ARRAYOID}
};

static OwnerQuery delete_row = {
	"DELETE FROM %1$s.coupon_remind WHERE user_id OPERATOR(pg_catalog.=) $1"
	" AND template_id OPERATOR(pg_catalog.=) $2",
	2, {INT8OID, INT8OID}
};

static OwnerQuery list = {
	"SELECT template_id, shop_number, name, category, status, receive_start,"
	" receive_end, bitmap, pending,"
	" receive_start OPERATOR(pg_catalog.-) pg_catalog.make_interval(mins =>"
	"  %1$s.coupon_remind_next(pending, '{}'::%1$s.remind_bitmap)),"
	" image_url"
	" FROM (SELECT t.*, r.template_id, r.bitmap,"
	"  CASE WHEN t.status OPERATOR(pg_catalog.=) 'published'::pg_catalog.text"
	"   AND pg_catalog.statement_timestamp() OPERATOR(pg_catalog.<) t.receive_start"
	"   THEN r.bitmap OPERATOR(%1$s.-) r.fired ELSE '{}'::%1$s.remind_bitmap END AS pending"
	"  FROM %1$s.coupon_remind r JOIN %1$s.coupon_template t"
	"   ON t.id OPERATOR(pg_catalog.=) r.template_id"
	"  WHERE r.user_id OPERATOR(pg_catalog.=) $1 AND ($3 IS NULL"
	"   OR r.template_id OPERATOR(pg_catalog.<) $3)"
	"  AND ($4 IS NULL OR t.shop_number OPERATOR(pg_catalog.=) ANY ($4))"
	"  ORDER BY r.template_id DESC LIMIT $2) x ORDER BY template_id DESC",
	4, {INT8OID, INT4OID, INT8OID, INT8ARRAYOID}
};

/*
 * RemindMoment returns the moment so many minutes before a start, which may be
 * infinite.
 */
TimestampTz
RemindMoment(TimestampTz start, int minutes)
{
	return TIMESTAMP_NOT_FINITE(start) ? start :
		start - minutes * USECS_PER_MINUTE;
}

/*
 * RemindPlace returns how many reminders of the bitmap fire before one.
 */
int
RemindPlace(RemindBitmap bitmap, int channel, int minutes)
{
	RemindBitmap bit = RemindBit(channel, minutes);
	RemindBitmap farther = RemindFrom(minutes + REMIND_STEP_MINUTES);
	RemindBitmap same = RemindFrom(minutes) & ~farther;

	return pg_popcount64(bitmap & (farther | (same & (bit - 1))));
}

/*
 * RemindIds fills in the ids of what has fired, in the order of the bits, and
 * returns their number.  Where somebody has changed one of the two by hand,
 * the ids are 0: those of no notification.
 */
int
RemindIds(Datum notifications, bool isnull, RemindBitmap fired, int64 *ids)
{
	int			n = pg_popcount64(fired);
	ArrayType  *array;

	memset(ids, 0, n * sizeof(int64));
	if (isnull || n == 0)
		return n;
	array = DatumGetArrayTypeP(notifications);
	if (ARR_NDIM(array) == 1 && ARR_DIMS(array)[0] == n && !ARR_HASNULL(array))
		memcpy(ids, ARR_DATA_PTR(array), n * sizeof(int64));
	return n;
}

/*
 * coupon_remind_next(bitmap, fired) → smallint: the minutes of what fires next,
 * null where nothing is left.
 */
Datum
coupon_remind_next(PG_FUNCTION_ARGS)
{
	int			minutes = RemindFarthest(PG_GETARG_REMIND_BITMAP(0) &
										 ~PG_GETARG_REMIND_BITMAP(1));

	if (minutes == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT16(minutes);
}

/*
 * coupon_remind_sane(user_id, bitmap, fired): the CHECK of coupon_remind.  Returns
 * true, or raises 23514 that names the column and the rule it breaks.
 */
Datum
coupon_remind_sane(PG_FUNCTION_ARGS)
{
	RemindBitmap bitmap = PG_GETARG_REMIND_BITMAP(1);

	if (PG_GETARG_INT64(0) <= 0)
		InstalledRefuse("coupon_remind", "user_id", "must be positive");
	if (bitmap == 0)
		InstalledRefuse("coupon_remind", "bitmap", "must not be empty");
	if ((PG_GETARG_REMIND_BITMAP(2) & ~bitmap) != 0)
		InstalledRefuse("coupon_remind", "fired", "must lie within bitmap");
	PG_RETURN_BOOL(true);
}

/* Checks the arguments; false where the caller may see no such template. */
static bool
GetRequest(FunctionCallInfo fcinfo, Request *request, Answer *answer)
{
	ArgRequire(fcinfo, 0, "template_id");
	ArgRequire(fcinfo, 1, "user_id");
	ArgRequire(fcinfo, 2, "channel");
	ArgRequire(fcinfo, 3, "minutes");
	request->template_id = PG_GETARG_INT64(0);
	request->user_id = PG_GETARG_INT64(1);
	ArgCheckUserId(request->user_id);
	request->channel = ChannelRequire(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	request->minutes = PG_GETARG_INT32(3);
	RemindCheckMinutes(request->minutes);
	request->bit = RemindBit(request->channel, request->minutes);
	TemplateRequirePreload();

	memset(answer, 0, sizeof(*answer));
	answer->code = OUTCOME_NOT_FOUND;
	if (!TemplateFetch(request->template_id, &request->view) ||
		!RoleSeesShop(ROLE_APPLICATION, request->view.attrs.has_shop, request->view.attrs.shop_number))
		return false;
	request->moment = RemindMoment(request->view.attrs.receive_start, request->minutes);
	answer->moment = request->moment;
	answer->has_moment = true;
	return true;
}

static Datum
ReturnAnswer(FunctionCallInfo fcinfo, const Answer *answer)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[4];
	bool		nulls[4] = {false};

	InitMaterializedSRF(fcinfo, 0);
	values[0] = Int32GetDatum(answer->code);
	values[1] = CStringGetTextDatum(OutcomeName(answer->code));
	values[2] = RemindBitmapGetDatum(answer->bitmap);
	nulls[2] = !answer->has_bitmap;
	values[3] = TimestampTzGetDatum(answer->moment);
	nulls[3] = !answer->has_moment;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/* Locks the row; false where there is none. */
static bool
LockRow(OwnerQuery *query, const Request *request, Row *row)
{
	Datum		args[2] = {Int64GetDatum(request->user_id), Int64GetDatum(request->template_id)};
	Datum		ids;
	bool		isnull;

	if (QueryRun(query, args, NULL) == 0)
		return false;
	row->bitmap = DatumGetRemindBitmap(QueryValue(0, 1, &isnull));
	row->fired = DatumGetRemindBitmap(QueryValue(0, 2, &isnull));
	ids = QueryValue(0, 3, &isnull);
	row->nids = RemindIds(ids, isnull, row->fired, row->ids);
	return true;
}

/* Stores the row, or deletes it where nothing is left of it. */
static void
StoreRow(const Request *request, const Row *row)
{
	Datum		args[5];
	char		nulls[5] = {' ', ' ', ' ', ' ', ' '};

	args[0] = Int64GetDatum(request->user_id);
	args[1] = Int64GetDatum(request->template_id);
	if (row->bitmap == 0)
	{
		QueryRun(&delete_row, args, NULL);
		return;
	}
	args[2] = RemindBitmapGetDatum(row->bitmap);
	args[3] = RemindBitmapGetDatum(row->fired);
	nulls[4] = row->nids == 0 ? 'n' : ' ';
	args[4] = ArrayOfInt8(row->ids, row->nids);
	QueryRun(&store_row, args, nulls);
}

/*
 * Forget that the reminder has fired which a notification is about, and those farther ones
 * of the channel that it stood for, which have no notification; false: there is none.
 */
static bool
Unfire(Row *row, int64 id)
{
	RemindBitmap fired = row->fired;
	RemindBitmap left = row->fired;
	int			of_channel = -1;
	int			nearest = 0;
	int			nids = 0;
	int			channel,
				minutes;

	for (int place = 0; RemindTakeFirst(&left, &channel, &minutes); place++)
	{
		if (row->ids[place] == id)
		{
			of_channel = channel;
			nearest = minutes;
		}
	}
	if (of_channel < 0)
		return false;
	left = fired;
	for (int place = 0; RemindTakeFirst(&left, &channel, &minutes); place++)
	{
		if (row->ids[place] == id ||
			(row->ids[place] == 0 && channel == of_channel && minutes > nearest))
			row->fired &= ~RemindBit(channel, minutes);
		else
			row->ids[nids++] = row->ids[place];
	}
	row->nids = nids;
	return true;
}

/*
 * RemindGiveBack makes reminders that have fired wait again, since their notification is not
 * to be sent now.  Of LeaseOrigin; all of them, or none.
 */
LeaseGiven
RemindGiveBack(int64 id, int64 template_id, const int64 *users, int nusers)
{
	Row		   *rows = palloc(nusers * sizeof(Row));
	bool	   *found = palloc0(nusers * sizeof(bool));
	bool		any = false;

	for (int i = 0; i < nusers; i++)
	{
		Request		request = {.template_id = template_id, .user_id = users[i]};
		Datum		args[2] = {Int64GetDatum(users[i]), Int64GetDatum(template_id)};

		if (LockRow(&lock_row_unless_held, &request, &rows[i]))
			found[i] = Unfire(&rows[i], id);
		else if (QueryRun(&row_is_there, args, NULL) > 0)
			return LEASE_HELD;
	}
	for (int i = 0; i < nusers; i++)
	{
		Request		request = {.template_id = template_id, .user_id = users[i]};

		if (!found[i])
			continue;
		StoreRow(&request, &rows[i]);
		any = true;
	}
	if (any)
		WakeWorkerAtCommit(WAKE_REMIND_ALL);
	return any ? LEASE_GIVEN : LEASE_UNKNOWN;
}

/*
 * RemindMove says that the notification of reminders has become another one: their cancel
 * looks for it.  Of LeaseOrigin; all of them, or none.
 */
LeaseGiven
RemindMove(int64 id, int64 new_id, int64 template_id, const int64 *users, int nusers)
{
	Row		   *rows = palloc(nusers * sizeof(Row));
	bool	   *found = palloc0(nusers * sizeof(bool));

	for (int i = 0; i < nusers; i++)
	{
		Request		request = {.template_id = template_id, .user_id = users[i]};
		Datum		args[2] = {Int64GetDatum(users[i]), Int64GetDatum(template_id)};

		found[i] = LockRow(&lock_row_unless_held, &request, &rows[i]);
		if (!found[i] && QueryRun(&row_is_there, args, NULL) > 0)
			return LEASE_HELD;
	}
	for (int i = 0; i < nusers; i++)
	{
		Request		request = {.template_id = template_id, .user_id = users[i]};

		if (!found[i])
			continue;
		for (int place = 0; place < rows[i].nids; place++)
		{
			if (rows[i].ids[place] == id)
				rows[i].ids[place] = new_id;
		}
		StoreRow(&request, &rows[i]);
	}
	return LEASE_GIVEN;
}

/*
 * Take a reminder that has fired out of the outbox.  False: it is being sent,
 * or over.  The row forgets it either way, to be stored by the caller.
 */
static bool
TakeOutFired(const Request *request, Row *row)
{
	int			place = RemindPlace(row->fired, request->channel, request->minutes);
	bool		withdrawn = OutboxWithdraw(row->ids[place], request->user_id);

	row->fired &= ~request->bit;
	row->nids--;
	memmove(&row->ids[place], &row->ids[place + 1],
			(row->nids - place) * sizeof(int64));
	return withdrawn;
}

/*
 * The bit is there already.  Where it has fired and the sale was put off since,
 * it is to fire once more: nobody else would tell this user.  The start, then
 * the clock are read with the row locked, so that what a tick has just fired is
 * in the past, also where the sale came nearer while we waited for it.
 */
static void
CreateAgain(Request *request, Answer *answer)
{
	Row			row;

	if (!LockRow(&lock_row, request, &row))
		elog(ERROR, "reminder of user %lld was not stored", (long long) request->user_id);
	answer->code = OUTCOME_DUPLICATE;
	answer->bitmap = row.bitmap;
	if ((row.fired & request->bit) == 0 ||
		!TemplateFetch(request->template_id, &request->view))
		return;
	request->moment = RemindMoment(request->view.attrs.receive_start, request->minutes);
	answer->moment = request->moment;
	/* One that was sent before quiet hours has told this user of this start. */
	if (GetCurrentTimestamp() >= request->moment ||
		RemindHasGoneEarly(request->channel, request->moment, GetCurrentTimestamp()))
		return;
	(void) TakeOutFired(request, &row);
	StoreRow(request, &row);
	answer->code = OUTCOME_OK;
}

static void
Create(Request *request, Answer *answer)
{
	Datum		args[3];
	bool		isnull;
	QueryScope	scope;

	args[0] = Int64GetDatum(request->user_id);
	args[1] = Int64GetDatum(request->template_id);
	args[2] = RemindBitmapGetDatum(request->bit);
	answer->has_bitmap = true;
	QueryBegin(&scope);
	if (QueryRun(&add_bit, args, NULL) > 0)
	{
		answer->code = OUTCOME_OK;
		answer->bitmap = DatumGetRemindBitmap(QueryValue(0, 1, &isnull));
	}
	else
		CreateAgain(request, answer);
	QueryEnd(&scope);
	/* Judged at the commit, which may be long from now. */
	WakeWorkerIfLate(request->moment - WAKE_AHEAD, WAKE_REMIND);
	WakeWorkerIfLate(request->moment, WAKE_REMIND_ALL);
}

/*
 * coupon_remind_create(template_id, user_id, channel, minutes): remind a user
 * so many minutes before the start.
 */
Datum
coupon_remind_create(PG_FUNCTION_ARGS)
{
	Request		request;
	Answer		answer;
	TimestampTz now = GetCurrentStatementStartTimestamp();

	if (GetRequest(fcinfo, &request, &answer))
	{
		if (request.view.attrs.status != TEMPLATE_PUBLISHED)
			answer.code = OUTCOME_NOT_PUBLISHED;
		else if (now >= request.view.attrs.receive_start)
			answer.code = OUTCOME_ALREADY_STARTED;
		else if (now >= request.moment)
			answer.code = OUTCOME_TOO_LATE;
		else
			Create(&request, &answer);
	}
	return ReturnAnswer(fcinfo, &answer);
}

static void
Cancel(const Request *request, Answer *answer)
{
	QueryScope	scope;
	Row			row = {0};

	QueryBegin(&scope);
	answer->has_bitmap = LockRow(&lock_row, request, &row);
	if (!answer->has_bitmap || (row.bitmap & request->bit) == 0)
		answer->code = OUTCOME_NOT_RESERVED;
	else if ((row.fired & request->bit) != 0 && !TakeOutFired(request, &row))
		answer->code = OUTCOME_TOO_LATE;
	else
	{
		row.bitmap &= ~request->bit;
		StoreRow(request, &row);
		answer->code = OUTCOME_OK;
	}
	answer->bitmap = row.bitmap;
	QueryEnd(&scope);
}

/*
 * coupon_remind_cancel(template_id, user_id, channel, minutes): take a reminder
 * back.
 */
Datum
coupon_remind_cancel(PG_FUNCTION_ARGS)
{
	Request		request;
	Answer		answer;

	if (GetRequest(fcinfo, &request, &answer))
	{
		if (GetCurrentStatementStartTimestamp() >= request.view.attrs.receive_start)
			answer.code = OUTCOME_ALREADY_STARTED;
		else
			Cancel(&request, &answer);
	}
	return ReturnAnswer(fcinfo, &answer);
}

/*
 * coupon_remind_list(user_id, page_size, before_id): the reminders of a user,
 * newest template first.
 */
Datum
coupon_remind_list(PG_FUNCTION_ARGS)
{
	Datum		values[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};

	ArgRequire(fcinfo, 0, "user_id");
	ArgCheckPageSize(fcinfo, 1);
	values[0] = PG_GETARG_DATUM(0);
	values[1] = PG_GETARG_DATUM(1);
	values[2] = PG_GETARG_DATUM(2);
	nulls[2] = PG_ARGISNULL(2) ? 'n' : ' ';
	RoleBoundShops(ROLE_APPLICATION | ROLE_OPERATOR, &values[3], &nulls[3]);
	return QueryMaterialize(fcinfo, &list, values, nulls);
}
