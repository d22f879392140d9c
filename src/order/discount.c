/*
 * discount.c
 *		What a template takes off an order: arithmetic, in cents.
 *
 * What counts are the lines of the template's shop, all lines for one of the platform, and
 * of its goods where it names some.  Threshold and per cent are taken of their sum, and the
 * discount is never above it.  Per cent is rounded half away from zero.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "order/discount.h"

static bool
IsOfShop(const DiscountRule *rule, bool has_shop, int64 shop_number)
{
	return !rule->has_shop || (has_shop && shop_number == rule->shop_number);
}

/* The order of lines against goods of an id of so many bytes; lines without goods come last. */
static int
CompareGoods(const BillLine *line, const char *id, int length)
{
	int			order;

	if (line->goods_id == NULL)
		return 1;
	order = strncmp(line->goods_id, id, length);
	return order != 0 ? order : line->goods_id[length] != '\0';
}

/* The first line with goods of this id, or where it would be. */
static int
FindGoods(const Bill *bill, const char *id, int length)
{
	int			low = 0;
	int			high = bill->nlines;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (CompareGoods(&bill->lines[middle], id, length) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The sum of the shop's lines with goods of the template, each line once; sets how many. */
static int64
SumOfGoods(const DiscountRule *rule, const Bill *bill, int *n)
{
	bool	   *seen = palloc0(Max(bill->nlines, 1) * sizeof(bool));
	int64		sum = 0;
	Datum	   *ids;
	bool	   *nulls;
	int			nids;

	*n = 0;
	deconstruct_array(DatumGetArrayTypeP(rule->goods_ids), TEXTOID, -1, false, TYPALIGN_INT,
					  &ids, &nulls, &nids);
	for (int k = 0; k < nids; k++)
	{
		const char *id = nulls[k] ? "" : VARDATA_ANY(DatumGetPointer(ids[k]));
		int			length = nulls[k] ? 0 : VARSIZE_ANY_EXHDR(DatumGetPointer(ids[k]));

		for (int i = FindGoods(bill, id, length);
			 i < bill->nlines && CompareGoods(&bill->lines[i], id, length) == 0 && !seen[i]; i++)
		{
			const BillLine *line = &bill->lines[i];

			seen[i] = true;
			if (!IsOfShop(rule, line->has_shop, line->shop_number))
				continue;
			sum += line->cents;
			(*n)++;
		}
	}
	return sum;
}

/* The sum of what counts; what keeps all from counting goes to "code". */
static int64
SumOfWhatCounts(const DiscountRule *rule, const Bill *bill, OutcomeCode *code)
{
	int64		sum = 0;
	int			n = 0;

	*code = OUTCOME_OK;
	if (!bill->has_lines)
	{
		if (!IsOfShop(rule, bill->has_shop, bill->shop_number))
			*code = OUTCOME_SHOP_NOT_MATCHED;
		else if (rule->has_goods)
			*code = OUTCOME_GOODS_UNKNOWN;
		return bill->cents;
	}
	for (int i = 0; i < bill->nlines; i++)
	{
		const BillLine *line = &bill->lines[i];

		if (!IsOfShop(rule, line->has_shop, line->shop_number))
			continue;
		sum += line->cents;
		n++;
	}
	if (n == 0)
		*code = OUTCOME_SHOP_NOT_MATCHED;
	if (n == 0 || !rule->has_goods)
		return sum;
	sum = SumOfGoods(rule, bill, &n);
	if (n == 0)
		*code = OUTCOME_GOODS_NOT_MATCHED;
	return sum;
}

/* value is at most 100.00 per cent, cents below 10^16: no product overflows. */
static int64
PercentOf(int64 cents, int64 value)
{
	return cents / 10000 * value + (cents % 10000 * value + 5000) / 10000;
}

/*
 * DiscountOf returns what a template takes off an order, or why it does not.
 */
Discount
DiscountOf(const DiscountRule *rule, const Bill *bill)
{
	Discount	discount = {OUTCOME_OK};
	int64		sum = SumOfWhatCounts(rule, bill, &discount.code);

	if (discount.code != OUTCOME_OK)
		return discount;
	if (sum < Max(rule->threshold, 1))
	{
		discount.code = OUTCOME_BELOW_THRESHOLD;
		discount.short_by = Max(rule->threshold, 1) - sum;
		return discount;
	}
	discount.cents = rule->percent ? PercentOf(sum, rule->value) : rule->value;
	if (rule->most > 0)
		discount.cents = Min(discount.cents, rule->most);
	discount.cents = Min(discount.cents, sum);
	if (discount.cents == 0)
		discount.code = OUTCOME_BELOW_THRESHOLD;	/* it would be spent for nothing */
	return discount;
}
