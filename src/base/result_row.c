/*
 * result_row.c
 *		Rows of the named types that our functions return.
 */
#include "postgres.h"

#include "access/htup_details.h"

#include "base/errors.h"
#include "base/result_row.h"

/*
 * RowForm makes a row of values of these types.  ALTER TYPE can add an
 * attribute, which we would not fill, and leaves a place where one was dropped:
 * raises VC009 unless the attributes that are there are those of the types.
 */
HeapTuple
RowForm(TupleDesc desc, const Oid *types, int ntypes, const Datum *values,
		const bool *nulls)
{
	Datum	   *all = palloc0(desc->natts * sizeof(Datum));
	bool	   *none = palloc(desc->natts * sizeof(bool));
	int			n = 0;
	bool		same = true;

	for (int i = 0; i < desc->natts && same; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		none[i] = true;
		if (att->attisdropped)
			continue;
		same = n < ntypes && att->atttypid == types[n];
		if (!same)
			break;
		all[i] = values[n];
		none[i] = nulls[n++];
	}
	if (!same || n != ntypes)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("the row type of a function of coupon is not as it was installed"),
				 errhint("Undo what was changed with ALTER TYPE.")));
	return heap_form_tuple(desc, all, none);
}
