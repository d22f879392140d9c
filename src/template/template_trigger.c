/*
 * template_trigger.c
 *		Triggers on templates and their stock: they keep the shared cache right
 *		whoever writes (an administrator, logical apply, a restore), and refuse
 *		what would break the books.  Those on coupons are in coupon_trigger.c.
 *
 * All are ENABLE ALWAYS.  A logical apply worker or a restore, which run with
 * session_replication_role = replica, tell the cache but refuse nothing: what
 * they bring has been accepted elsewhere.
 *
 * A total is lowered, a template deleted, or a frozen column changed, by first
 * reserving the units concerned, as a claim does: so no claim can slip in
 * between the check and the commit, and none waits for either.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/commit_wakeup.h"
#include "base/count_snapshot.h"
#include "base/errors.h"
#include "base/owner_query.h"
#include "stock/xact_changes.h"
#include "template/fold.h"
#include "template/template.h"
#include "template/trigger.h"

PG_FUNCTION_INFO_V1(coupon_template_guard);
PG_FUNCTION_INFO_V1(coupon_stock_guard);

/* What a coupon is worth: fixed once one has been issued. */
static const char *const frozen_columns[] = {
	"shop_number", "issuer", "discount_kind", "discount_value",
	"threshold_amount", "max_discount", "goods_ids", "refund_policy"
};

static OwnerQuery any_coupon_of_template = {
	"SELECT 1 WHERE EXISTS (SELECT FROM %1$s.user_coupon"
	" WHERE template_id OPERATOR(pg_catalog.=) $1)"
	" OR EXISTS (SELECT FROM %1$s.coupon_stock"
	" WHERE template_id OPERATOR(pg_catalog.=) $1 AND folded OPERATOR(pg_catalog.>) 0)",
	1, {INT8OID}
};

static OwnerQuery stock_row = {
	"SELECT 1 FROM %1$s.coupon_stock WHERE template_id OPERATOR(pg_catalog.=) $1"
	" AND holder OPERATOR(pg_catalog.=) $2",
	2, {INT8OID, INT4OID}
};

static OwnerQuery lock_template = {
	"SELECT 1 FROM %1$s.coupon_template WHERE id OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE",
	1, {INT8OID}
};

/* What a holder other than this database has issued. */
static OwnerQuery issued_by_holder = {
	"SELECT COALESCE((SELECT s.folded FROM %1$s.coupon_stock s"
	"  WHERE s.template_id OPERATOR(pg_catalog.=) $1 AND s.holder OPERATOR(pg_catalog.=) $2), 0)"
	" OPERATOR(pg_catalog.+) (SELECT pg_catalog.count(*) FROM %1$s.user_coupon c"
	"  WHERE c.template_id OPERATOR(pg_catalog.=) $1 AND c.holder OPERATOR(pg_catalog.=) $2"
	"  AND c.holder OPERATOR(pg_catalog.<>) 3 AND c.id OPERATOR(pg_catalog.>) COALESCE("
	"   (SELECT w.upto FROM %1$s.coupon_watermark w WHERE w.holder OPERATOR(pg_catalog.=) $2), 0))",
	2, {INT8OID, INT4OID}
};

static OwnerQuery any_other_holder = {
	"SELECT 1 FROM %1$s.coupon_stock WHERE template_id OPERATOR(pg_catalog.=) $1"
	" AND holder OPERATOR(pg_catalog.<>) 0"
	" AND (quota OPERATOR(pg_catalog.>) 0 OR folded OPERATOR(pg_catalog.>) 0)"
	" UNION ALL SELECT 1 FROM %1$s.user_coupon WHERE template_id OPERATOR(pg_catalog.=) $1"
	"  AND holder OPERATOR(pg_catalog.<>) 0 LIMIT 1",
	1, {INT8OID}
};

static OwnerQuery lock_coupons = {
	"LOCK TABLE %1$s.user_coupon IN SHARE MODE"
};

