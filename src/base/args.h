/*
 * args.h
 *		Arguments that many SQL functions take, checked.
 */
#ifndef COUPON_ARGS_H
#define COUPON_ARGS_H

#include "fmgr.h"

#define ARG_MAX_REQUEST_ID 128	/* bytes */
#define ARG_MAX_ORDER_ID 64	/* bytes */
#define ARG_MAX_PAGE_SIZE 1000

extern void ArgRequire(FunctionCallInfo fcinfo, int arg, const char *name);
extern void ArgCheckUserId(int64 user_id);
extern void ArgCheckPageSize(FunctionCallInfo fcinfo, int arg);
extern const char *ArgOrderId(FunctionCallInfo fcinfo, int arg);
extern const char *ArgRequestId(FunctionCallInfo fcinfo, int arg);

#endif							/* COUPON_ARGS_H */
