/*
 * claim.c
 *		Claim coupons of one template for one or many users.
 *
 * Order of checks: request id, found, published, claimable, window, limit,
 * stock.  A refusal writes nothing and takes no transaction id.
 *
 * One user at a time.  From its limit check to its insert a claim holds the
 * lock of (template, user), so that of ten simultaneous presses one looks at
 * the rows and nine wait.  Once the row is inserted the lock goes: the next
 * press finds the row, lets go of the lock, waits for the row's transaction,
 * and looks again.  So ten presses of a user hold one unit of stock, nobody
 * waits for a transaction with a user locked, and however many users one call
 * serves, it holds few locks.
 *
 * The limit is enforced by the unique index on (template, user, n-th), which
 * catches what the lock does not know of: coupons inserted by hand.  A row in
 * conflict is not inserted, its unit is given back, and the user looked at
 * again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/errors.h"
#include "base/id.h"
#include "base/locks.h"
#include "base/outcome.h"
#include "base/shop_role.h"
#include "base/subxact.h"
#include "base/throttle.h"
#include "claim/claim.h"
#include "store/insert.h"
#include "store/limit_cache.h"
#include "store/rows.h"
#include "store/user_filter.h"

#define CLAIM_CHUNK 128			/* users who are locked at a time */
#define CLAIM_MAX_CONFLICTS 10	/* each costs a dead row */
#define BRIEF_WAIT_MS 2000
#define UNDECIDED (-1)

/* One chunk of users on their way through the checks. */
typedef struct ClaimWork
{
	const ClaimRequest *request;
	TemplateView view;
	int			nusers;
	ClaimResult *results;		/* code UNDECIDED: still on the way */
	bool		locked[CLAIM_CHUNK];	/* whose lock is held */
	int			conflicts;		/* inserts in a row that met one */
} ClaimWork;

static bool
LockUser(ClaimWork *work, int i, bool wait)
{
	LOCKTAG		tag;

	if (work->locked[i])
		return true;
	LockTagOfUser(&tag, work->request->template_id, work->results[i].user_id);
	work->locked[i] = LockAcquire(&tag, ExclusiveLock, false, !wait) !=
		LOCKACQUIRE_NOT_AVAIL;
	return work->locked[i];
}

static void
UnlockUsers(ClaimWork *work)
{
	for (int i = 0; i < work->nusers; i++)
	{
		LOCKTAG		tag;

		if (!work->locked[i])
			continue;
		LockTagOfUser(&tag, work->request->template_id,
					  work->results[i].user_id);
		(void) LockRelease(&tag, ExclusiveLock, false);
		work->locked[i] = false;
	}
}

static void
RefuseUndecided(ClaimWork *work, int code)
{
	int64		n = 0;

	for (int i = 0; i < work->nusers; i++)
	{
		if (work->results[i].code == UNDECIDED)
		{
			work->results[i].code = code;
			n++;
		}
	}
	if (n > 0 && code != OUTCOME_NOT_FOUND)
		TemplateCountRefusals(&work->view, code, n);
}

static int
CountUndecided(const ClaimWork *work)
{
	int			n = 0;

	for (int i = 0; i < work->nusers; i++)
		n += work->results[i].code == UNDECIDED;
	return n;
}

static int32
LimitOf(const ClaimWork *work)
{
	int32		limit = work->view.attrs.per_user_limit;
	int32		cap = work->request->limit_cap;

	return cap > 0 ? Min(limit, cap) : limit;
}

/* A wait in a subtransaction, since a timeout is an error. */
typedef struct BriefWait
{
	ClaimWork  *work;
	int			user;			/* whose lock is wanted, or ... */
	const RowsOpenClaim *open;	/* ... NULL */
} BriefWait;