static OwnerQuery any_coupon = {
	"SELECT 1 WHERE EXISTS (SELECT FROM %1$s.user_coupon)"
	" OR EXISTS (SELECT FROM %1$s.coupon_stock WHERE folded OPERATOR(pg_catalog.>) 0)"
};

/* Runs a statement that returns a row for yes, by what is committed now. */
static bool
Ask(OwnerQuery *query, Datum *args)
{
	QueryScope	scope;
	bool		yes;

	QueryBegin(&scope);
	yes = QueryRunLatest(query, args, NULL) > 0;
	QueryEnd(&scope);
	return yes;
}

/*
 * Take "n" units out of the shared stock until commit; limit is the quota as
 * this transaction sees it before.  False where so many are not free.
 */
static bool
TakeOut(int64 template_id, int64 limit, int64 n)
{
	CacheKey	key;
	TimestampTz deadline = StockGateDeadline();
	StockResult result = STOCK_CHANGED;

	TemplateRefuseOwnRows(template_id);
	CacheMakeKey(&key, CatalogGet()->template_table, template_id);
	while (result == STOCK_CHANGED || result == STOCK_RECOUNT)
	{
		CHECK_FOR_INTERRUPTS();
		if (!TemplateLoad(template_id, result == STOCK_RECOUNT))
			return true;		/* nobody else sees it: nothing is issued */
		TemplateLockLoader(template_id, ExclusiveLock);
		result = StockLower(&key, limit, n, deadline);
		TemplateUnlockLoader(template_id, ExclusiveLock);
	}
	return result == STOCK_OK;
}

/* Counts from the tables, for a template that is not in shared memory. */
static int64
IssuedByTables(int64 template_id)
{
	CountSnapshot count;
	TemplateRow row;
	int64		issued = 0;

	CountSnapshotTake(&count, true);
	if (TemplateReadRow(template_id, count.snapshot, &row))
		issued = TemplateCountIssued(template_id, &row, count.snapshot);
	CountSnapshotRelease(&count);
	return issued;
}

static void
RefuseBelowIssued(int64 template_id, int64 new_quota)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BELOW_ISSUED),
			 errmsg("stock of template %lld cannot fall to %lld: more have been issued",
					(long long) template_id, (long long) new_quota),
			 errhint("SELECT coupon_stock_left(%lld) tells how much is free; set status to 'offline' to stop the sale.",
					 (long long) template_id)));
}

/*
 * Lower what this database may issue of a template from old to new units, or
 * raise VC006.
 */
static void
LowerQuota(int64 template_id, int64 old_quota, int64 new_quota)
{
	bool		enough;

	if (new_quota >= old_quota)
		return;
	if (CacheIsAttached() && !ChangesHas(CHANGE_CREATED, template_id))
		enough = new_quota >= 0 &&
			TakeOut(template_id, old_quota, old_quota - new_quota);
	else
		enough = IssuedByTables(template_id) <= new_quota;
	if (!enough)
		RefuseBelowIssued(template_id, new_quota);
}

/*
 * Make sure that nothing was issued and nothing is before the commit, or raise
 * VC007 for the act named.  Once that is done it holds to the end: others can
 * claim up to the total that is committed, whose row this transaction has locked.
 */
static void
RequireUntouched(int64 template_id, int64 quota, const char *act,
				 const char *hint)
{
	Datum		arg = Int64GetDatum(template_id);
	bool		untouched = !Ask(&any_coupon_of_template, &arg);

	if (untouched && CacheIsAttached() && quota > 0 &&
		!ChangesHas(CHANGE_CREATED, template_id) &&
		!ChangesHas(CHANGE_TAKEN_OUT, template_id))
	{
		untouched = TakeOut(template_id, quota, quota);
		ChangesAdd(CHANGE_TAKEN_OUT, CatalogGet()->template_table, template_id);
	}
	if (!untouched)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TEMPLATE_IN_USE),
				 errmsg("cannot %s template %lld: coupons of it have been issued",
						act, (long long) template_id),
				 errhint("%s", hint)));
}

