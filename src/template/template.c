/*
 * template.c
 *		A coupon template as claims see it.
 *
 * The common case is a copy out of the shared cache, under a shared lock.  A
 * template that this very transaction has changed is read from its row, as
 * this transaction sees it, while its stock still comes from the shared
 * counter, against the limit that the transaction sees.  A template that it
 * has created is nobody else's yet: its own rows are its stock.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/count_snapshot.h"
#include "base/errors.h"
#include "base/guc.h"
#include "base/outcome.h"
#include "base/subxact.h"
#include "stock/cache.h"
#include "stock/xact_changes.h"
#include "template/template.h"

#define SHORT_WAIT "100ms"

StaticAssertDecl(sizeof(TemplateAttrs) <= CACHE_PAYLOAD,
				 "attributes of a template must fit an entry of the cache");

/*
 * TemplateRequirePreload raises VC001 where the library was not preloaded and
 * VC002 on a standby: nothing can be claimed there.
 */
void
TemplateRequirePreload(void)
{
	if (!CacheIsAttached())
		GucRefuseNotPreloaded("coupons cannot be claimed");
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_RECOVERY),
				 errmsg("coupons cannot be claimed on a standby server"),
				 errhint("Connect to the primary server.")));
}

/*
 * What may be asked about users instead of looking at the tables.  The
 * partition lock of the entry is held.
 */
static void
CopyKnowledge(TemplateView *view, const CacheEntry *entry)
{
	view->filter_complete = entry->filter_complete;
	view->limit_stamp = entry->limit_stamp;
}

static void
ForgetKnowledge(TemplateView *view)
{
	view->filter_complete = false;
	view->limit_stamp = 0;
}

/* Copy out of the cache; false where it has nothing fresh. */
static bool
FetchShared(TemplateView *view)
{
	LWLock	   *lock = CachePartitionLock(&view->key);
	CacheEntry *entry;
	bool		fresh;

	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(&view->key);
	fresh = entry != NULL && entry->state == CACHE_READY && !entry->stale &&
		!CacheCanRecount(entry);
	if (fresh)
	{
		memcpy(&view->attrs, entry->payload, sizeof(view->attrs));
		view->entry = entry;
		view->generation = entry->generation;
		view->quota = entry->quota;
		view->issued = (int64) pg_atomic_read_u64(&entry->issued);
		CopyKnowledge(view, entry);
		pg_atomic_fetch_add_u64(&entry->lookups, 1);
		if (pg_atomic_read_u32(&entry->usage) < 5)
			pg_atomic_fetch_add_u32(&entry->usage, 1);
	}
	LWLockRelease(lock);
	return fresh;
}

/*
 * Read the row as this transaction sees it, with what the statement that is running
 * has made of it already (UPDATE … RETURNING), as a function of SQL would.
 */
static bool
FetchOwn(TemplateView *view)
{
	CountSnapshot count;
	TemplateRow row;
	bool		found;

	CommandCounterIncrement();
	CountSnapshotTake(&count, view->origin == TEMPLATE_OWN_CREATED);
	found = TemplateReadRow(view->key.template_id, count.snapshot, &row);
	if (found)
	{
		view->attrs = row.attrs;
		view->quota = row.quota;
		view->generation = 0;
		view->issued = 0;
		ForgetKnowledge(view);
		if (view->origin == TEMPLATE_OWN_CREATED)
			view->issued = TemplateCountIssued(view->key.template_id, &row,
											   count.snapshot);
	}
	CountSnapshotRelease(&count);
	return found;
}

static bool
FetchOwnChanged(TemplateView *view)
{
	StockNumbers numbers;

	if (!FetchOwn(view))
		return false;
	while (!StockRead(&view->key, &numbers))
	{
		if (!TemplateLoad(view->key.template_id, false))
			return false;
	}
	view->issued = numbers.issued - numbers.own_lowered;
	return true;
}

/*
 * TemplateFetch returns the template as it is for this transaction now; false
 * where there is none.
 */
bool
TemplateFetch(int64 template_id, TemplateView *view)
{
	CacheMakeKey(&view->key, CatalogGet()->template_table, template_id);

	/* A load may find out that the template is this transaction's own. */
	for (;;)
	{
		if (unlikely(ChangesHas(CHANGE_CREATED, template_id)))
		{
			view->origin = TEMPLATE_OWN_CREATED;
			return FetchOwn(view);
		}
		if (unlikely(ChangesHas(CHANGE_EDITED, template_id)))
		{
			view->origin = TEMPLATE_OWN_CHANGED;
			return FetchOwnChanged(view);
		}

		view->origin = TEMPLATE_SHARED;
		if (FetchShared(view))
			return true;
		if (!TemplateLoad(template_id, false))
		{
			CacheCountEvent(CACHE_EVENT_UNKNOWN);
			return false;
		}
	}
}

