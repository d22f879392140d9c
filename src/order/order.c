/*
 * order.c
 *		The verbs by which an order holds a coupon, uses it and gives it back.
 *
 * Each is one transaction with what the shop does beside it.  A verb first takes the turn of
 * (user, order), then locks rows of user_coupon, then judges them.  What an order has done
 * is in coupon_event, written with the row: a repeated call finds it there, and does
 * nothing a second time.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "order/coupon_row.h"
#include "order/order_history.h"
#include "store/event.h"

PG_FUNCTION_INFO_V1(coupon_lock);
PG_FUNCTION_INFO_V1(coupon_use);
PG_FUNCTION_INFO_V1(coupon_release);
PG_FUNCTION_INFO_V1(coupon_refund);
PG_FUNCTION_INFO_V1(coupon_revoke);
PG_FUNCTION_INFO_V1(coupon_wallet_hide);

#define MOST_REASON 1000		/* characters */

/* One call of a verb. */
typedef struct OrderCall
{
	int64		user_id;
	const char *order_id;
	TimestampTz now;
	VisibleShops visible;
	QueryScope	scope;
	OrderPast  *past;			/* of the order, by coupon */
	int			npast;
	CouponRow  *rows;			/* locked: all that the order has to do with, and the one named */
	int			nrows;
} OrderCall;

/* What is answered of a coupon. */
typedef struct OrderAnswer
{
	int64		coupon_id;		/* 0: of none */
	OutcomeCode code;
	bool		repeated;
	int64		order_cents;	/* where the order has it */
	int64		discount;
	TimestampTz locked_until;	/* 0: null */
} OrderAnswer;

/*
 * Whether a verb runs.  A trigger of a shop's on coupons or their history must not call another
 * in the middle of it: each would overwrite what the other has judged.
 */
static bool running = false;

static void
NotRunning(void *arg)
{
	running = false;
}

/* The context ends with End, and with an error. */
static void
NoteRunning(void)
{
	MemoryContextCallback *at_end = palloc0(sizeof(MemoryContextCallback));

	if (running)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("a verb of orders cannot be called by a trigger within another"),
				 errhint("Call it after the statement.")));
	at_end->func = NotRunning;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, at_end);
	running = true;
}

/* The coupon that an argument names. */
static int64
NamedCoupon(FunctionCallInfo fcinfo, int arg)
{
	ArgRequire(fcinfo, arg, "user_coupon_id");
	if (PG_GETARG_INT64(arg) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("user_coupon_id %lld is not positive", (long long) PG_GETARG_INT64(arg))));
	return PG_GETARG_INT64(arg);
}

/* Lock and read all that the order has to do with, and the coupon that is named (0: none). */
static void
LockCoupons(OrderCall *call, int64 named)
{
	int64	   *ids = palloc((call->npast + 1) * sizeof(int64));
	int			n = 0;

	if (named != 0)
		ids[n++] = named;
	for (int i = 0; i < call->npast; i++)
	{
		if (call->past[i].coupon_id != named)
			ids[n++] = call->past[i].coupon_id;
	}
	call->nrows = CouponRowsLock(call->user_id, call->order_id, ids, n, &call->visible, &call->rows);
}

/*
 * The rights are those of the caller; then statements run as the owner until End.  The time
 * is taken when all is locked: who had it before may have judged by a later one than that of
 * our statement.
 */
static void
Begin(OrderCall *call, RoleKinds kinds, int64 user_id, const char *order_id, int64 named)
{
	ArgCheckUserId(user_id);
	memset(call, 0, sizeof(OrderCall));
	call->user_id = user_id;
	call->order_id = order_id;
	RoleBoundShops(kinds, &call->visible.shops, &call->visible.null);
	if (order_id != NULL)
		OrderTakeTurn(user_id, order_id);
	QueryBegin(&call->scope);
	NoteRunning();
	if (order_id != NULL)
		call->npast = OrderReadPast(user_id, order_id, &call->past);
	LockCoupons(call, named);
	call->now = GetCurrentTimestamp();
}

static void
End(OrderCall *call)
{
	QueryEnd(&call->scope);
}

static const OrderPast *
PastOf(const OrderCall *call, int64 coupon_id)
{
	return OrderPastOf(call->past, call->npast, coupon_id);
}