/* The part of a template's total that is this database's own. */
static int64
OwnQuota(int64 template_id, int64 total)
{
	CountSnapshot count;
	TemplateRow row;
	int64		others = 0;

	if (total == CACHE_UNLIMITED)
		return CACHE_UNLIMITED;
	CountSnapshotTake(&count, false);
	if (TemplateReadRow(template_id, count.snapshot, &row))
		others = row.others;
	CountSnapshotRelease(&count);
	return total - others;
}

static void
GuardTemplateUpdate(TriggerData *trigger, int64 id)
{
	int64		old_total = TriggerInt8(trigger, trigger->tg_trigtuple,
									   "total_stock", CACHE_UNLIMITED);
	int64		new_total = TriggerInt8(trigger, trigger->tg_newtuple,
									   "total_stock", CACHE_UNLIMITED);
	bool		frozen = false;

	/* What others may issue is a part of a total: without one, of nothing. */
	if ((new_total == CACHE_UNLIMITED) != (old_total == CACHE_UNLIMITED))
	{
		Datum		arg = Int64GetDatum(id);

		if (Ask(&any_other_holder, &arg))
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_BELOW_ISSUED),
					 errmsg("template %lld cannot get or lose its total while another holder has a part of it",
							(long long) id),
					 errhint("SELECT * FROM coupon_stock WHERE template_id = %lld AND holder <> 0 lists them; copy the template.",
							 (long long) id)));
	}
	for (int i = 0; i < lengthof(frozen_columns); i++)
	{
		if (TriggerSameColumn(trigger, frozen_columns[i]))
			continue;
		RequireUntouched(id, OwnQuota(id, old_total),
						 psprintf("change \"%s\" of", frozen_columns[i]),
						 "What a coupon is worth is fixed once one was issued: create a new template.");
		frozen = true;			/* it has taken out all */
		break;
	}
	if (frozen && OwnQuota(id, new_total) < 0)
		RefuseBelowIssued(id, OwnQuota(id, new_total));
	if (!frozen && new_total < old_total)
		LowerQuota(id, OwnQuota(id, old_total), OwnQuota(id, new_total));
}

/* The new row with updated_at set. */
static HeapTuple
StampUpdate(TriggerData *trigger)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	int			column = SPI_fnumber(desc, "updated_at");
	Datum		now = TimestampTzGetDatum(GetCurrentStatementStartTimestamp());
	bool		null = false;

	return heap_modify_tuple_by_cols(trigger->tg_newtuple, desc, 1, &column,
									 &now, &null);
}

/* open_to, where it is left out, is that of the category. */
static HeapTuple
FillOpenTo(TriggerData *trigger)
{
	HeapTuple	row = trigger->tg_trigtuple;
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	int			column = SPI_fnumber(desc, "open_to");
	const char *category;
	Datum		open_to;
	bool		isnull;

	(void) TriggerColumn(trigger, row, "open_to", &isnull);
	if (!isnull)
		return row;
	category = SPI_getvalue(row, desc, SPI_fnumber(desc, "category"));
	if (category == NULL)
		return row;				/* a constraint refuses that */
	open_to = CStringGetTextDatum(strcmp(category, "new_user") == 0 ? "registration" :
								  strcmp(category, "task") == 0 ? "task" : "anyone");
	isnull = false;
	return heap_modify_tuple_by_cols(row, desc, 1, &column, &open_to, &isnull);
}

/*
 * Every template of this database that is in shared memory.  One that is not can
 * only come there by a look at the table, which is locked.
 */
static bool
NextKey(Oid relation, int *slot, CacheKey *key)
{
	CacheEntry *entry;

	if (!CacheIsAttached())
		return false;
	while ((entry = CacheSlot((*slot)++)) != NULL)
	{
		*key = entry->key;
		if (entry->state != CACHE_FREE && key->database == MyDatabaseId &&
			key->relation == relation)
			return true;
	}
	return false;
}

/* From now on no claim takes stock, ... */
static void
ShutAll(Oid relation)
{
	CacheKey	key;

	for (int slot = 0; NextKey(relation, &slot, &key);)
		StockShut(&key);
}

