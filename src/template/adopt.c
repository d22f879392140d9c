/*
 * adopt.c
 *		Coupons of another system, taken into the stock of their template.
 *
 * They are brought by COPY, with whatever ids they have, and without a holder:
 * outside the stock.  Adopting them gives them the holder "imported", whose quota
 * is their number; so much less can be issued here.  They count as folded, by that
 * quota alone: no watermark says so, since their ids say nothing of when they came.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "base/args.h"
#include "base/errors.h"
#include "base/installed.h"
#include "base/outcome.h"
#include "base/owner_query.h"
#include "base/shop_role.h"
#include "base/subxact.h"
#include "template/adopt.h"

PG_FUNCTION_INFO_V1(coupon_stock_adopt);

/* A total changes, and quota moves between holders, with the template locked. */
static OwnerQuery lock_template = {
	"SELECT 1 FROM %1$s.coupon_template WHERE id OPERATOR(pg_catalog.=) $1"
	" AND ($2 IS NULL OR shop_number OPERATOR(pg_catalog.=) ANY ($2)) FOR NO KEY UPDATE",
	2, {INT8OID, INT8ARRAYOID}
};

static OwnerQuery adopt_coupons = {
	"UPDATE %1$s.user_coupon SET holder = 3"
	" WHERE template_id OPERATOR(pg_catalog.=) $1 AND holder IS NULL",
	1, {INT8OID}
};

/* Our trigger on coupon_stock takes the quota from this database's. */
static OwnerQuery add_quota = {
	"INSERT INTO %1$s.coupon_stock AS s (template_id, holder, quota, folded)"
	" VALUES ($1, 3, $2, $2) ON CONFLICT (template_id, holder) DO UPDATE"
	" SET quota = s.quota OPERATOR(pg_catalog.+) excluded.quota,"
	" folded = s.folded OPERATOR(pg_catalog.+) excluded.folded",
	2, {INT8OID, INT8OID}
};

typedef struct Adoption
{
	int64		template_id;
	int64		adopted;
} Adoption;

static bool running = false;

/*
 * AdoptIsRunning tells triggers on user_coupon that coupons get a holder.
 */
bool
AdoptIsRunning(void)
{
	return running;
}

static void
AdoptCoupons(Adoption *adoption)
{
	Datum		arg = Int64GetDatum(adoption->template_id);

	running = true;
	PG_TRY();
	{
		adoption->adopted = (int64) QueryRun(&adopt_coupons, &arg, NULL);
	}
	PG_FINALLY();
	{
		running = false;
	}
	PG_END_TRY();
}

static bool
Adopt(void *arg)
{
	Adoption   *adoption = arg;
	QueryScope	scope;
	Datum		args[2];

	QueryBegin(&scope);
	AdoptCoupons(adoption);
	args[0] = Int64GetDatum(adoption->template_id);
	args[1] = Int64GetDatum(adoption->adopted);
	if (adoption->adopted > 0)
		QueryRun(&add_quota, args, NULL);
	QueryEnd(&scope);
	return true;
}

/*
 * coupon_stock_adopt(template_id) → code, outcome, adopted: nothing changes where the
 * total does not suffice (out_of_stock).
 */
Datum
coupon_stock_adopt(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Adoption	adoption = {0};
	int			code = OUTCOME_OK;
	ErrorData  *error;
	QueryScope	scope;
	Datum		args[2];
	char		nulls[2] = {' ', ' '};
	Datum		values[3];
	bool		row_nulls[3] = {false};

	ArgRequire(fcinfo, 0, "template_id");
	InitMaterializedSRF(fcinfo, 0);
	adoption.template_id = PG_GETARG_INT64(0);
	args[0] = PG_GETARG_DATUM(0);
	RoleBoundShops(ROLE_OPERATOR, &args[1], &nulls[1]);
	QueryBegin(&scope);
	if (QueryRun(&lock_template, args, nulls) == 0)
		code = OUTCOME_NOT_FOUND;
	QueryEnd(&scope);
	if (code == OUTCOME_OK && !SubxactRun(Adopt, &adoption, &error))
	{
		if (error->sqlerrcode != ERRCODE_COUPON_BELOW_ISSUED)
			ReThrowError(error);
		code = OUTCOME_OUT_OF_STOCK;
		adoption.adopted = 0;
	}
	values[0] = Int32GetDatum(code);
	values[1] = CStringGetTextDatum(OutcomeName(code));
	values[2] = Int64GetDatum(adoption.adopted);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, row_nulls);
	return (Datum) 0;
}
