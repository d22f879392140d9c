/*
 * array.c
 *		Arrays of bigint, as SQL has them: ids, for statements and rows.
 *
 * The elements of such an array lie one after the other as in C, so that they
 * are copied all at once.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "base/array.h"
#include "base/errors.h"

/*
 * ArrayOfInt8 makes a bigint[] of n values.
 */
Datum
ArrayOfInt8(const int64 *values, int n)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + n * sizeof(int64);
	ArrayType  *array;

	if (n == 0)
		return PointerGetDatum(construct_empty_array(INT8OID));
	array = palloc0(size);
	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->elemtype = INT8OID;
	ARR_DIMS(array)[0] = n;
	ARR_LBOUND(array)[0] = 1;
	memcpy(ARR_DATA_PTR(array), values, n * sizeof(int64));
	return PointerGetDatum(array);
}

/*
 * ArrayInt8 returns the values of a bigint[], and their number.  Raises VC003, with
 * the argument's name, for nulls and further dimensions.
 */
int64 *
ArrayInt8(ArrayType *array, const char *name, int *n)
{
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s must be a one-dimensional array", name)));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s must not contain nulls", name)));
	*n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int64 *) ARR_DATA_PTR(array);
}
