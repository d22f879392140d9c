/*
 * subxact.h
 *		Run something in a subtransaction of its own.
 */
#ifndef COUPON_SUBXACT_H
#define COUPON_SUBXACT_H

/* False: what was done is not to be kept. */
typedef bool (*SubxactBody) (void *arg);

extern bool SubxactRun(SubxactBody body, void *arg, ErrorData **error);

#endif							/* COUPON_SUBXACT_H */
