/*
 * claim.c
 *		Claim coupons of one template for one or many users.
 *
 * Order of checks: request id, found, published, claimable, window, limit,
 * stock.  A refusal writes nothing and takes no transaction id.
 *
 * One user at a time.  From its limit check to its insert a claim holds the
 * lock of (template, user), so that of ten simultaneous presses one looks at
 * the rows and nine wait.  Once the row is inserted the lock can go: the next
 * press finds the row, waits for its transaction, and only then takes a unit
 * of stock or is refused.  So the presses of a user never hold more than one
 * unit for longer than it takes to insert, and however many users one call
 * serves, it holds few locks.
 *
 * The limit is enforced by the unique index on (template, user, n-th), which
 * catches what the lock does not know of: coupons inserted by hand.  ON
 * CONFLICT DO NOTHING, and look again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "claim.h"
#include "id.h"
#include "locks.h"
#include "outcome.h"
#include "query.h"
#include "role.h"
#include "rows.h"

#define CLAIM_CHUNK 256			/* users who are locked at a time */
#define CLAIM_MAX_CONFLICTS 100
#define UNDECIDED (-1)

static OwnerQuery insert_one = {
	"INSERT INTO %1$s.user_coupon (id, user_id, receive_seq, template_id, source,"
	" holder, received_at, use_start, use_end, request_id)"
	" VALUES ($1, $2, $3, $4, $5, 0, $6, $7, $8, $9)"
	" ON CONFLICT DO NOTHING RETURNING id",
	9, {INT8OID, INT8OID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID}
};

/* A bare "unnest" of several arrays is the parser's own, whatever the path. */
static OwnerQuery insert_many = {
	"INSERT INTO %1$s.user_coupon (id, user_id, receive_seq, template_id, source,"
	" holder, received_at, use_start, use_end, request_id)"
	" SELECT i, u, s, $4, $5, 0, $6, $7, $8, $9"
	" FROM unnest($1, $2, $3) AS x (i, u, s)"
	" ON CONFLICT DO NOTHING RETURNING id",
	9, {INT8ARRAYOID, INT8ARRAYOID, INT4ARRAYOID, INT8OID, TEXTOID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID}
};

/* One chunk of users on their way through the checks. */
typedef struct ClaimWork
{
	const ClaimRequest *request;
	TemplateView view;
	int			nusers;
	ClaimResult *results;		/* code UNDECIDED: still on the way */
	int			nlocked;		/* the first n users are locked */
	int			conflicts;		/* inserts in a row that met one */
} ClaimWork;

static bool inserting = false;

/*
 * ClaimIsInserting tells triggers on user_coupon that the row is the claim
 * path's own, which the counter knows of.
 */
bool
ClaimIsInserting(void)
{
	return inserting;
}