static bool
WasLast(const OrderCall *call, int64 coupon_id, const char *kind)
{
	const OrderPast *past = PastOf(call, coupon_id);

	return past != NULL && strcmp(past->last, kind) == 0;
}

static bool
WasRefunded(const OrderCall *call, int64 coupon_id)
{
	const OrderPast *past = PastOf(call, coupon_id);

	return past != NULL && past->refunded;
}

/* NULL: the user has no such coupon, or the caller may not see it. */
static CouponRow *
RowOf(OrderCall *call, int64 coupon_id)
{
	for (int i = 0; i < call->nrows; i++)
	{
		if (call->rows[i].id == coupon_id && call->rows[i].visible)
			return &call->rows[i];
	}
	return NULL;
}

static void
Record(const OrderCall *call, const char *kind, const CouponRow *row, const char *reason)
{
	Event		event = {
		.kind = kind, .coupon_id = row->id, .user_id = row->user_id,
		.template_id = row->template_id, .reason = reason,
		.order_id = call->order_id ? call->order_id : row->order_id,
		.amount = BillNumeric(row->order_cents), .discount = BillNumeric(row->discount)
	};

	EventAdd(&event);
}

/* No order has it any more. */
static void
Clear(CouponRow *row, CouponStatus status)
{
	row->status = status;
	row->order_id = NULL;
	row->order_cents = row->discount = 0;
	row->locked_until = row->used_at = 0;
}

/* Where the order has it: the money of it. */
static void
AnswerHad(OrderAnswer *answer, const CouponRow *row, bool repeated)
{
	answer->code = OUTCOME_OK;
	answer->repeated = repeated;
	answer->order_cents = row->order_cents;
	answer->discount = row->discount;
	answer->locked_until = row->locked_until;
}

/* What the order's other coupons take off; "code" says what speaks against one more. */
static int64
TakenOff(const OrderCall *call, int64 but, int64 cents, bool combine, OutcomeCode *code)
{
	int64		sum = 0;

	*code = OUTCOME_OK;
	for (int i = 0; i < call->nrows; i++)
	{
		const CouponRow *row = &call->rows[i];
		OutcomeCode why;
		CouponStanding standing = CouponRowStanding(row, call->order_id, call->now, &why);

		if (row->id == but ||
			(standing != COUPON_LEASED_TO_IT && standing != COUPON_USED_BY_IT))
			continue;
		if (!combine)
			*code = OUTCOME_ORDER_HAS_COUPON;
		else if (row->order_cents != cents)
			*code = OUTCOME_AMOUNT_CHANGED;
		sum += row->discount;
	}
	return sum;
}

/* Give a free coupon to the order: locked up to a deadline, or used (0). */
static void
Take(OrderCall *call, CouponRow *row, const Bill *bill, TimestampTz deadline, bool combine,
	 OrderAnswer *answer)
{
	int64		taken = TakenOff(call, row->id, bill->cents, combine, &answer->code);
	Discount	discount;

	if (answer->code != OUTCOME_OK)
		return;
	discount = DiscountOf(&row->rule, bill);
	answer->code = discount.code;
	if (answer->code == OUTCOME_OK && taken >= bill->cents)
		answer->code = OUTCOME_BELOW_THRESHOLD; /* nothing is left to take off */
	if (answer->code != OUTCOME_OK)
		return;
	row->status = deadline == 0 ? COUPON_USED : COUPON_LOCKED;
	row->locked_until = deadline;
	row->used_at = deadline == 0 ? call->now : 0;
	row->order_id = pstrdup(call->order_id);
	row->order_cents = bill->cents;
	row->discount = Min(discount.cents, bill->cents - taken);
	CouponRowStore(row);
	Record(call, deadline == 0 ? "use" : "lock", row, NULL);
	AnswerHad(answer, row, false);
}

