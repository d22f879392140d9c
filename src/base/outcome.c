/*
 * outcome.c
 *		The one vocabulary of answers, and coupon_require for those who want an
 *		error.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "base/errors.h"
#include "base/outcome.h"

PG_FUNCTION_INFO_V1(coupon_outcomes);
PG_FUNCTION_INFO_V1(coupon_require);

typedef struct Outcome
{
	const char *name;
	const char *verbs;			/* which verbs answer it */
	bool		retryable;		/* the same call may succeed later */
	const char *english;
	const char *chinese;
} Outcome;

static const Outcome outcomes[] = {
	[OUTCOME_OK] = {"ok", "receive,redeem,task,remind,order,wallet", false,
	"You have received the coupon.", "领取成功"},
	[OUTCOME_NOT_FOUND] = {"not_found", "receive,task,remind,order", false,
	"This coupon does not exist.", "优惠券不存在"},
	[OUTCOME_OUT_OF_STOCK] = {"out_of_stock", "receive,redeem", true,
	"All coupons have been claimed.", "优惠券已抢光"},
	[OUTCOME_ENDED] = {"ended", "receive,redeem", false,
	"This offer has ended.", "活动已结束"},
	[OUTCOME_OVER_LIMIT] = {"over_limit", "receive,redeem", false,
	"You have already received this coupon.", "已达领取上限"},
	[OUTCOME_NOT_STARTED] = {"not_started", "receive,redeem", true,
	"This offer has not started yet.", "活动尚未开始"},
	[OUTCOME_NOT_PUBLISHED] = {"not_published", "receive,redeem,remind", true,
	"This coupon is not available now.", "优惠券未上架"},
	[OUTCOME_NOT_CLAIMABLE] = {"not_claimable", "receive", false,
	"This coupon cannot be claimed here.", "该优惠券不可直接领取"},
	[OUTCOME_INVALID_CODE] = {"invalid_code", "redeem", false,
	"This code is not valid.", "兑换码无效"},
	[OUTCOME_CODE_USED] = {"code_used", "redeem", false,
	"This code has been used.", "兑换码已被使用"},
	[OUTCOME_THROTTLED] = {"throttled", "redeem", true,
	"Too many attempts. Please try again later.", "尝试次数过多，请稍后再试"},
	[OUTCOME_WRONG_STATE] = {"wrong_state", "task,wallet", false,
	"This is not possible in the present state.", "当前状态不允许此操作"},
	[OUTCOME_EMPTY] = {"empty", "task", true,
	"The file has no lines.", "文件中没有数据"},
	[OUTCOME_ALREADY_STARTED] = {"already_started", "remind", false,
	"The sale has begun already.", "活动已经开始"},
	[OUTCOME_TOO_LATE] = {"too_late", "remind", false,
	"The time of this reminder has passed.", "提醒时间已过"},
	[OUTCOME_DUPLICATE] = {"duplicate", "remind", false,
	"You have set this reminder already.", "您已设置过该提醒"},
	[OUTCOME_NOT_RESERVED] = {"not_reserved", "remind", false,
	"You have not set this reminder.", "您未设置该提醒"},
	[OUTCOME_NO_COUPON] = {"no_coupon", "order,wallet", false,
	"There is no such coupon.", "没有可用的优惠券"},
	[OUTCOME_NOT_YET_VALID] = {"not_yet_valid", "order", true,
	"This coupon cannot be used yet.", "优惠券尚未到使用时间"},
	[OUTCOME_EXPIRED] = {"expired", "order", false,
	"This coupon has expired.", "优惠券已过期"},
	[OUTCOME_USED] = {"used", "order", false,
	"This coupon has been used.", "优惠券已被使用"},
	[OUTCOME_LOCKED] = {"locked", "order,wallet", true,
	"This coupon is held by another order.", "优惠券已被其他订单占用"},
	[OUTCOME_REVOKED] = {"revoked", "order", false,
	"This coupon is no longer valid.", "优惠券已作废"},
	[OUTCOME_BELOW_THRESHOLD] = {"below_threshold", "order", false,
	"The order does not reach the amount that this coupon needs.", "订单金额未达到使用门槛"},
	[OUTCOME_GOODS_UNKNOWN] = {"goods_unknown", "order", false,
	"This coupon is for certain goods, and the order does not name its goods.", "该优惠券限指定商品，订单未提供商品信息"},
	[OUTCOME_GOODS_NOT_MATCHED] = {"goods_not_matched", "order", false,
	"This coupon is not for these goods.", "订单商品不适用该优惠券"},
	[OUTCOME_SHOP_NOT_MATCHED] = {"shop_not_matched", "order", false,
	"This coupon is for another shop.", "该优惠券不适用于此店铺"},
	[OUTCOME_AMOUNT_CHANGED] = {"amount_changed", "order", false,
	"The amount of the order has changed since the coupon was applied.", "订单金额已变更，请重新选择优惠券"},
	[OUTCOME_ORDER_HAS_COUPON] = {"order_has_coupon", "order", false,
	"The order has a coupon already.", "该订单已使用其他优惠券"},
	[OUTCOME_WRONG_ORDER] = {"wrong_order", "order", false,
	"This coupon does not belong to this order.", "优惠券与订单不符"},
	[OUTCOME_NOT_REFUNDABLE] = {"not_refundable", "order", false,
	"This coupon is not given back.", "优惠券不予退还"},
};

StaticAssertDecl(lengthof(outcomes) == OUTCOME_COUNT,
				 "every outcome code needs its row");

/*
 * OutcomeName returns the name of a code.
 */
const char *
OutcomeName(int code)
{
	Assert(code >= 0 && code < OUTCOME_COUNT);
	return outcomes[code].name;
}

/*
 * coupon_outcomes() → code, outcome, verbs, retryable, message_en, message_zh
 */
Datum
coupon_outcomes(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int code = 0; code < OUTCOME_COUNT; code++)
	{
		const Outcome *outcome = &outcomes[code];
		Datum		values[6];
		bool		nulls[6] = {false};

		values[0] = Int32GetDatum(code);
		values[1] = CStringGetTextDatum(outcome->name);
		values[2] = CStringGetTextDatum(outcome->verbs);
		values[3] = BoolGetDatum(outcome->retryable);
		values[4] = CStringGetTextDatum(outcome->english);
		values[5] = CStringGetTextDatum(outcome->chinese);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * coupon_require(code, outcome) raises VC1nn unless the code is 0, for callers
 * who want a refusal to abort their transaction.
 */
Datum
coupon_require(PG_FUNCTION_ARGS)
{
	int32		code;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("outcome code must not be null")));
	code = PG_GETARG_INT32(0);
	if (code == OUTCOME_OK)
		PG_RETURN_VOID();
	if (code < 0 || code >= OUTCOME_COUNT)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%d is not an outcome code", code),
				 errhint("SELECT * FROM coupon_outcomes() lists them.")));
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE('V', 'C', '1', '0' + code / 10, '0' + code % 10)),
			 errmsg("coupon refused: %s",
					PG_ARGISNULL(1) ? outcomes[code].name :
					text_to_cstring(PG_GETARG_TEXT_PP(1))),
			 errdetail("%s", outcomes[code].english)));
}
