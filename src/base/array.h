/*
 * array.h
 *		Arrays of bigint, as SQL has them.
 */
#ifndef COUPON_ARRAY_H
#define COUPON_ARRAY_H

extern Datum ArrayOfInt8(const int64 *values, int n);

#endif							/* COUPON_ARRAY_H */