/* A lease that begins at a moment ends.  Raises VC003 for one that is too short or too long. */
static TimestampTz
Deadline(FunctionCallInfo fcinfo, int arg, TimestampTz now)
{
	TimestampTz end = now;
	Interval	longest = {.day = 7};

	ArgRequire(fcinfo, arg, "ttl");
	if (PG_GETARG_INTERVAL_P(arg)->month == 0 &&
		DatumGetBool(DirectFunctionCall2(interval_le, PG_GETARG_DATUM(arg), IntervalPGetDatum(&longest))) &&
		DatumGetBool(DirectFunctionCall2(interval_ge, PG_GETARG_DATUM(arg), DirectFunctionCall1(interval_um, IntervalPGetDatum(&longest)))))
		end = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now),
													  PG_GETARG_DATUM(arg)));
	if (end <= now)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("ttl is out of range"),
				 errdetail("It must be longer than nothing and at most 7 days.")));
	return end;
}

/* Lock a coupon that the order has already: a new deadline, while it has not expired. */
static void
LockAgain(OrderCall *call, CouponRow *row, const Bill *bill, TimestampTz deadline,
		  OrderAnswer *answer)
{
	if (row->order_cents != bill->cents)
	{
		answer->code = OUTCOME_AMOUNT_CHANGED;
		return;
	}
	if (row->status == COUPON_LOCKED && row->use_end > call->now)
	{
		row->locked_until = deadline;
		CouponRowStore(row);
	}
	AnswerHad(answer, row, true);
}

static void
LockCoupon(OrderCall *call, CouponRow *row, const Bill *bill, TimestampTz deadline, bool combine,
		   OrderAnswer *answer)
{
	CouponStanding standing = CouponRowStanding(row, call->order_id, call->now, &answer->code);

	if (WasRefunded(call, row->id))
		answer->code = OUTCOME_WRONG_ORDER;
	else if (standing == COUPON_LEASED_TO_IT || standing == COUPON_USED_BY_IT)
		LockAgain(call, row, bill, deadline, answer);
	else if (standing == COUPON_FREE)
		Take(call, row, bill, deadline, combine, answer);
}

/* What is left to pay of an amount, after all that the order has. */
static int64
Payable(const OrderCall *call, const OrderAnswer *answer)
{
	OutcomeCode ignored;

	return answer->order_cents - answer->discount -
		TakenOff(call, answer->coupon_id, answer->order_cents, true, &ignored);
}

static void
PutMoney(int64 cents, bool given, Datum *value, bool *null)
{
	*null = !given;
	*value = given ? BillNumeric(cents) : (Datum) 0;
}

/*
 * coupon_lock(user_coupon_id, user_id, order_id, amount, shop_number, items, ttl, combine)
 * → code, outcome, discount, payable, locked_until, repeated: keeps a coupon for an order,
 * at a discount that stays.
 */
Datum
coupon_lock(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OrderAnswer answer = {.code = OUTCOME_NO_COUPON};
	int64		payable = 0;
	OrderCall	call;
	Bill		bill;
	CouponRow  *row;
	Datum		values[6];
	bool		nulls[6] = {false};
	bool		ok;

	answer.coupon_id = NamedCoupon(fcinfo, 0);
	ArgRequire(fcinfo, 1, "user_id");
	ArgRequire(fcinfo, 7, "combine");
	BillRead(fcinfo, 3, 4, 5, &bill);
	(void) Deadline(fcinfo, 6, GetCurrentStatementStartTimestamp());
	InitMaterializedSRF(fcinfo, 0);

	Begin(&call, ROLE_APPLICATION, PG_GETARG_INT64(1), ArgOrderId(fcinfo, 2), answer.coupon_id);
	row = RowOf(&call, answer.coupon_id);
	if (row != NULL)
		LockCoupon(&call, row, &bill, Deadline(fcinfo, 6, call.now), PG_GETARG_BOOL(7), &answer);
	ok = answer.code == OUTCOME_OK;
	if (ok)
		payable = Payable(&call, &answer);
	End(&call);

	values[0] = Int32GetDatum(answer.code);
	values[1] = CStringGetTextDatum(OutcomeName(answer.code));
	PutMoney(answer.discount, ok, &values[2], &nulls[2]);
	PutMoney(payable, ok, &values[3], &nulls[3]);
	values[4] = TimestampTzGetDatum(answer.locked_until);
	nulls[4] = !ok || answer.locked_until == 0;
	values[5] = BoolGetDatum(answer.repeated);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/* Use a coupon that the order has; "bill" is NULL where no amount was given. */
static void
UseHad(OrderCall *call, CouponRow *row, const Bill *bill, OrderAnswer *answer)
{
	bool		repeated = row->status == COUPON_USED;

	if (bill != NULL && row->order_cents != bill->cents)
	{
		answer->code = OUTCOME_AMOUNT_CHANGED;
		return;
	}
	if (!repeated)
	{
		row->status = COUPON_USED;
		row->used_at = call->now;
		row->locked_until = 0;
		CouponRowStore(row);
		Record(call, "use", row, NULL);
	}
	AnswerHad(answer, row, repeated);
}

/* "named": the caller has named this coupon, so that it may be used without a lease. */
static void
UseCoupon(OrderCall *call, CouponRow *row, const Bill *bill, bool named, OrderAnswer *answer)
{
	CouponStanding standing = CouponRowStanding(row, call->order_id, call->now, &answer->code);

	if (WasRefunded(call, row->id))
		answer->code = OUTCOME_WRONG_ORDER;
	else if (standing == COUPON_LEASED_TO_IT || standing == COUPON_USED_BY_IT)
		UseHad(call, row, bill, answer);
	else if (standing == COUPON_FREE && !named)
		answer->code = OUTCOME_WRONG_ORDER; /* another order had it meanwhile */
	else if (standing == COUPON_FREE)
	{
		if (bill == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
					 errmsg("amount must be given for a coupon that the order has not locked")));
		Take(call, row, bill, 0, false, answer);
	}
}