static bool
WaitWithTimeout(void *arg)
{
	BriefWait  *wait = arg;
	int			nestlevel = NewGUCNestLevel();

	if (LockTimeout == 0 || LockTimeout > BRIEF_WAIT_MS)
		(void) set_config_option("lock_timeout", CppAsString2(BRIEF_WAIT_MS), PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (wait->open != NULL)
		RowsWaitFor(wait->open);
	else
		(void) LockUser(wait->work, wait->user, true);
	AtEOXact_GUC(false, nestlevel);
	return true;
}

/* False: it took too long. */
static bool
WaitBriefly(BriefWait *wait)
{
	ErrorData  *error;

	if (wait->work->request->waiting == CLAIM_WAITS_NOT)
		return false;
	if (SubxactRun(WaitWithTimeout, wait, &error))
		return true;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	return false;
}

/* Lock a user, for as long as the request waits. */
static bool
AwaitUser(ClaimWork *work, int i)
{
	BriefWait	wait = {work, i, NULL};

	if (work->request->waiting == CLAIM_WAITS)
		return LockUser(work, i, true);
	return LockUser(work, i, false) || WaitBriefly(&wait);
}

/*
 * Wait for an open claim of some user; false: it is still open.  Not with users locked:
 * the transaction may want to claim for one of them, or again for the same.
 */
static bool
WaitForClaim(ClaimWork *work, const RowsOpenClaim *open)
{
	BriefWait	wait = {work, 0, open};

	UnlockUsers(work);
	if (work->request->waiting != CLAIM_WAITS)
		return WaitBriefly(&wait);
	RowsWaitFor(open);
	return true;
}

static void
HoldUp(ClaimResult *result)
{
	result->code = OUTCOME_OUT_OF_STOCK;
	result->held_up = true;
}

static void
HoldUpUndecided(ClaimWork *work)
{
	for (int i = 0; i < work->nusers; i++)
	{
		if (work->results[i].code == UNDECIDED)
			HoldUp(&work->results[i]);
	}
}

/*
 * Look at a user's rows, unless there are none: that takes a cache line of
 * user_filter.c in their place, which counts open claims as the look at the rows
 * does.  The filter is a hint, since rows may have come while triggers were
 * switched off.  A claim that meets one in the unique index has noted its user
 * before it inserted, so that the next look is at the rows.
 */
static void
LookAtUser(ClaimWork *work, int64 user_id, const char *request_id,
		   RowsOfUser *rows, RowsOpenClaim *open)
{
	const TemplateView *view = &work->view;

	if (!view->filter_complete ||
		UserFilterMayHave(view->key.relation, view->key.template_id, user_id))
	{
		RowsProbe(work->request->template_id, user_id, request_id, rows, open);
		return;
	}
	memset(rows, 0, sizeof(*rows));
	if (open != NULL)
		open->xid = InvalidTransactionId;
}

/*
 * Look for coupons that an earlier call with this request id has claimed.
 * False: open claims were waited for; start again.
 */
static bool
FindRepeated(ClaimWork *work)
{
	TemplatePeek(work->request->template_id, &work->view);
	for (int i = 0; i < work->nusers; i++)
	{
		ClaimResult *result = &work->results[i];
		RowsOfUser	rows;
		RowsOpenClaim open;

		if (result->code != UNDECIDED)
			continue;
		if (!AwaitUser(work, i))
		{
			HoldUp(result);
			continue;
		}
		LookAtUser(work, result->user_id, work->request->request_id, &rows, &open);
		if (TransactionIdIsValid(open.xid) && !rows.repeated)
		{
			if (WaitForClaim(work, &open))
				return false;
			HoldUp(result);
			continue;
		}
		if (rows.repeated)
		{
			result->code = OUTCOME_OK;
			result->repeated = true;
			result->coupon_id = rows.coupon_id;
			result->receive_seq = rows.receive_seq;
			result->use_end = rows.use_end;
		}
	}
	return true;
}

static void
RefuseOverLimit(ClaimWork *work, ClaimResult *result)
{
	result->code = OUTCOME_OVER_LIMIT;
	TemplateCountRefusals(&work->view, OUTCOME_OVER_LIMIT, 1);
}

/*
 * Whether limit_cache.c can be asked, and told, about users.  A transaction that
 * has written anything may have deleted coupons, which nobody else knows yet,
 * or sees coupons of its own as if they were committed.
 */
static bool
MayUseLimitCache(const ClaimWork *work)
{
	return work->view.limit_stamp != 0 &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/* Whether an earlier look at the rows has found that a user has had the limit. */
static bool
IsKnownOverLimit(ClaimWork *work, ClaimResult *result)
{
	if (!MayUseLimitCache(work) ||
		LimitCacheLookup(work->view.limit_stamp, result->user_id) < LimitOf(work))
		return false;
	RefuseOverLimit(work, result);
	return true;
}

/*
 * Whether a user has had the limit; if not, which coupon would be the next.
 * Claims that are open count only if "open" asks for them.
 */
static bool
IsOverLimit(ClaimWork *work, ClaimResult *result, RowsOpenClaim *open)
{
	RowsOfUser	rows;

	LookAtUser(work, result->user_id, NULL, &rows, open);
	result->receive_seq = rows.last_seq + 1;
	if (rows.last_seq < LimitOf(work))
		return false;
	if (MayUseLimitCache(work))
		LimitCacheStore(work->view.limit_stamp, result->user_id, rows.last_seq);
	RefuseOverLimit(work, result);
	return true;
}

/* Refuse users who have had their limit, by what is committed. */
static void
CheckLimits(ClaimWork *work)
{
	for (int i = 0; i < work->nusers; i++)
	{
		ClaimResult *result = &work->results[i];

		if (result->code == UNDECIDED && !IsKnownOverLimit(work, result))
			(void) IsOverLimit(work, result, NULL);
	}
}

/*
 * Whether a user probably has the one coupon that he may have: a look without
 * his lock will do then, as a rule.
 */
static bool
MayHaveTheOnly(const ClaimWork *work, const ClaimResult *result)
{
	const TemplateView *view = &work->view;

	return LimitOf(work) == 1 && view->filter_complete &&
		UserFilterMayHave(view->key.relation, view->key.template_id, result->user_id);
}

/*
 * The same for good, with the users locked.  A user who presses again and
 * again after the first success is refused without waiting for a lock that
 * other presses hold.  False: open claims were waited for; start again.
 */
static bool
LockAndCheckLimits(ClaimWork *work)
{
	for (int i = 0; i < work->nusers; i++)
	{
		ClaimResult *result = &work->results[i];
		RowsOpenClaim open;

		if (result->code != UNDECIDED || IsKnownOverLimit(work, result))
			continue;
		if (MayHaveTheOnly(work, result) || !LockUser(work, i, false))
		{
			if (IsOverLimit(work, result, NULL))
				continue;
			if (!AwaitUser(work, i))
			{
				HoldUp(result);
				continue;
			}
		}
		if (!IsOverLimit(work, result, &open) && TransactionIdIsValid(open.xid))
		{
			if (WaitForClaim(work, &open))
				return false;
			HoldUp(result);
		}
	}
	return true;
}

/* What the rows of this call share. */
static void
FillCommon(const ClaimWork *work, InsertCommon *common)
{
	common->template_id = work->request->template_id;
	common->source = work->request->source;
	common->request_id = work->request->request_id;
	common->received_at = work->request->now;
	TemplateUseWindow(&work->view, work->request->now,
					  &common->use_start, &common->use_end);
}

/*
 * Insert the coupons of the first n undecided users; those whose row met a
 * conflict stay undecided, for a while: then it is an index or trigger of somebody's
 * that keeps them out, and they are refused.  Returns the number of rows made.
 */
static int
InsertFirst(ClaimWork *work, int n)
{
	InsertCommon common;
	InsertRow	rows[CLAIM_CHUNK];
	ClaimResult *chosen[CLAIM_CHUNK];
	int			nchosen = 0;
	int			made;

	FillCommon(work, &common);
	for (int i = 0; i < work->nusers && nchosen < n; i++)
	{
		ClaimResult *result = &work->results[i];

		if (result->code != UNDECIDED)
			continue;
		rows[nchosen].coupon_id = IdNext();
		rows[nchosen].user_id = result->user_id;
		rows[nchosen].receive_seq = result->receive_seq;
		chosen[nchosen++] = result;
	}

	made = InsertCoupons(&common, rows, nchosen);
	for (int i = 0; i < nchosen; i++)
	{
		if (!rows[i].inserted)
		{
			/* A conflict that the last looks did not explain is not ours. */
			if (work->conflicts + 1 >= CLAIM_MAX_CONFLICTS)
			{
				chosen[i]->code = OUTCOME_NOT_CLAIMABLE;
				chosen[i]->kept_out = true;
				TemplateCountRefusals(&work->view, OUTCOME_NOT_CLAIMABLE, 1);
			}
			continue;
		}
		chosen[i]->code = OUTCOME_OK;
		chosen[i]->coupon_id = rows[i].coupon_id;
		chosen[i]->use_end = common.use_end;
	}
	return made;
}

/*
 * Reserve stock for the undecided users and insert their coupons.  Those for
 * whom there is none are refused; those in conflict, and all where the
 * template has changed meanwhile, stay undecided.
 */
static void
ReserveAndInsert(ClaimWork *work)
{
	int64		got;
	int			made;
	StockResult reserved;

	reserved = TemplateReserve(&work->view, CountUndecided(work), &got);
	if (reserved == STOCK_CHANGED)
		return;
	if (reserved == STOCK_CLOSED || reserved == STOCK_RECOUNT)
	{
		UnlockUsers(work);
		if (work->request->waiting == CLAIM_WAITS)
			TemplateWait(&work->view, reserved);
		else if (!TemplateTryWait(&work->view, reserved))
			HoldUpUndecided(work);
		return;
	}
	if (reserved == STOCK_EMPTY)
	{
		RefuseUndecided(work, OUTCOME_OUT_OF_STOCK);
		return;
	}

	made = InsertFirst(work, (int) got);
	TemplateCheckOwn(&work->view);
	if (made < got && work->view.origin != TEMPLATE_OWN_CREATED)
		StockTakeBack(&work->view.key, got - made);

	work->conflicts = made < got && work->conflicts + 1 < CLAIM_MAX_CONFLICTS ? work->conflicts + 1 : 0;
}

/* For a role that is bound to a shop there are no other templates. */
static bool
RoleSeesTemplate(ClaimWork *work)
{
	RoleKinds	kinds = work->request->roles;

	return !RoleIsBound(kinds) ||
		(TemplateFetch(work->request->template_id, &work->view) &&
		 RoleSeesShop(kinds, work->view.attrs.has_shop, work->view.attrs.shop_number));
}

/*
 * One try to decide about the users who are still on the way; some stay so
 * where something was waited for, or has changed meanwhile.
 */
static void
TryUndecided(ClaimWork *work)
{
	int			code;

	if (work->request->request_id != NULL && !FindRepeated(work))
		return;
	if (CountUndecided(work) == 0)
		return;
	if (!TemplateFetch(work->request->template_id, &work->view))
	{
		RefuseUndecided(work, OUTCOME_NOT_FOUND);
		return;
	}
	code = TemplateJudge(&work->view, work->request->open_to, work->request->now);
	if (code != OUTCOME_OK && !(code == OUTCOME_NOT_STARTED && work->request->early))
	{
		RefuseUndecided(work, code);
		return;
	}

	/* Sold out is what most calls of a flash sale read: take no lock. */
	if (work->view.issued >= work->view.quota)
	{
		CheckLimits(work);
		RefuseUndecided(work, OUTCOME_OUT_OF_STOCK);
		return;
	}

	if (LockAndCheckLimits(work) && CountUndecided(work) > 0)
		ReserveAndInsert(work);
}

/* Decide about a chunk of users. */
static void
ClaimChunk(ClaimWork *work)
{
	if (!RoleSeesTemplate(work))
		RefuseUndecided(work, OUTCOME_NOT_FOUND);
	while (CountUndecided(work) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		TryUndecided(work);
	}
	UnlockUsers(work);
}

/*
 * ClaimCoupons decides for each user, and claims.  users must be ascending and
 * distinct, results as long.
 *
 * A refusal is a code in the result.  Raises VC001 and VC002 where nothing can
 * be claimed, 25000 in a parallel query, VC004 and VC008 where the shared cache
 * cannot serve; nothing is changed then.
 */
void
ClaimCoupons(const ClaimRequest *request, const int64 *users, int nusers,
			 ClaimResult *results)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = NULL;

	TemplateRequirePreload();
	PreventCommandIfParallelMode("coupon claim");
	ThrottleNoteClaim();
	AcceptInvalidationMessages();	/* as a look at the rows would */
	/* What one chunk needs is left to the caller's memory. */
	if (nusers > CLAIM_CHUNK)
	{
		context = AllocSetContextCreate(caller, "coupon claim",
										ALLOCSET_SMALL_SIZES);
		MemoryContextSwitchTo(context);
	}
	for (int i = 0; i < nusers; i++)
	{
		memset(&results[i], 0, sizeof(ClaimResult));
		results[i].user_id = users[i];
		results[i].code = UNDECIDED;
	}

	for (int done = 0; done < nusers; done += CLAIM_CHUNK)
	{
		ClaimWork	work;

		memset(&work, 0, sizeof(work));
		work.request = request;
		work.nusers = Min(nusers - done, CLAIM_CHUNK);
		work.results = results + done;
		ClaimChunk(&work);
		if (context != NULL)
			MemoryContextReset(context);
	}
	if (context != NULL)
	{
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(context);
	}
}
