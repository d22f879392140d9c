/*
 * fold.c
 *		Fold coupons past the watermark into the counts of coupon_stock.
 *
 * The count of a template's coupons is kept as "folded" plus the rows whose id
 * is past the watermark of their holder, so that after a crash only the last
 * claims have to be counted.  One watermark serves all templates.
 *
 * Order: take the fold lock, so that nobody has coupons by hand in flight; lock the
 * watermark's row, so that there is one folder; read the horizon, below which no id is in flight (id.c); only then take a snapshot
 * and count.  All in the caller's transaction: a loader sees both the old
 * watermark and the old counts, or both new ones.  No clock is involved.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "access/htup_details.h"
#include "base/catalog.h"
#include "base/errors.h"
#include "base/id.h"
#include "base/locks.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "base/subxact.h"
#include "template/fold.h"

#define WORKER_LOCK_TIMEOUT "100ms"
#define FOLD_RETRY 1000			/* ms, while the horizon is held back */

PG_FUNCTION_INFO_V1(coupon_fold);

/* No watermark ships with the extension: a restore must not collide with it. */
static OwnerQuery create_watermark = {
	"INSERT INTO %1$s.coupon_watermark (holder, upto) VALUES (0, 0)"
	" ON CONFLICT DO NOTHING"
};

static OwnerQuery lock_watermark = {
	"SELECT upto FROM %1$s.coupon_watermark"
	" WHERE holder OPERATOR(pg_catalog.=) 0 FOR UPDATE"
};

/* For the worker, who waits for nobody. */
static OwnerQuery lock_free_watermark = {
	"SELECT upto FROM %1$s.coupon_watermark"
	" WHERE holder OPERATOR(pg_catalog.=) 0 FOR UPDATE SKIP LOCKED"
};

static OwnerQuery read_folded = {
	"SELECT upto FROM %1$s.coupon_watermark"
	" WHERE holder OPERATOR(pg_catalog.=) $1 AND NOT restored",
	1, {INT4OID}
};

static OwnerQuery read_watermark = {
	"SELECT upto FROM %1$s.coupon_watermark"
	" WHERE holder OPERATOR(pg_catalog.=) 0"
};

static OwnerQuery fold_rows = {
	"WITH fresh AS ("
	" SELECT template_id, pg_catalog.count(*) AS n FROM %1$s.user_coupon"
	" WHERE id OPERATOR(pg_catalog.>) $1 AND id OPERATOR(pg_catalog.<=) $2"
	" AND holder OPERATOR(pg_catalog.=) 0 GROUP BY template_id ORDER BY template_id"
	"), stored AS ("
	" INSERT INTO %1$s.coupon_stock AS s (template_id, holder, folded)"
	" SELECT template_id, 0, n FROM fresh"
	" ON CONFLICT (template_id, holder) DO UPDATE"
	" SET folded = s.folded OPERATOR(pg_catalog.+) excluded.folded"
	") SELECT pg_catalog.count(*), COALESCE(pg_catalog.sum(n), 0)::pg_catalog.int8"
	" FROM fresh",
	2, {INT8OID, INT8OID}
};

static OwnerQuery move_watermark = {
	"UPDATE %1$s.coupon_watermark SET upto = $1"
	" WHERE holder OPERATOR(pg_catalog.=) 0",
	1, {INT8OID}
};

/*
 * Anything past the watermark?  Where the counts arrive by subscription, they
 * and the watermark are the publisher's.
 */
static OwnerQuery look_for_fresh = {
	"SELECT EXISTS (SELECT FROM %1$s.user_coupon"
	" WHERE id OPERATOR(pg_catalog.>) COALESCE((SELECT upto"
	"  FROM %1$s.coupon_watermark WHERE holder OPERATOR(pg_catalog.=) 0), 0)"
	" AND id OPERATOR(pg_catalog.<=) $1 AND holder OPERATOR(pg_catalog.=) 0)"
	" AND NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel"
	"  WHERE srrelid OPERATOR(pg_catalog.=) $2)",
	2, {INT8OID, OIDOID}
};

static bool running = false;

/*
 * FoldIsRunning tells triggers that counts move without anything being issued.
 */
bool
FoldIsRunning(void)
{
	return running;
}

static int64
OneInt8(int column)
{
	bool		isnull;

	return DatumGetInt64(QueryValue(0, column, &isnull));
}

/*
 * FoldLock takes the fold lock of a holder to the end of the (sub)transaction: shared
 * while coupons of it are written by hand, so that no count misses them; exclusively to
 * move its watermark, or to lower its quota.  False: somebody else has it, without "wait".
 */
