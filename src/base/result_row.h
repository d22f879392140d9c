/*
 * result_row.h
 *		Rows of the named types that our functions return.
 */
#ifndef COUPON_RESULT_ROW_H
#define COUPON_RESULT_ROW_H

#include "access/htup.h"
#include "access/tupdesc.h"

extern HeapTuple RowForm(TupleDesc desc, const Oid *types, int ntypes,
						 const Datum *values, const bool *nulls);

#endif							/* COUPON_RESULT_ROW_H */
