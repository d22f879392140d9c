/*
 * bill.c
 *		The amount and the lines of an order, as callers give them.
 *
 * items: [{"goods_id": "A-5", "shop_number": "7", "amount": "199.00"}, …].  Numbers may be
 * JSON strings, as ids of 64 bits have to be in some languages.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "base/args.h"
#include "base/errors.h"
#include "order/bill.h"

#define MOST_LINES 1000
#define LONGEST_GOODS_ID 64		/* bytes */

#define AMOUNT_DETAIL "It must be a number from 0.01 to 99999999999999.99 with at most two decimals."

static bool
NumericIs(PGFunction compare, Datum a, Datum b)
{
	return DatumGetBool(DirectFunctionCall2(compare, a, b));
}

static Datum
Int8Numeric(int64 value)
{
	return NumericGetDatum(int64_to_numeric(value));
}

/* Cents of an amount; false: it has none, or too many. */
static bool
ToCents(Datum amount, int64 *cents)
{
	Numeric		numeric = DatumGetNumeric(amount);
	Datum		hundredfold;

	if (numeric_is_nan(numeric) || numeric_is_inf(numeric) ||
		NumericIs(numeric_lt, amount, Int8Numeric(0)) ||
		NumericIs(numeric_gt, amount, Int8Numeric(CENTS_MAX / 100 + 1)))
		return false;
	hundredfold = DirectFunctionCall2(numeric_mul, amount, Int8Numeric(100));
	if (NumericIs(numeric_ne, hundredfold,
				  DirectFunctionCall2(numeric_trunc, hundredfold, Int32GetDatum(0))))
		return false;
	*cents = DatumGetInt64(DirectFunctionCall1(numeric_int8, hundredfold));
	return *cents <= CENTS_MAX;
}

/*
 * BillCents returns the cents of an amount above 0.  Raises VC003 with the name of the
 * argument for any other.
 */
int64
BillCents(Datum amount, const char *name)
{
	int64		cents;

	if (!ToCents(amount, &cents) || cents == 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s is no amount of money", name), errdetail(AMOUNT_DETAIL)));
	return cents;
}

/*
 * BillCentsOfRow returns the cents of a numeric(16,2) that one of our tables holds.
 */
int64
BillCentsOfRow(Datum amount)
{
	int64		cents;

	if (!ToCents(amount, &cents))
		elog(ERROR, "an amount of money in a table of coupon is out of range");
	return cents;
}

/*
 * BillNumeric returns cents as numeric with two decimals.
 */
Datum
BillNumeric(int64 cents)
{
	return NumericGetDatum(int64_div_fast_to_numeric(cents, 2));
}

static void
RefuseItems(int line, const char *what)
{
	if (line < 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("items are not the lines of an order"), errdetail("%s", what),
				 errhint("They look like '[{\"goods_id\": \"A-5\", \"shop_number\": \"7\", \"amount\": \"199.00\"}]'.")));
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
			 errmsg("item %d is not a line of an order", line + 1), errdetail("%s", what)));
}

/* A member of an object as a C string, whether it is a string or a number; NULL: it is not there. */
static char *
Member(JsonbContainer *object, const char *name, int line)
{
	JsonbValue	buffer;
	JsonbValue *value = getKeyJsonValueFromContainer(object, name, strlen(name), &buffer);

	if (value == NULL || value->type == jbvNull)
		return NULL;
	if (value->type == jbvString)
		return pnstrdup(value->val.string.val, value->val.string.len);
	if (value->type == jbvNumeric)
		return DatumGetCString(DirectFunctionCall1(numeric_out,
												   NumericGetDatum(value->val.numeric)));
	RefuseItems(line, psprintf("\"%s\" must be a string or a number.", name));
	return NULL;
}