static void
PutAnswer(ReturnSetInfo *rsinfo, const OrderAnswer *answer, bool with_money, int64 payable)
{
	Datum		values[6];
	bool		nulls[6] = {false};
	int			n = 0;
	bool		ok = answer->code == OUTCOME_OK;

	nulls[n] = answer->coupon_id == 0;
	values[n++] = Int64GetDatum(answer->coupon_id);
	values[n++] = Int32GetDatum(answer->code);
	values[n++] = CStringGetTextDatum(OutcomeName(answer->code));
	if (with_money)
	{
		PutMoney(answer->discount, ok, &values[n], &nulls[n]);
		n++;
		PutMoney(payable, ok, &values[n], &nulls[n]);
		n++;
	}
	values[n] = BoolGetDatum(answer->repeated);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Begin a verb on (user_id, order_id, user_coupon_id); returns the coupon, 0: none is named. */
static int64
BeginByOrder(FunctionCallInfo fcinfo, OrderCall *call, RoleKinds kinds)
{
	int64		coupon_id = PG_ARGISNULL(2) ? 0 : NamedCoupon(fcinfo, 2);

	ArgRequire(fcinfo, 0, "user_id");
	InitMaterializedSRF(fcinfo, 0);
	Begin(call, kinds, PG_GETARG_INT64(0), ArgOrderId(fcinfo, 1), coupon_id);
	return coupon_id;
}

/* Whether a verb is about a row: the one that is named, or all but what the order has released. */
static bool
IsMeant(const OrderCall *call, const CouponRow *row, int64 named)
{
	if (!row->visible)
		return false;
	if (named != 0)
		return row->id == named;
	return !WasLast(call, row->id, "release") ||
		(row->order_id != NULL && strcmp(row->order_id, call->order_id) == 0);
}

static const OrderAnswer no_coupon = {.code = OUTCOME_NO_COUPON};

/*
 * coupon_use(user_id, order_id, user_coupon_id, amount, shop_number, items)
 * → user_coupon_id, code, outcome, discount, payable, repeated: the order is paid.  Without a
 * coupon all that it has locked, a row each.
 */
Datum
coupon_use(PG_FUNCTION_ARGS)
{
	OrderCall	call;
	Bill		bill;
	bool		has_bill = !PG_ARGISNULL(3);
	int64		named;
	OrderAnswer *answers;
	int			n = 0;
	int64		payable = 0;

	if (has_bill)
		BillRead(fcinfo, 3, 4, 5, &bill);
	else if (!PG_ARGISNULL(4) || !PG_ARGISNULL(5))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("shop_number and items need an amount")));
	named = BeginByOrder(fcinfo, &call, ROLE_APPLICATION);
	answers = palloc0((call.nrows + 1) * sizeof(OrderAnswer));
	for (int i = 0; i < call.nrows; i++)
	{
		CouponRow  *row = &call.rows[i];

		if (!IsMeant(&call, row, named))
			continue;
		answers[n].coupon_id = row->id;
		UseCoupon(&call, row, has_bill ? &bill : NULL, named != 0, &answers[n++]);
	}
	for (int i = 0; i < n; i++)
	{
		if (answers[i].code == OUTCOME_OK)
			payable = Payable(&call, &answers[i]);
	}
	for (int i = 0; i < n; i++)
		PutAnswer((ReturnSetInfo *) fcinfo->resultinfo, &answers[i], true, payable);
	if (n == 0)
		PutAnswer((ReturnSetInfo *) fcinfo->resultinfo, &no_coupon, true, 0);
	End(&call);
	return (Datum) 0;
}