static void
LockUser(ClaimWork *work, int i)
{
	LOCKTAG		tag;

	LockTagOfUser(&tag, work->request->template_id, work->results[i].user_id);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

static void
LockUsers(ClaimWork *work)
{
	/* In order of user id, as every call does. */
	while (work->nlocked < work->nusers)
		LockUser(work, work->nlocked++);
}

static void
UnlockUsers(ClaimWork *work)
{
	for (int i = 0; i < work->nlocked; i++)
	{
		LOCKTAG		tag;

		LockTagOfUser(&tag, work->request->template_id,
					  work->results[i].user_id);
		(void) LockRelease(&tag, ExclusiveLock, false);
	}
	work->nlocked = 0;
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

/*
 * Whether the template can be claimed at all: the code that refuses it, or
 * OUTCOME_OK.
 */
static int
JudgeTemplate(const TemplateView *view, const ClaimRequest *request)
{
	const TemplateAttrs *attrs = &view->attrs;
	TimestampTz now = GetCurrentStatementStartTimestamp();

	if (attrs->status != TEMPLATE_PUBLISHED)
		return OUTCOME_NOT_PUBLISHED;
	if (attrs->open_to != request->open_to)
		return OUTCOME_NOT_CLAIMABLE;
	if (now >= attrs->receive_end)
		return OUTCOME_ENDED;
	if (now < attrs->receive_start)
		return OUTCOME_NOT_STARTED;
	return OUTCOME_OK;
}

static int32
LimitOf(const ClaimWork *work)
{
	int32		limit = work->view.attrs.per_user_limit;
	int32		cap = work->request->limit_cap;

	return cap > 0 ? Min(limit, cap) : limit;
}

/* Look for coupons that an earlier call with this request id has claimed. */
static void
FindRepeated(ClaimWork *work)
{
	LockUsers(work);
	for (int i = 0; i < work->nusers; i++)
	{
		ClaimResult *result = &work->results[i];
		RowsOfUser	rows;

		if (result->code != UNDECIDED)
			continue;
		RowsProbe(work->request->template_id, result->user_id,
				  work->request->request_id, true, &rows);
		if (rows.repeated)
		{
			result->code = OUTCOME_OK;
			result->repeated = true;
			result->coupon_id = rows.coupon_id;
			result->receive_seq = rows.receive_seq;
			result->use_end = rows.use_end;
		}
	}
}

/*
 * Refuse users who have had their limit; the others learn which coupon would
 * be their next.  With "wait", open claims of the same user are waited for.
 */
static void
CheckLimits(ClaimWork *work, bool wait)
{
	int32		limit = LimitOf(work);
	int64		refused = 0;

	for (int i = 0; i < work->nusers; i++)
	{
		ClaimResult *result = &work->results[i];
		RowsOfUser	rows;

		if (result->code != UNDECIDED)
			continue;
		RowsProbe(work->request->template_id, result->user_id, NULL, wait, &rows);
		result->receive_seq = rows.last_seq + 1;
		if (result->receive_seq > limit)
		{
			result->code = OUTCOME_OVER_LIMIT;
			refused++;
		}
	}
	if (refused > 0)
		TemplateCountRefusals(&work->view, OUTCOME_OVER_LIMIT, refused);
}

/* When a coupon claimed now can be used, and what else its rows share. */
static void
FillCommonColumns(const ClaimWork *work, Datum *values, char *nulls)
{
	const TemplateAttrs *attrs = &work->view.attrs;
	const ClaimRequest *request = work->request;
	TimestampTz now = GetCurrentStatementStartTimestamp();

	values[3] = Int64GetDatum(request->template_id);
	values[4] = CStringGetTextDatum(request->source);
	values[5] = TimestampTzGetDatum(now);
	values[6] = TimestampTzGetDatum(attrs->use_start == DT_NOBEGIN ? now :
									attrs->use_start);
	if (attrs->has_use_end)
		values[7] = TimestampTzGetDatum(attrs->use_end);
	else
		values[7] = DirectFunctionCall2(timestamptz_pl_interval,
										TimestampTzGetDatum(now),
										IntervalPGetDatum(&attrs->use_validity));
	values[8] = (Datum) 0;
	if (request->request_id != NULL)
		values[8] = CStringGetTextDatum(request->request_id);
	memset(nulls, ' ', 9);
	nulls[8] = request->request_id != NULL ? ' ' : 'n';
}

/* Run an insert with the triggers told; returns the number of rows made. */
static uint64
RunInsert(OwnerQuery *query, Datum *values, const char *nulls)
{
	uint64		rows = 0;

	inserting = true;
	PG_TRY();
	{
		rows = QueryRun(query, values, nulls);
	}
	PG_FINALLY();
	{
		inserting = false;
	}
	PG_END_TRY();
	return rows;
}

static Datum
MakeArray(Datum *values, int n, Oid type, int width)
{
	return PointerGetDatum(construct_array(values, n, type, width, true,
										   width == 8 ? TYPALIGN_DOUBLE : TYPALIGN_INT));
}

/*
 * Insert the coupons of the chosen users; those whose row met a conflict stay
 * undecided.  Returns the number of rows made.
 */
static int
InsertCoupons(ClaimWork *work, ClaimResult **chosen, int n)
{
	Datum		values[9];
	char		nulls[9];
	QueryScope	scope;
	TimestampTz use_end;
	uint64		made;

	FillCommonColumns(work, values, nulls);
	use_end = DatumGetTimestampTz(values[7]);
	for (int i = 0; i < n; i++)
		chosen[i]->coupon_id = IdNext();

	QueryBegin(&scope);
	if (n == 1)
	{
		values[0] = Int64GetDatum(chosen[0]->coupon_id);
		values[1] = Int64GetDatum(chosen[0]->user_id);
		values[2] = Int32GetDatum(chosen[0]->receive_seq);
		made = RunInsert(&insert_one, values, nulls);
	}
	else
	{
		Datum	   *column = palloc(3 * n * sizeof(Datum));

		for (int i = 0; i < n; i++)
		{
			column[i] = Int64GetDatum(chosen[i]->coupon_id);
			column[n + i] = Int64GetDatum(chosen[i]->user_id);
			column[2 * n + i] = Int32GetDatum(chosen[i]->receive_seq);
		}
		values[0] = MakeArray(column, n, INT8OID, 8);
		values[1] = MakeArray(column + n, n, INT8OID, 8);
		values[2] = MakeArray(column + 2 * n, n, INT4OID, 4);
		made = RunInsert(&insert_many, values, nulls);
	}

	/* Rows come back in the order of insertion, without those in conflict. */
	for (int i = 0, row = 0; i < n && row < (int) made; i++)
	{
		bool		isnull;

		if (DatumGetInt64(QueryValue(row, 1, &isnull)) != chosen[i]->coupon_id)
			continue;
		chosen[i]->code = OUTCOME_OK;
		chosen[i]->use_end = use_end;
		row++;
	}
	QueryEnd(&scope);
	return (int) made;
}

/*
 * Reserve stock for the undecided users and insert their coupons.  Those for
 * whom there is none are refused; those in conflict, and all where the
 * template has changed meanwhile, stay undecided.
 */
static void
ReserveAndInsert(ClaimWork *work)
{
	ClaimResult *chosen[CLAIM_CHUNK];
	int64		got;
	int			n = 0;
	int			made;
	StockResult reserved;

	reserved = TemplateReserve(&work->view, CountUndecided(work), &got);
	if (reserved == STOCK_CHANGED)
		return;
	if (reserved == STOCK_EMPTY)
	{
		RefuseUndecided(work, OUTCOME_OUT_OF_STOCK);
		return;
	}

	for (int i = 0; i < work->nusers && n < got; i++)
	{
		if (work->results[i].code == UNDECIDED)
			chosen[n++] = &work->results[i];
	}
	made = InsertCoupons(work, chosen, n);
	if (made < n && work->view.origin != TEMPLATE_OWN_CREATED)
		StockTakeBack(&work->view.key, n - made);

	/* A conflict that the next look does not explain is not ours. */
	work->conflicts = made < n ? work->conflicts + 1 : 0;
	if (work->conflicts >= CLAIM_MAX_CONFLICTS)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("coupons of template %lld conflict with a unique index that is not coupon's own",
						(long long) work->request->template_id),
				 errhint("Look at the indexes of user_coupon and its partitions.")));
}