/* Digits alone, with at most two decimals: what is not broken raises no foreign error. */
static int64
LineCents(const char *text, int line)
{
	int64		cents = 0;
	int			decimals = -1;
	const char *c;

	for (c = text; *c; c++)
	{
		if (*c == '.' && decimals < 0 && c > text)
			decimals = 0;
		else if (*c < '0' || *c > '9' || (decimals >= 0 && *c != '0' && decimals >= 2) || cents > CENTS_MAX)
			break;
		else if (decimals < 2)
		{
			cents = cents * 10 + (*c - '0');
			decimals += decimals >= 0;
		}
	}
	for (int d = Max(decimals, 0); d < 2 && cents <= CENTS_MAX; d++)
		cents *= 10;
	if (*c != '\0' || c == text || cents > CENTS_MAX)
		RefuseItems(line, "\"amount\" must be a number from 0 to 99999999999999.99 with at most two decimals.");
	return cents;
}

static int64
ShopNumber(const char *text, int line)
{
	char	   *end;
	int64		shop;

	errno = 0;
	shop = strtoi64(text, &end, 10);
	if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9' || shop <= 0)
		RefuseItems(line, "\"shop_number\" must be a positive number of 64 bits.");
	return shop;
}

static void
ReadLine(JsonbContainer *object, const Bill *bill, int number, BillLine *line)
{
	char	   *amount = Member(object, "amount", number);
	char	   *shop = Member(object, "shop_number", number);

	line->goods_id = Member(object, "goods_id", number);
	if (line->goods_id && (line->goods_id[0] == '\0' || strlen(line->goods_id) > LONGEST_GOODS_ID))
		RefuseItems(number, "\"goods_id\" must have 1 to 64 bytes.");
	if (amount == NULL)
		RefuseItems(number, "It has no \"amount\".");
	line->cents = LineCents(amount, number);
	line->has_shop = shop != NULL || bill->has_shop;
	line->shop_number = shop ? ShopNumber(shop, number) : bill->shop_number;
}

static int
CompareLines(const void *a, const void *b)
{
	const char *left = ((const BillLine *) a)->goods_id;
	const char *right = ((const BillLine *) b)->goods_id;

	if (left == NULL || right == NULL)
		return (left == NULL) - (right == NULL);
	return strcmp(left, right);
}

static void
ReadLines(Jsonb *items, Bill *bill)
{
	JsonbContainer *array = &items->root;
	int64		sum = 0;

	if (!JB_ROOT_IS_ARRAY(items) || JB_ROOT_IS_SCALAR(items))
		RefuseItems(-1, "They are not an array.");
	if (JB_ROOT_COUNT(items) > MOST_LINES)
		RefuseItems(-1, psprintf("There are more than %d.", MOST_LINES));
	bill->has_lines = true;
	bill->nlines = JB_ROOT_COUNT(items);
	bill->lines = palloc(Max(bill->nlines, 1) * sizeof(BillLine));
	for (int i = 0; i < bill->nlines; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(array, i);

		if (value->type != jbvBinary || !JsonContainerIsObject(value->val.binary.data))
			RefuseItems(i, "It is not an object with members.");
		ReadLine(value->val.binary.data, bill, i, &bill->lines[i]);
		sum += bill->lines[i].cents;
		if (sum > bill->cents)
			break;				/* nor can it overflow */
	}
	if (sum != bill->cents)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("the amounts of the items do not add up to the amount of the order")));
	qsort(bill->lines, bill->nlines, sizeof(BillLine), CompareLines);
}

/*
 * BillRead reads the arguments amount, shop_number and items of a verb; the last two may be
 * null.  Raises VC003 for what is broken.
 */
void
BillRead(FunctionCallInfo fcinfo, int amount, int shop, int items, Bill *bill)
{
	memset(bill, 0, sizeof(Bill));
	ArgRequire(fcinfo, amount, "amount");
	bill->cents = BillCents(PG_GETARG_DATUM(amount), "amount");
	bill->has_shop = !PG_ARGISNULL(shop);
	bill->shop_number = bill->has_shop ? PG_GETARG_INT64(shop) : 0;
	if (bill->has_shop && bill->shop_number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("shop number %lld is not positive", (long long) bill->shop_number)));
	if (!PG_ARGISNULL(items))
		ReadLines(PG_GETARG_JSONB_P(items), bill);
}