/* ... and here those that have taken some have ended. */
static void
WaitForAll(Oid relation)
{
	TimestampTz deadline = StockGateDeadline();
	CacheKey	key;

	for (int slot = 0; NextKey(relation, &slot, &key);)
		StockWaitForOthers(&key, deadline);
}

static void
RefuseIssued(void)
{
	if (Ask(&any_coupon, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TEMPLATE_IN_USE),
				 errmsg("cannot truncate \"coupon_template\": coupons have been issued"),
				 errhint("Truncate user_coupon, coupon_stock and coupon_watermark first.")));
}

static void
GuardTemplateTruncate(Oid relation)
{
	QueryScope	scope;

	/* As a rule that is seen before claims are disturbed. */
	if (!TriggerIsReplica())
		RefuseIssued();
	ShutAll(relation);
	if (!TriggerIsReplica())
	{
		WaitForAll(relation);
		QueryBegin(&scope);
		QueryRun(&lock_coupons, NULL, NULL);	/* and for rows by hand */
		QueryEnd(&scope);
		RefuseIssued();
	}
	ChangesAdd(CHANGE_EDITED, relation, CHANGE_ALL_TEMPLATES);
	ChangesAdd(CHANGE_RECOUNT, relation, CHANGE_ALL_TEMPLATES);
}

/* A row is stored, whatever other triggers have made of it. */
static Datum
NoteTemplate(TriggerData *trigger, Oid relation, int64 id)
{
	int64		stored = TriggerInt8(trigger, TriggerRow(trigger), "id", 0);

	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		TemplateNoteCreated(relation, id);
	else if (stored != id && !TriggerIsReplica())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_TEMPLATE_IN_USE),
				 errmsg("the id of template %lld cannot be changed", (long long) id)));
	return PointerGetDatum(NULL);
}

/*
 * coupon_template_guard(): on coupon_template, AFTER INSERT and UPDATE, BEFORE
 * INSERT, UPDATE and DELETE for each row, BEFORE TRUNCATE.
 */
Datum
coupon_template_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = TriggerGet(fcinfo);
	Oid			relation = RelationGetRelid(trigger->tg_relation);
	int64		id;

	if (TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
	{
		GuardTemplateTruncate(relation);
		return PointerGetDatum(NULL);
	}

	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event) && TRIGGER_FIRED_BEFORE(trigger->tg_event))
		return PointerGetDatum(FillOpenTo(trigger));
	id = TriggerInt8(trigger, trigger->tg_trigtuple, "id", 0);
	if (TRIGGER_FIRED_AFTER(trigger->tg_event))
		return NoteTemplate(trigger, relation, id);
	if (!TriggerIsReplica())
	{
		if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
			GuardTemplateUpdate(trigger, id);
		else
			RequireUntouched(id, OwnQuota(id, TriggerInt8(trigger, trigger->tg_trigtuple,
														 "total_stock", CACHE_UNLIMITED)),
							 "delete", "Set its status to 'offline' instead.");
	}
	/* Only now: what was loaded above is what everybody sees. */
	ChangesAdd(CHANGE_EDITED, relation, id);
	WakeWorkerAtCommit(WAKE_REMIND | WAKE_REMIND_ALL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) && !TriggerIsReplica() ?
						   StampUpdate(trigger) : TriggerRow(trigger));
}

static int32
ColumnInt4(TriggerData *trigger, HeapTuple tuple, const char *name)
{
	bool		isnull;

	return DatumGetInt32(TriggerColumn(trigger, tuple, name, &isnull));
}

static bool
HasStockRow(TriggerData *trigger, HeapTuple tuple)
{
	Datum		args[2];

	args[0] = Int64GetDatum(TriggerInt8(trigger, tuple, "template_id", 0));
	args[1] = Int32GetDatum(ColumnInt4(trigger, tuple, "holder"));
	return Ask(&stock_row, args);
}

/*
 * A total does not change, and no other quota, until the end of the transaction:
 * what is read of them from now on stays so.
 */
static void
LockTemplate(int64 template_id)
{
	Datum		arg = Int64GetDatum(template_id);
	QueryScope	scope;

	QueryBegin(&scope);
	QueryRun(&lock_template, &arg, NULL);
	QueryEnd(&scope);
}