/*
 * TemplateJudge tells whether the template can be had at that moment by a verb
 * that may give this set of templates: OUTCOME_OK, or the code that refuses.
 */
int
TemplateJudge(const TemplateView *view, int open_to, TimestampTz now)
{
	const TemplateAttrs *attrs = &view->attrs;

	if (attrs->status != TEMPLATE_PUBLISHED)
		return OUTCOME_NOT_PUBLISHED;
	if ((TEMPLATE_OPEN_TO(attrs->open_to) & open_to) == 0)
		return OUTCOME_NOT_CLAIMABLE;
	if (now >= attrs->receive_end || (attrs->has_use_end && now >= attrs->use_end))
		return OUTCOME_ENDED;
	if (now < attrs->receive_start)
		return OUTCOME_NOT_STARTED;
	return OUTCOME_OK;
}

/*
 * TemplateUseWindow tells when a coupon received at that moment can be used.  Days and
 * months are those of UTC: a claimer chooses his TimeZone, and what it says of summer time.
 */
void
TemplateUseWindow(const TemplateView *view, TimestampTz now,
				  TimestampTz *use_start, TimestampTz *use_end)
{
	const TemplateAttrs *attrs = &view->attrs;

	*use_start = attrs->use_start == DT_NOBEGIN ? now : attrs->use_start;
	*use_end = attrs->use_end;
	if (!attrs->has_use_end)
		*use_end =
			DatumGetTimestampTz(DirectFunctionCall2(timestamp_pl_interval,
													TimestampGetDatum(now),
													IntervalPGetDatum(&attrs->use_validity)));
	/* The CHECKs of the table see to it that it does not. */
	if (*use_end <= *use_start)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("a coupon of template %lld would end before it can be used",
						(long long) view->key.template_id),
				 errhint("Correct use_validity of the template.")));
}

/*
 * TemplatePeek fills in of a view what may be asked about users, and loads
 * nothing.
 */
void
TemplatePeek(int64 template_id, TemplateView *view)
{
	LWLock	   *lock;
	CacheEntry *entry;

	CacheMakeKey(&view->key, CatalogGet()->template_table, template_id);
	lock = CachePartitionLock(&view->key);
	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(&view->key);
	if (entry != NULL)
		CopyKnowledge(view, entry);
	else
		ForgetKnowledge(view);
	LWLockRelease(lock);
}

/*
 * TemplateRefuseOwnRows raises VC003 where this transaction has written coupons of a
 * template by hand: nobody has counted them yet.
 */
void
TemplateRefuseOwnRows(int64 template_id)
{
	if (ChangesHas(CHANGE_RECOUNT, template_id))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("cannot count the coupons of template %lld in a transaction that has changed them",
						(long long) template_id),
				 errhint("Commit first.")));
}

/*
 * TemplateReserve reserves up to "want" units for this transaction and returns
 * STOCK_OK with their number, or STOCK_EMPTY; STOCK_CHANGED: fetch again;
 * STOCK_CLOSED, STOCK_RECOUNT: TemplateWait first.
 */
StockResult
TemplateReserve(const TemplateView *view, int64 want, int64 *got)
{
	switch (view->origin)
	{
		case TEMPLATE_OWN_CREATED:
			*got = Max(Min(want, view->quota - view->issued), 0);
			return *got > 0 ? STOCK_OK : STOCK_EMPTY;
		case TEMPLATE_OWN_CHANGED:
			TemplateRefuseOwnRows(view->key.template_id);
			return StockReserveUpTo(&view->key, view->quota, want, true, got);
		case TEMPLATE_SHARED:
			TemplateRefuseOwnRows(view->key.template_id);
			break;
	}
	return StockReserve(&view->key, view->generation, want, true, got);
}

/*
 * TemplateCheckOwn is called when coupons have been inserted.  Of a template that
 * this transaction has created nothing is reserved, and a trigger or default of a
 * shop's may have claimed amid that claim: raises 27000 where they are too many.
 */