bool
FoldLock(int32 holder, LOCKMODE mode, bool wait)
{
	LOCKTAG		tag;

	LockTagOfFold(&tag, holder);
	return LockAcquire(&tag, mode, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * FoldUpto returns up to which id a fold has counted the coupons of a holder: 0 also
 * where the watermark was restored, since then those with such ids are still coming.
 * The caller has the fold lock.
 */
int64
FoldUpto(int32 holder)
{
	Datum		arg = Int32GetDatum(holder);
	QueryScope	scope;
	int64		upto = 0;

	QueryBegin(&scope);
	if (QueryRunLatest(&read_folded, &arg, NULL) == 1)
		upto = OneInt8(1);
	QueryEnd(&scope);
	return upto;
}

/*
 * FoldWatermark returns the watermark as committed now, 0 before the first
 * fold.
 */
int64
FoldWatermark(void)
{
	QueryScope	scope;
	int64		upto = 0;

	QueryBegin(&scope);
	if (QueryRunLatest(&read_watermark, NULL, NULL) == 1)
		upto = OneInt8(1);
	QueryEnd(&scope);
	return upto;
}

/* The work of FoldPlanned; returns the new watermark, 0 if somebody else folds. */
static int64
Fold(bool wait, int64 *templates, int64 *coupons)
{
	OwnerQuery *lock = wait ? &lock_watermark : &lock_free_watermark;
	Datum		args[2];
	int64		upto;
	int64		horizon;

	if (!FoldLock(HOLDER_DATABASE, ExclusiveLock, wait))
		return 0;
	if (QueryRun(lock, NULL, NULL) == 0)
	{
		if (QueryRun(&read_watermark, NULL, NULL) == 0)
			QueryRun(&create_watermark, NULL, NULL);
		if (QueryRun(lock, NULL, NULL) == 0)
			return 0;
	}
	upto = OneInt8(1);

	horizon = IdHorizon();
	*templates = *coupons = 0;
	if (horizon <= upto)
		return upto;

	args[0] = Int64GetDatum(upto);
	args[1] = Int64GetDatum(horizon);
	QueryRun(&fold_rows, args, NULL);
	*templates = OneInt8(1);
	*coupons = OneInt8(2);
	args[0] = Int64GetDatum(horizon);
	QueryRun(&move_watermark, args, NULL);
	return horizon;
}

/* What is past the watermark is little, whatever old statistics say. */
static int
PlanForFew(void)
{
	int			nestlevel = NewGUCNestLevel();

	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	/* A plan made for other bounds may not fit these. */
	(void) set_config_option("plan_cache_mode", "force_custom_plan", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return nestlevel;
}

/*
 * Fold; returns the new watermark and fills how much was folded.  0: without "wait",
 * and somebody else folds.
 */
static int64
FoldPlanned(bool wait, int64 *templates, int64 *coupons)
{
	int			nestlevel = PlanForFew();
	QueryScope	scope;
	int64		upto = 0;

	QueryBegin(&scope);
	running = true;
	PG_TRY();
	{
		upto = Fold(wait, templates, coupons);
	}
	PG_FINALLY();
	{
		running = false;
	}
	PG_END_TRY();
	QueryEnd(&scope);
	AtEOXact_GUC(false, nestlevel);
	return upto;
}

static bool
HasFresh(int64 horizon)
{
	int			nestlevel = PlanForFew();
	QueryScope	scope;
	Datum		args[2];
	bool		isnull;
	bool		found;

	args[0] = Int64GetDatum(horizon);
	args[1] = ObjectIdGetDatum(CatalogGet()->stock_table);
	QueryBegin(&scope);
	QueryRun(&look_for_fresh, args, NULL);
	found = DatumGetBool(QueryValue(0, 1, &isnull));
	QueryEnd(&scope);
	AtEOXact_GUC(false, nestlevel);
	return found;
}

typedef struct FoldAttempt
{
	bool		woken;
	long		answer;
} FoldAttempt;

/* The work of FoldNew, in a subtransaction. */
static bool
AttemptFold(void *arg)
{
	static int64 target = 0;	/* newest id when woken */
	static int64 done = 0;		/* horizon of the last look */
	FoldAttempt *attempt = arg;
	int64		horizon;
	int64		templates;
	int64		coupons;

	/* All else that a worker does waits with it, be it for DDL on one partition. */
	(void) set_config_option("lock_timeout", WORKER_LOCK_TIMEOUT, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	if (attempt->woken)
		target = IdNewest();
	horizon = IdHorizon();
	attempt->answer = FOLD_RETRY;
	if (attempt->woken || horizon > done)
	{
		/* Lost with a crash, the counts are lost with the watermark. */
		(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
		if (HasFresh(horizon) && FoldPlanned(false, &templates, &coupons) == 0)
			return true;
		done = horizon;
	}
	if (done >= target)
		attempt->answer = -1;
	return true;
}

/*
 * FoldNew is the worker's job: folds if there is something to fold, else only
 * reads, so that an idle server writes nothing.  Returns after how many
 * milliseconds to come again although nobody wakes us, -1 for never.
 *
 * A restore brings rows with old ids, in one transaction per table; folding
 * amid them would pass the watermark over those yet to come.  So we are woken
 * by claims only, and by those who ask for it.
 *
 * A transaction that holds the horizon back may be one of those that will
 * never wake us.  So we come back until everything that was given out when we
 * were woken is at or below the horizon; ids of other databases do not matter.
 */
long
FoldNew(bool woken)
{
	FoldAttempt attempt = {woken};
	ErrorData  *error;

	if (SubxactRun(AttemptFold, &attempt, &error))
		return attempt.answer;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	FreeErrorData(error);
	return FOLD_RETRY;
}

/*
 * coupon_fold() → upto, templates, coupons: fold what is safe to fold.
 *
 * Raises VC010 unless the transaction is READ COMMITTED: the others would
 * count with a snapshot older than the horizon.
 */
Datum
coupon_fold(PG_FUNCTION_ARGS)
{
	int64		upto;
	int64		templates = 0;
	int64		coupons = 0;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false};

	IdRequireUsable();
	RoleRequireUnbound(ROLE_OPERATOR, "It holds up the folding of all shops.");
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_WRONG_ISOLATION),
				 errmsg("coupon_fold needs a READ COMMITTED transaction"),
				 errhint("Run it in a transaction of its own.")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	upto = FoldPlanned(true, &templates, &coupons);
	values[0] = Int64GetDatum(upto);
	values[1] = Int64GetDatum(templates);
	values[2] = Int64GetDatum(coupons);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