/*
 * Decide about a chunk of users.  For a role that is bound to a shop there are
 * no other templates, not even to repeat an answer.
 */
static void
ClaimChunk(ClaimWork *work)
{
	if (RoleIsBound() &&
		!(TemplateFetch(work->request->template_id, &work->view) &&
		  RoleSeesShop(work->view.attrs.has_shop, work->view.attrs.shop_number)))
		RefuseUndecided(work, OUTCOME_NOT_FOUND);
	else if (work->request->request_id != NULL)
		FindRepeated(work);

	while (CountUndecided(work) > 0)
	{
		int			code;

		CHECK_FOR_INTERRUPTS();
		if (!TemplateFetch(work->request->template_id, &work->view))
		{
			RefuseUndecided(work, OUTCOME_NOT_FOUND);
			break;
		}
		code = JudgeTemplate(&work->view, work->request);
		if (code != OUTCOME_OK)
		{
			RefuseUndecided(work, code);
			break;
		}

		/* Sold out is what most calls of a flash sale read: take no lock. */
		if (work->view.issued >= work->view.quota && work->nlocked == 0)
		{
			CheckLimits(work, false);
			RefuseUndecided(work, OUTCOME_OUT_OF_STOCK);
			break;
		}

		LockUsers(work);
		CheckLimits(work, true);
		if (CountUndecided(work) > 0)
			ReserveAndInsert(work);
	}
	UnlockUsers(work);
}

/*
 * ClaimCoupons decides for each user, and claims.  users must be ascending and
 * distinct, results as long.
 *
 * A refusal is a code in the result.  Raises VC001 and VC002 where nothing can
 * be claimed, VC004 and VC008 where the shared cache cannot serve; nothing is
 * changed then.
 */
void
ClaimCoupons(const ClaimRequest *request, const int64 *users, int nusers,
			 ClaimResult *results)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "coupon claim",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);

	TemplateRequirePreload();
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
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}