void
TemplateCheckOwn(const TemplateView *view)
{
	TemplateView now = *view;

	if (view->origin == TEMPLATE_OWN_CREATED && FetchOwn(&now) && now.issued > now.quota)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("a trigger or default of \"user_coupon\" has claimed the last coupon of template %lld amid a claim of it",
						(long long) view->key.template_id),
				 errhint("Commit the template before it is claimed.")));
}

/*
 * TemplateWait waits until the gate has been opened, or counts the coupons
 * again when that is due.  The caller has no user locked.
 */
void
TemplateWait(const TemplateView *view, StockResult reason)
{
	int64		template_id = view->key.template_id;

	if (reason == STOCK_CLOSED)
	{
		/* The owner of the gate holds the loader lock as long. */
		TemplateLockLoader(template_id, ShareLock);
		TemplateUnlockLoader(template_id, ShareLock);
	}
	else
		(void) TemplateLoad(template_id, true);
}

typedef struct ShortWait
{
	const TemplateView *view;
	StockResult reason;
} ShortWait;

static bool
WaitShortly(void *arg)
{
	ShortWait  *wait = arg;
	int			nestlevel = NewGUCNestLevel();

	(void) set_config_option("lock_timeout", SHORT_WAIT, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("coupon.gate_timeout", SHORT_WAIT, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	TemplateWait(wait->view, wait->reason);
	AtEOXact_GUC(false, nestlevel);
	return true;
}

/*
 * TemplateTryWait is TemplateWait for those who act for many templates: at a gate it does
 * not wait, and for the moment of a count at most a moment.  False: it took too long.
 */
bool
TemplateTryWait(const TemplateView *view, StockResult reason)
{
	ShortWait	wait = {view, reason};
	ErrorData  *error;

	if (reason == STOCK_CLOSED)
		return false;
	if (SubxactRun(WaitShortly, &wait, &error))
		return true;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
		error->sqlerrcode != ERRCODE_COUPON_GATE_TIMEOUT)
		ReThrowError(error);
	return false;
}

/*
 * TemplateIsGated tells whether others keep reservations of a template out, for as long as
 * they like: who acts for many templates passes by that one.
 */
bool
TemplateIsGated(int64 template_id)
{
	CacheKey	key;

	if (!CacheIsAttached())
		return false;
	CacheMakeKey(&key, CatalogGet()->template_table, template_id);
	return StockIsGated(&key);
}

/*
 * TemplateCountRefusals counts refusals by outcome code, for coupon_stat.  It
 * takes no lock: at worst a refusal is counted for a template that has just
 * taken the entry over.
 */
void
TemplateCountRefusals(const TemplateView *view, int code, int64 n)
{
	Assert(code > 0 && code < CACHE_CODES);
	if (view->origin == TEMPLATE_SHARED &&
		view->entry->generation == view->generation)
		pg_atomic_fetch_add_u64(&view->entry->refused[code], n);
}

/*
 * TemplateRecount counts the coupons of a template again, with its gate closed
 * until all open claims have ended; false where there is no such template.
 */
bool
TemplateRecount(int64 template_id)
{
	CacheKey	key;
	StockNumbers numbers;

	CacheMakeKey(&key, CatalogGet()->template_table, template_id);
	if ((StockRead(&key, &numbers) && numbers.own > 0) || ChangesHas(CHANGE_CREATED, template_id) ||
		ChangesHas(CHANGE_RECOUNT, template_id))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("cannot recount template %lld in a transaction that has claimed or changed its coupons",
						(long long) template_id),
				 errhint("Commit first.")));
	return TemplateLoad(template_id, true);
}

/*
 * TemplateFetchAnywhere is TemplateFetch for readers: on a standby, without shared memory,
 * or while a gate is closed, the template is read and its coupons counted from the tables.
 */
bool
TemplateFetchAnywhere(int64 template_id, TemplateView *view)
{
	/* A look waits for nobody at a gate. */
	if (CacheIsAttached() && !RecoveryInProgress() && !TemplateIsGated(template_id))
		return TemplateFetch(template_id, view);

	/* As one's own: counted by rows, nothing shared. */
	view->origin = TEMPLATE_OWN_CREATED;
	view->key.template_id = template_id;
	return FetchOwn(view);
}

/*
 * TemplateStockLeft returns what can still be claimed here (CACHE_UNLIMITED:
 * no end).
 */
int64
TemplateStockLeft(const TemplateView *view)
{
	if (view->quota == CACHE_UNLIMITED)
		return CACHE_UNLIMITED;
	return Max(view->quota - view->issued, 0);
}
