/*
 * coupon_trigger.c
 *		Triggers on coupons and on the watermark: see template_trigger.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/id.h"
#include "stock/xact_changes.h"
#include "store/insert.h"
#include "store/user_filter.h"
#include "template/fold.h"
#include "template/trigger.h"

PG_FUNCTION_INFO_V1(coupon_watermark_guard);
PG_FUNCTION_INFO_V1(user_coupon_guard);

/*
 * coupon_watermark_guard(): on coupon_watermark, AFTER each statement.
 */
Datum
coupon_watermark_guard(PG_FUNCTION_ARGS)
{
	(void) TriggerGet(fcinfo);
	if (!FoldIsRunning())
		ChangesAdd(CHANGE_RECOUNT, CatalogGet()->template_table,
						 CHANGE_ALL_TEMPLATES);
	return PointerGetDatum(NULL);
}

/* A row that is not folded is the only record of a unit issued. */
static void
RefuseUnfoldedDelete(int64 coupon_id)
{
	/* Read once per command: this transaction may fold, and roll that back. */
	static int64 watermark = 0;
	static LocalTransactionId transaction = InvalidLocalTransactionId;
	static CommandId command = 0;
	static SubTransactionId subtransaction = InvalidSubTransactionId;

	if (transaction != CompatLocalTransactionId() ||
		command != GetCurrentCommandId(false) ||
		subtransaction != GetCurrentSubTransactionId())
	{
		watermark = FoldWatermark();
		transaction = CompatLocalTransactionId();
		command = GetCurrentCommandId(false);
		subtransaction = GetCurrentSubTransactionId();
	}
	if (coupon_id > watermark)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_FOLDED),
				 errmsg("coupon %lld has not been folded into the count of its stock",
						(long long) coupon_id),
				 errdetail("Deleting it now would give its unit back."),
				 errhint("Run SELECT coupon_fold() first.")));
}

static bool
IsSameStock(TriggerData *trigger)
{
	return TriggerSameColumn(trigger, "id") && TriggerSameColumn(trigger, "template_id") &&
		TriggerSameColumn(trigger, "holder");
}

/* Which stock a coupon came from is settled when it is folded, or sooner. */
static void
RefuseOtherStock(TriggerData *trigger)
{
	bool		free_before,
				free_after;

	(void) TriggerColumn(trigger, trigger->tg_trigtuple, "holder", &free_before);
	(void) TriggerColumn(trigger, trigger->tg_newtuple, "holder", &free_after);
	if (free_before && free_after)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("id, template and holder of coupon %lld cannot be changed: its stock is counted by them",
					(long long) TriggerInt8(trigger, trigger->tg_trigtuple, "id", 0)),
			 errhint("Revoke the coupon, and let the user claim another one.")));
}

/*
 * Tell what shared memory knows of users: which will hold a row, before it is
 * there (user_filter.c), and that somebody may hold one less, at commit
 * (limit_cache.c).
 */
static void
NoteUsers(TriggerData *trigger)
{
	Oid			relation = CatalogGet()->template_table;
	HeapTuple	new = TriggerRow(trigger);

	if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		UserFilterAdd(relation, TriggerInt8(trigger, new, "template_id", 0),
					 TriggerInt8(trigger, new, "user_id", 0));
	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		ChangesAdd(CHANGE_FEWER, relation,
						 TriggerInt8(trigger, trigger->tg_trigtuple,
									"template_id", 0));
}

/*
 * user_coupon_guard(): on user_coupon and each partition, BEFORE each row that
 * is inserted, deleted, or changed in a column that counts, and TRUNCATE.
 */
Datum
user_coupon_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = TriggerGet(fcinfo);
	HeapTuple	new;
	Oid			relation;
	bool		isnull;
	int64		old_template;
	int64		new_template;

	if (TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		NoteUsers(trigger);

	/* A row of the claim path is counted already. */
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event) && InsertIsRunning() &&
		InsertIsOurs(TriggerInt8(trigger, trigger->tg_trigtuple, "template_id", 0),
					 TriggerInt8(trigger, trigger->tg_trigtuple, "user_id", 0),
					 TriggerInt8(trigger, trigger->tg_trigtuple, "id", 0)))
		return PointerGetDatum(trigger->tg_trigtuple);

	relation = CatalogGet()->template_table;
	if (TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
	{
		ChangesAdd(CHANGE_RECOUNT, relation, CHANGE_ALL_TEMPLATES);
		return PointerGetDatum(NULL);
	}

	new = TriggerRow(trigger);
	old_template = TriggerInt8(trigger, trigger->tg_trigtuple, "template_id", 0);
	new_template = TriggerInt8(trigger, new, "template_id", 0);
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
	{
		(void) TriggerColumn(trigger, new, "holder", &isnull);
		if (!isnull && !TriggerIsReplica())
			RefuseUnfoldedDelete(TriggerInt8(trigger, new, "id", 0));
		if (!isnull && TriggerIsReplica())
			ChangesAdd(CHANGE_RECOUNT, relation, old_template);
		return PointerGetDatum(new);
	}

	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		if (IsSameStock(trigger))
			return PointerGetDatum(new);
		if (!TriggerIsReplica())
			RefuseOtherStock(trigger);
		ChangesAdd(CHANGE_RECOUNT, relation, old_template);
	}
	IdObserve(TriggerInt8(trigger, new, "id", 0));
	(void) TriggerColumn(trigger, new, "holder", &isnull);
	if (!isnull)
		ChangesAdd(CHANGE_RECOUNT, relation, new_template);
	return PointerGetDatum(new);
}
