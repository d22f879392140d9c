/*
 * args.c
 *		Arguments that many SQL functions take, checked.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/builtins.h"

#include "base/args.h"
#include "base/errors.h"

/*
 * ArgRequire raises VC003 where the argument is null.
 */
void
ArgRequire(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("%s must not be null", name)));
}

/*
 * ArgCheckUserId raises VC003 for what cannot be a user id.
 */
void
ArgCheckUserId(int64 user_id)
{
	if (user_id <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("user id %lld is not positive", (long long) user_id)));
}

/*
 * ArgCheckPageSize raises VC003 for what is no number of rows on a page.
 */
void
ArgCheckPageSize(FunctionCallInfo fcinfo, int arg)
{
	if (PG_ARGISNULL(arg) || PG_GETARG_INT32(arg) < 1 ||
		PG_GETARG_INT32(arg) > ARG_MAX_PAGE_SIZE)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("page size must be from 1 to %d", ARG_MAX_PAGE_SIZE)));
}

/*
 * ArgOrderId returns the id of an order as a C string.  Raises VC003 for null and for one
 * that is not of 1 to 64 bytes.
 */
const char *
ArgOrderId(FunctionCallInfo fcinfo, int arg)
{
	Size		length;

	ArgRequire(fcinfo, arg, "order_id");
	length = toast_raw_datum_size(PG_GETARG_DATUM(arg)) - VARHDRSZ;
	if (length == 0 || length > ARG_MAX_ORDER_ID)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("order id of %zu bytes", length),
				 errdetail("It must have 1 to %d bytes.", ARG_MAX_ORDER_ID)));
	return text_to_cstring(PG_GETARG_TEXT_PP(arg));
}

/*
 * ArgRequestId returns a request id as a C string, NULL where there is none.
 */
const char *
ArgRequestId(FunctionCallInfo fcinfo, int arg)
{
	static const char *const ours[] = {"task ", "redis:"};
	Size		length;
	char	   *request_id;

	if (PG_NARGS() <= arg || PG_ARGISNULL(arg))
		return NULL;
	/* The raw size tells the length without fetching a megabyte. */
	length = toast_raw_datum_size(PG_GETARG_DATUM(arg)) - VARHDRSZ;
	if (length == 0 || length > ARG_MAX_REQUEST_ID)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("request id of %zu bytes", length),
				 errdetail("It must have 1 to %d bytes.", ARG_MAX_REQUEST_ID),
				 errhint("Use a UUID, or NULL for none.")));
	request_id = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	for (int i = 0; i < lengthof(ours); i++)
	{
		if (strncmp(request_id, ours[i], strlen(ours[i])) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
					 errmsg("a request id must not begin with \"%s\"", ours[i]),
					 errdetail("Coupons of distributions and of a Redis tier have those."),
					 errhint("Use a UUID, or NULL for none.")));
	}
	return request_id;
}