static void
ReleaseCoupon(OrderCall *call, CouponRow *row, OrderAnswer *answer)
{
	CouponStanding standing = CouponRowStanding(row, call->order_id, call->now, &answer->code);
	bool		has_it = row->status == COUPON_LOCKED && row->order_id != NULL &&
		strcmp(row->order_id, call->order_id) == 0;

	if (standing == COUPON_USED_BY_IT)
		answer->code = OUTCOME_USED;
	else if (WasRefunded(call, row->id))
		answer->code = OUTCOME_WRONG_ORDER;
	else if (WasLast(call, row->id, "release"))
	{
		answer->code = OUTCOME_OK;
		answer->repeated = true;
	}
	else if (has_it || WasLast(call, row->id, "lock"))
	{
		/* Where the lease has run out another order may have taken the coupon. */
		CouponRow	was = *row;

		if (has_it)
		{
			Clear(row, COUPON_UNUSED);
			CouponRowStore(row);
		}
		Record(call, "release", &was, NULL);
		answer->code = OUTCOME_OK;
	}
	else if (row->status != COUPON_REVOKED)
		answer->code = OUTCOME_WRONG_ORDER;
}

/* The user has as much time left as when it was used. */
static TimestampTz
MovedEnd(const CouponRow *row, TimestampTz now)
{
	TimestampTz since = row->used_at == 0 ? 0 : Max(now - row->used_at, 0);

	if (TIMESTAMP_NOT_FINITE(row->use_end) || row->use_end >= END_TIMESTAMP - since)
		return row->use_end;
	return row->use_end + since;
}

static void
RefundCoupon(OrderCall *call, CouponRow *row, OrderAnswer *answer)
{
	CouponStanding standing = CouponRowStanding(row, call->order_id, call->now, &answer->code);
	const char *policy = row->has_template ? row->refund_policy : "keep";
	CouponRow	was = *row;

	if (standing == COUPON_USED_BY_IT)
	{
		answer->code = OUTCOME_NOT_REFUNDABLE;
		if (strcmp(policy, "keep") == 0 ||
			(strcmp(policy, "return_if_valid") == 0 && row->use_end <= call->now))
			return;
		if (strcmp(policy, "return") == 0)
			row->use_end = MovedEnd(row, call->now);
		Clear(row, COUPON_UNUSED);
		CouponRowStore(row);
		Record(call, "refund", &was, NULL);
		answer->code = OUTCOME_OK;
	}
	else if (WasLast(call, row->id, "refund"))
	{
		answer->code = OUTCOME_OK;
		answer->repeated = true;
	}
	else if (standing == COUPON_LEASED_TO_IT)
		answer->code = OUTCOME_LOCKED;
	else if (standing == COUPON_FREE || PastOf(call, row->id) == NULL)
		answer->code = OUTCOME_WRONG_ORDER;
}

/* A verb that answers a row for each coupon, without money. */
static Datum
GiveBack(FunctionCallInfo fcinfo,
		 void (*one) (OrderCall *call, CouponRow *row, OrderAnswer *answer), const char *done)
{
	OrderCall	call;
	int64		named = BeginByOrder(fcinfo, &call, ROLE_APPLICATION | ROLE_OPERATOR);
	int			n = 0;

	/* What was done is answered again where nothing is left to do. */
	for (int again = 0; again <= 1 && n == 0; again++)
	{
		for (int i = 0; i < call.nrows; i++)
		{
			CouponRow  *row = &call.rows[i];
			OrderAnswer answer = {.coupon_id = row->id};

			if (again ? !row->visible || named != 0 || !WasLast(&call, row->id, done) :
				!IsMeant(&call, row, named))
				continue;
			one(&call, row, &answer);
			PutAnswer((ReturnSetInfo *) fcinfo->resultinfo, &answer, false, 0);
			n++;
		}
	}
	if (n == 0)
		PutAnswer((ReturnSetInfo *) fcinfo->resultinfo, &no_coupon, false, 0);
	End(&call);
	return (Datum) 0;
}