/* Another holder gets n units of what this database may still issue. */
static void
GiveQuotaAway(int64 template_id, int64 n)
{
	CountSnapshot count;
	TemplateRow row;
	bool		found;

	CountSnapshotTake(&count, false);
	found = TemplateReadRow(template_id, count.snapshot, &row);
	CountSnapshotRelease(&count);
	if (found && row.quota != CACHE_UNLIMITED)
		LowerQuota(template_id, row.quota, row.quota - n);
}

/* Another holder gives units back: those that it has not issued. */
static void
TakeQuotaBack(int64 template_id, int32 holder, int64 new_quota)
{
	Datum		args[2] = {Int64GetDatum(template_id), Int32GetDatum(holder)};
	QueryScope	scope;
	bool		isnull;
	int64		issued;

	(void) FoldLock(holder, ExclusiveLock, true);	/* nobody has any by hand in flight */
	QueryBegin(&scope);
	QueryRunLatest(&issued_by_holder, args, NULL);
	issued = DatumGetInt64(QueryValue(0, 1, &isnull));
	QueryEnd(&scope);
	if (new_quota < issued)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BELOW_ISSUED),
				 errmsg("quota of holder %d of template %lld cannot fall to %lld: it has issued %lld",
						holder, (long long) template_id, (long long) new_quota,
						(long long) issued)));
}

static bool
IsSameHolder(TriggerData *trigger)
{
	return TriggerSameColumn(trigger, "template_id") && TriggerSameColumn(trigger, "holder");
}

/*
 * coupon_stock_guard(): on coupon_stock, BEFORE each row, and TRUNCATE.  What
 * another holder gets, this database loses; a folded count changed by hand is
 * counted again.
 */
Datum
coupon_stock_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = TriggerGet(fcinfo);
	Oid			relation = CatalogGet()->template_table;
	bool		insert = TRIGGER_FIRED_BY_INSERT(trigger->tg_event);
	bool		delete = TRIGGER_FIRED_BY_DELETE(trigger->tg_event);
	HeapTuple	new;
	int64		id;
	int64		old_quota;
	int64		new_quota;

	if (TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
	{
		ChangesAdd(CHANGE_EDITED, relation, CHANGE_ALL_TEMPLATES);
		ChangesAdd(CHANGE_RECOUNT, relation, CHANGE_ALL_TEMPLATES);
		return PointerGetDatum(NULL);
	}
	new = TriggerRow(trigger);
	id = TriggerInt8(trigger, new, "template_id", 0);
	old_quota = insert ? 0 : TriggerInt8(trigger, trigger->tg_trigtuple, "quota", 0);
	new_quota = delete ? 0 : TriggerInt8(trigger, new, "quota", 0);
	/* What a fold does itself; a trigger of somebody's may do more amid it. */
	if (FoldIsRunning() && !delete && new_quota == old_quota && (insert || IsSameHolder(trigger)))
		return PointerGetDatum(new);
	if (!TriggerIsReplica())
	{
		if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) && !IsSameHolder(trigger))
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
					 errmsg("template and holder of a row of \"coupon_stock\" cannot be changed"),
					 errhint("Delete the row and insert another.")));
		/* Also for a row without quota: who inserts it anew looks whether it is there. */
		if (insert || delete || new_quota != old_quota)
			LockTemplate(id);
		/* An INSERT … ON CONFLICT that will be an UPDATE is left to that. */
		if (new_quota > old_quota && !(insert && HasStockRow(trigger, new)))
			GiveQuotaAway(id, new_quota - old_quota);
		if (new_quota < old_quota)
			TakeQuotaBack(id, ColumnInt4(trigger, new, "holder"), new_quota);
	}
	if (new_quota != old_quota)
		ChangesAdd(CHANGE_EDITED, relation, id);
	if (ColumnInt4(trigger, new, "holder") == 0)
		ChangesAdd(CHANGE_RECOUNT, relation, id);
	return PointerGetDatum(new);
}
