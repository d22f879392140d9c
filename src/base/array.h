/*
 * array.h
 *		Arrays of bigint, as SQL has them.
 */
#ifndef COUPON_ARRAY_H
#define COUPON_ARRAY_H

#include "utils/array.h"

extern Datum ArrayOfInt8(const int64 *values, int n);
extern int64 *ArrayInt8(ArrayType *array, const char *name, int *n);

#endif							/* COUPON_ARRAY_H */