/*
 * coupon_release(user_id, order_id, user_coupon_id) → user_coupon_id, code, outcome,
 * repeated: the order is not paid; what it has locked is free again.
 */
Datum
coupon_release(PG_FUNCTION_ARGS)
{
	return GiveBack(fcinfo, ReleaseCoupon, "release");
}

/*
 * coupon_refund(user_id, order_id, user_coupon_id) → user_coupon_id, code, outcome,
 * repeated: the order is refunded; what it has used is given back as the template says.
 */
Datum
coupon_refund(PG_FUNCTION_ARGS)
{
	return GiveBack(fcinfo, RefundCoupon, "refund");
}

/* A verb on (user_coupon_id, user_id) that answers code, outcome, repeated. */
static Datum
ChangeOne(FunctionCallInfo fcinfo, RoleKinds kinds,
		  void (*change) (OrderCall *call, CouponRow *row, const char *reason, OrderAnswer *answer),
		  const char *reason)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OrderAnswer answer = {.code = OUTCOME_NO_COUPON};
	OrderCall	call;
	CouponRow  *row;
	Datum		values[3];
	bool		nulls[3] = {false};
	int64		coupon_id = NamedCoupon(fcinfo, 0);

	ArgRequire(fcinfo, 1, "user_id");
	if (reason != NULL && pg_mbstrlen(reason) > MOST_REASON)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("reason has more than %d characters", MOST_REASON)));
	InitMaterializedSRF(fcinfo, 0);
	Begin(&call, kinds, PG_GETARG_INT64(1), NULL, coupon_id);
	row = RowOf(&call, coupon_id);
	if (row != NULL)
		change(&call, row, reason, &answer);
	End(&call);
	values[0] = Int32GetDatum(answer.code);
	values[1] = CStringGetTextDatum(OutcomeName(answer.code));
	values[2] = BoolGetDatum(answer.repeated);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

static void
RevokeCoupon(OrderCall *call, CouponRow *row, const char *reason, OrderAnswer *answer)
{
	CouponRow	was = *row;

	answer->code = row->status == COUPON_USED ? OUTCOME_USED : OUTCOME_OK;
	answer->repeated = row->status == COUPON_REVOKED;
	if (answer->code != OUTCOME_OK || answer->repeated)
		return;
	Clear(row, COUPON_REVOKED);
	CouponRowStore(row);
	Record(call, "revoke", &was, reason);
}

/*
 * coupon_revoke(user_coupon_id, user_id, reason) → code, outcome, repeated: takes a coupon
 * from a user, also one that an order has locked.  Gives no stock back.
 */
Datum
coupon_revoke(PG_FUNCTION_ARGS)
{
	return ChangeOne(fcinfo, ROLE_OPERATOR, RevokeCoupon,
					 PG_ARGISNULL(2) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(2)));
}

static void
HideCoupon(OrderCall *call, CouponRow *row, const char *reason, OrderAnswer *answer)
{
	CouponStanding standing = CouponRowStanding(row, NULL, call->now, &answer->code);

	if (standing == COUPON_FREE || answer->code == OUTCOME_NOT_YET_VALID)
		answer->code = OUTCOME_WRONG_STATE;
	else if (answer->code != OUTCOME_LOCKED)
	{
		answer->repeated = !CouponRowHide(row);
		answer->code = OUTCOME_OK;
	}
}

/*
 * coupon_wallet_hide(user_coupon_id, user_id) → code, outcome, repeated: takes a coupon that
 * cannot be used any more out of the list.
 */
Datum
coupon_wallet_hide(PG_FUNCTION_ARGS)
{
	return ChangeOne(fcinfo, ROLE_APPLICATION, HideCoupon, NULL);
}
