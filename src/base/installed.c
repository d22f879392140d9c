/*
 * installed.c
 *		Whether our tables are as the install script made them.
 *
 * Columns that our code reads are found by name and type, in each table.  What
 * insert.c writes past the executor must have nothing that an INSERT would have
 * to heed: InstalledIsCoupon is the one place that says so of columns and CHECKs.
 *
 * The CHECK of user_coupon is a function, so that it can be told from one of
 * somebody's, also under the same name.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "nodes/primnodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/errors.h"
#include "base/installed.h"

PG_FUNCTION_INFO_V1(coupon_goods_sane);
PG_FUNCTION_INFO_V1(user_coupon_sane);

#define MAX_GOODS 10000			/* that a template is good for */
#define MAX_GOODS_ID 64			/* bytes of each id */
#define MAX_ORDER_ID 64			/* bytes */

/* user_coupon, in the order of the install script. */
static const InstalledColumn coupon_columns[COUPON_COLUMNS] = {
	{"id", INT8OID},
	{"user_id", INT8OID},
	{"template_id", INT8OID},
	{"received_at", TIMESTAMPTZOID},
	{"use_start", TIMESTAMPTZOID},
	{"use_end", TIMESTAMPTZOID},
	{"receive_seq", INT4OID},
	{"holder", INT4OID},
	{"status", INT2OID},
	{"source", TEXTOID},
	{"order_id", TEXTOID},
	{"order_amount", NUMERICOID},
	{"locked_until", TIMESTAMPTZOID},
	{"used_at", TIMESTAMPTZOID},
	{"discount", NUMERICOID},
	{"hidden", BOOLOID},
	{"request_id", TEXTOID},
};

/* Columns whose value insert.c leaves out: null, so without a default or NOT NULL. */
static bool
IsLeftOut(CouponColumn column)
{
	return column >= COUPON_ORDER_ID && column <= COUPON_HIDDEN;
}

static bool
MayBeNull(CouponColumn column)
{
	return IsLeftOut(column) || column == COUPON_HOLDER || column == COUPON_REQUEST_ID;
}

/* What user_coupon_sane is called with, in order. */
static const CouponColumn sane_arguments[] = {
	COUPON_ID, COUPON_USER_ID, COUPON_RECEIVE_SEQ, COUPON_STATUS, COUPON_SOURCE,
	COUPON_USE_START, COUPON_USE_END, COUPON_HOLDER, COUPON_ORDER_ID, COUPON_ORDER_AMOUNT,
	COUPON_LOCKED_UNTIL, COUPON_USED_AT, COUPON_DISCOUNT
};

static Oid
TypeOf(Relation rel, const InstalledColumn *column)
{
	if (OidIsValid(column->type))
		return column->type;
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("remind_bitmap"),
						   ObjectIdGetDatum(RelationGetNamespace(rel)));
}

/*
 * InstalledFindColumns fills in where columns are in a table that is locked.
 * Raises VC009 where one is missing or of another type.
 */
void
InstalledFindColumns(Relation rel, const InstalledColumn *columns, int ncolumns,
					 AttrNumber *found)
{
	for (int c = 0; c < ncolumns; c++)
	{
		Oid			type = TypeOf(rel, &columns[c]);
		TupleDesc	desc = RelationGetDescr(rel);	/* after the look-up */

		found[c] = InvalidAttrNumber;
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, i);

			if (!att->attisdropped && att->atttypid == type &&
				strcmp(NameStr(att->attname), columns[c].name) == 0)
				found[c] = i + 1;
		}
		if (found[c] == InvalidAttrNumber)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_NOT_INSTALLED),
					 errmsg("table \"%s\" lacks its column \"%s\" of type %s",
							RelationGetRelationName(rel), columns[c].name,
							format_type_be(type)),
					 errhint("Rename it back, or restore it.")));
	}
}

/*
 * InstalledFindCoupon is InstalledFindColumns for a partition of user_coupon, as
 * an array indexed by CouponColumn.
 */
void
InstalledFindCoupon(Relation rel, AttrNumber *found)
{
	InstalledFindColumns(rel, coupon_columns, COUPON_COLUMNS, found + COUPON_ID);
}

static bool
HasCouponColumns(TupleDesc desc)
{
	if (desc->natts != COUPON_COLUMNS)
		return false;
	for (int c = COUPON_ID; c <= COUPON_COLUMNS; c++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, c - 1);

		if (att->attisdropped ||
			strcmp(NameStr(att->attname), coupon_columns[c - 1].name) != 0 ||
			att->atttypid != coupon_columns[c - 1].type ||
			att->attnotnull == MayBeNull(c) ||
			(att->atthasdef && IsLeftOut(c)))
			return false;
	}
	return true;
}

/* Whether a CHECK is user_coupon_sane of the columns that it is installed with. */
static bool
IsSane(const char *stored, Oid sane)
{
	FuncExpr   *call = stringToNode(stored);

	if (!IsA(call, FuncExpr) || call->funcid != sane ||
		list_length(call->args) != lengthof(sane_arguments))
		return false;
	for (int i = 0; i < lengthof(sane_arguments); i++)
	{
		Var		   *var = list_nth(call->args, i);

		if (!IsA(var, Var) || var->varattno != sane_arguments[i])
			return false;
	}
	return true;
}

/*
 * InstalledIsCoupon tells whether user_coupon, or a partition, has the columns
 * that it was installed with, and no other, and no CHECK but the function given,
 * user_coupon_sane.  No look-ups in here: they may free what is read.
 */
