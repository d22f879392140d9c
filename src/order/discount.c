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
#include "miscadmin.h"
#include "utils/builtins.h"

#include "order/discount.h"

static bool
IsOfShop(const DiscountRule *rule, bool has_shop, int64 shop_number)
{
	return !rule->has_shop || (has_shop && shop_number == rule->shop_number);
}

/* The first line with goods of this id, or where it would be; lines are in their order. */
static int
FindGoods(const Bill *bill, const char *goods_id)
{
	int			low = 0;
	int			high = bill->nlines;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (BillCompareGoods(bill->lines[middle].goods_id, goods_id) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The sum of the shop's lines with goods of this id; adds to how many these are. */
static int64
SumOfGoods(const DiscountRule *rule, const Bill *bill, const char *goods_id, int *n)
{
	int64		sum = 0;

	for (int i = FindGoods(bill, goods_id);
		 i < bill->nlines && BillCompareGoods(bill->lines[i].goods_id, goods_id) == 0; i++)
	{
		const BillLine *line = &bill->lines[i];

		if (!IsOfShop(rule, line->has_shop, line->shop_number))
			continue;
		sum += line->cents;
		(*n)++;
	}
	return sum;
}

static int
CompareTexts(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

/* The same for all goods of the template, each of them once. */
static int64
SumOfAllGoods(const DiscountRule *rule, const Bill *bill, int *n)
{
	Datum	   *ids;
	bool	   *nulls;
	int			nids;
	char	  **texts;
	int64		sum = 0;

	deconstruct_array(rule->goods_ids, TEXTOID, -1, false, TYPALIGN_INT, &ids, &nulls, &nids);
	texts = palloc(Max(nids, 1) * sizeof(char *));
	for (int i = 0; i < nids; i++)
		texts[i] = nulls[i] ? pstrdup("") : TextDatumGetCString(ids[i]);
	qsort(texts, nids, sizeof(char *), CompareTexts);
	for (int i = 0; i < nids; i++)
	{
		if (i == 0 || strcmp(texts[i], texts[i - 1]) != 0)
			sum += SumOfGoods(rule, bill, texts[i], n);
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
		else if (rule->goods_ids != NULL)
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
	if (n == 0 || rule->goods_ids == NULL)
		return sum;
	n = 0;
	sum = SumOfAllGoods(rule, bill, &n);
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
	return discount;
}
