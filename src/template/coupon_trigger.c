/*
 * coupon_trigger.c
 *		Triggers on coupons and on the watermark: see template_trigger.c.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/id.h"
#include "base/installed.h"
#include "base/owner_query.h"
#include "stock/xact_changes.h"
#include "store/insert.h"
#include "store/user_filter.h"
#include "template/adopt.h"
#include "template/fold.h"
#include "template/trigger.h"

PG_FUNCTION_INFO_V1(coupon_watermark_guard);
PG_FUNCTION_INFO_V1(user_coupon_guard);

/* -1: none. */
static int32
HolderOf(TriggerData *trigger, HeapTuple row)
{
	bool		isnull;
	Datum		value = TriggerColumn(trigger, row, "holder", &isnull);

	return isnull ? -1 : DatumGetInt32(value);
}

/* The new row, marked unless a fold writes it. */
static HeapTuple
MarkWatermark(TriggerData *trigger)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	int			column = SPI_fnumber(desc, "restored");
	Datum		restored = BoolGetDatum(!FoldIsRunning());
	bool		null = false;

	return heap_modify_tuple_by_cols(TriggerRow(trigger), desc, 1, &column, &restored, &null);
}

/*
 * coupon_watermark_guard(): on coupon_watermark, AFTER each statement, and BEFORE
 * each row that is inserted or updated.
 */
Datum
coupon_watermark_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = TriggerGet(fcinfo);

	if (TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
	{
		if (!FoldIsRunning())
		{
			(void) FoldLock(HolderOf(trigger, TriggerRow(trigger)), ExclusiveLock, true);
			IdRaiseAbove(TriggerInt8(trigger, TriggerRow(trigger), "upto", 0));
		}
		return PointerGetDatum(MarkWatermark(trigger));
	}
	if (!FoldIsRunning())
		ChangesAdd(CHANGE_RECOUNT, CatalogGet()->template_table,
						 CHANGE_ALL_TEMPLATES);
	return PointerGetDatum(NULL);
}

/* What somebody writes with a holder is counted, or not written. */
static void
RequireCountable(int32 holder, int64 coupon_id)
{
	/* Read once per command: this transaction may fold meanwhile. */
	static int32 held = -1;
	static int64 upto = 0;
	static LocalTransactionId transaction = InvalidLocalTransactionId;
	static CommandId command = 0;
	static SubTransactionId subtransaction = InvalidSubTransactionId;

	if (held != holder || transaction != CompatLocalTransactionId() ||
		command != GetCurrentCommandId(false) ||
		subtransaction != GetCurrentSubTransactionId())
	{
		(void) FoldLock(holder, ShareLock, true);
		upto = FoldUpto(holder);
		held = holder;
		transaction = CompatLocalTransactionId();
		command = GetCurrentCommandId(false);
		subtransaction = GetCurrentSubTransactionId();
	}
	if (coupon_id <= upto)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("coupon %lld with holder %d would not be counted: ids up to %lld are folded",
						(long long) coupon_id, holder, (long long) upto),
				 errhint("Leave its holder null, and then SELECT coupon_stock_adopt(template_id).")));
}

/* A row that is not folded is the only record of a unit issued. */
static void
RefuseUnfoldedDelete(int32 holder, int64 coupon_id)
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
	if (holder != HOLDER_DATABASE)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_FOLDED),
				 errmsg("coupon %lld is of holder %d, whose coupons are not folded",
						(long long) coupon_id, holder),
				 errdetail("Deleting it would give its unit back.")));
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
	int32		before = HolderOf(trigger, trigger->tg_trigtuple);
	int32		after = HolderOf(trigger, trigger->tg_newtuple);

	if (before < 0 && after < 0)
		return;
	if (AdoptIsRunning() && before < 0 && after == HOLDER_IMPORTED &&
		TriggerSameColumn(trigger, "id") && TriggerSameColumn(trigger, "template_id"))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("id, template and holder of coupon %lld cannot be changed: its stock is counted by them",
					(long long) TriggerInt8(trigger, trigger->tg_trigtuple, "id", 0)),
			 errhint("Revoke the coupon, and let the user claim another one.")));
}

/* Whether a row is counted by its id: it has a holder, and is not imported. */
static bool
IsCounted(TriggerData *trigger, HeapTuple row, int32 *holder)
{
	*holder = HolderOf(trigger, row);
	return *holder >= 0 && *holder != HOLDER_IMPORTED;
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
	/* Id, template and holder of a row that an UPDATE gives to another user, and when. */
	static int64 moving = 0;
	static int64 moving_template = 0;
	static int32 moving_holder = -1;
	static LocalTransactionId moving_transaction = InvalidLocalTransactionId;
	static CommandId moving_command = 0;
	HeapTuple	new;
	Oid			relation;
	int32		holder;
	int64		id;

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
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
	{
		if (IsCounted(trigger, new, &holder) && TriggerIsReplica())
			ChangesAdd(CHANGE_RECOUNT, relation, TriggerInt8(trigger, new, "template_id", 0));
		else if (holder >= 0 && holder != HOLDER_IMPORTED)
			RefuseUnfoldedDelete(holder, TriggerInt8(trigger, new, "id", 0));
		return PointerGetDatum(new);
	}
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		if (IsSameStock(trigger))
		{
			/* Then it may be inserted into another partition. */
			moving = 0;
			if (!TriggerSameColumn(trigger, "user_id") &&
				IsCounted(trigger, new, &moving_holder))
			{
				moving = TriggerInt8(trigger, new, "id", 0);
				moving_template = TriggerInt8(trigger, new, "template_id", 0);
				moving_transaction = CompatLocalTransactionId();
				moving_command = GetCurrentCommandId(false);
			}
			return PointerGetDatum(new);
		}
		if (!TriggerIsReplica())
			RefuseOtherStock(trigger);
		if (IsCounted(trigger, trigger->tg_trigtuple, &holder))
			ChangesAdd(CHANGE_RECOUNT, relation,
					   TriggerInt8(trigger, trigger->tg_trigtuple, "template_id", 0));
	}
	if (IsCounted(trigger, new, &holder))
	{
		int64		template_id = TriggerInt8(trigger, new, "template_id", 0);

		id = TriggerInt8(trigger, new, "id", 0);
		if (!TriggerIsReplica() && !(TRIGGER_FIRED_BY_INSERT(trigger->tg_event) &&
									  id == moving && template_id == moving_template &&
									  holder == moving_holder &&
									  moving_transaction == CompatLocalTransactionId() &&
									  moving_command == GetCurrentCommandId(false)))
			RequireCountable(holder, id);
		moving = 0;
		ChangesAdd(CHANGE_RECOUNT, relation, template_id);
	}
	return PointerGetDatum(new);
}