bool
InstalledIsCoupon(Relation rel, Oid sane)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	if (constr == NULL || !HasCouponColumns(RelationGetDescr(rel)))
		return false;
	for (int i = 0; i < constr->num_check; i++)
	{
		if (!IsSane(constr->check[i].ccbin, sane))
			return false;
	}
	return true;
}

/*
 * InstalledRefuse raises 23514 from the CHECK of a table, for a column that breaks
 * a rule: "must be positive".
 */
void
InstalledRefuse(const char *table, const char *column, const char *rule)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("%s of \"%s\" %s", column, table, rule),
			 err_generic_string(PG_DIAG_TABLE_NAME, table),
			 err_generic_string(PG_DIAG_COLUMN_NAME, column),
			 err_generic_string(PG_DIAG_CONSTRAINT_NAME, psprintf("%s_sane", table))));
}

static void
Refuse(const char *column, const char *rule)
{
	InstalledRefuse("user_coupon", column, rule);
}

/*
 * coupon_goods_sane(goods_ids): the CHECK of coupon_template on the ids of goods.
 * Returns true, or raises 23514 that names the rule that is broken.
 */
Datum
coupon_goods_sane(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_ARGISNULL(0) ? NULL : PG_GETARG_ARRAYTYPE_P(0);
	Datum	   *ids;
	bool	   *nulls;
	int			n;

	if (array == NULL)
		PG_RETURN_BOOL(true);
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &ids, &nulls, &n);
	if (ARR_NDIM(array) != 1 || n > MAX_GOODS)
		InstalledRefuse("coupon_template", "goods_ids",
						psprintf("must be a list of 1 to %d", MAX_GOODS));
	for (int i = 0; i < n; i++)
	{
		Size		length = nulls[i] ? 0 : VARSIZE_ANY_EXHDR(DatumGetPointer(ids[i]));

		if (length < 1 || length > MAX_GOODS_ID)
			InstalledRefuse("coupon_template", "goods_ids",
							psprintf("must have 1 to %d bytes each", MAX_GOODS_ID));
	}
	PG_RETURN_BOOL(true);
}

static bool
IsSource(const char *source)
{
	static const char *const sources[] = {
		"center", "platform", "shop", "registration", "code", "redis"
	};

	for (int i = 0; i < lengthof(sources); i++)
	{
		if (strcmp(source, sources[i]) == 0)
			return true;
	}
	return false;
}

/* Whether a number is there and below 0; a numeric(16,2) may be NaN. */
static bool
IsNegative(FunctionCallInfo fcinfo, int arg)
{
	return !PG_ARGISNULL(arg) &&
		(numeric_is_nan(PG_GETARG_NUMERIC(arg)) ||
		 DatumGetBool(DirectFunctionCall2(numeric_lt, PG_GETARG_DATUM(arg),
										  NumericGetDatum(int64_to_numeric(0)))));
}

/* Arguments as below: what a coupon of ours has whose use an order has locked or made. */
static void
CheckOrder(FunctionCallInfo fcinfo, int16 status)
{
	if (PG_ARGISNULL(8))
		Refuse("order_id", status == 1 ? "must be given for a locked coupon" : "must be given for a used coupon");
	if (PG_ARGISNULL(9))
		Refuse("order_amount", "must be given where an order has the coupon");
	if (PG_ARGISNULL(12))
		Refuse("discount", "must be given where an order has the coupon");
	if (status == 1 && PG_ARGISNULL(10))
		Refuse("locked_until", "must be given for a locked coupon");
	if (status == 2 && PG_ARGISNULL(11))
		Refuse("used_at", "must be given for a used coupon");
}

/*
 * user_coupon_sane(id, user_id, receive_seq, status, source, use_start, use_end, holder,
 * order_id, order_amount, locked_until, used_at, discount): the CHECK of user_coupon.
 * Returns true, or raises 23514 that names the column and the rule it breaks.  insert.c
 * satisfies it by construction.  What has come from another system may lack the order.
 */
Datum
user_coupon_sane(PG_FUNCTION_ARGS)
{
	int16		status;

	for (int i = 0; i <= 6; i++)
	{
		if (PG_ARGISNULL(i))
			PG_RETURN_NULL();	/* NOT NULL says so */
	}
	status = PG_GETARG_INT16(3);
	if (PG_GETARG_INT64(0) <= 0)
		Refuse("id", "must be positive");
	if (PG_GETARG_INT64(1) <= 0)
		Refuse("user_id", "must be positive");
	if (PG_GETARG_INT32(2) <= 0)
		Refuse("receive_seq", "must be positive");
	if (status < 0 || status > 4)
		Refuse("status", "must lie between 0 and 4");
	if (!IsSource(text_to_cstring(PG_GETARG_TEXT_PP(4))))
		Refuse("source", "must be center, platform, shop, registration, code or redis");
	if (PG_GETARG_TIMESTAMPTZ(6) <= PG_GETARG_TIMESTAMPTZ(5))
		Refuse("use_end", "must be later than use_start");
	if (!PG_ARGISNULL(8) && toast_raw_datum_size(PG_GETARG_DATUM(8)) - VARHDRSZ > MAX_ORDER_ID)
		Refuse("order_id", "must have at most 64 bytes");
	if (IsNegative(fcinfo, 9))
		Refuse("order_amount", "must not be negative");
	if (IsNegative(fcinfo, 12))
		Refuse("discount", "must not be negative");
	if ((status == 1 || status == 2) && !PG_ARGISNULL(7) && PG_GETARG_INT32(7) != HOLDER_IMPORTED)
		CheckOrder(fcinfo, status);
	PG_RETURN_BOOL(true);
}
