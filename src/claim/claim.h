/*
 * claim.h
 *		Claim coupons of one template for one or many users.
 */
#ifndef COUPON_CLAIM_H
#define COUPON_CLAIM_H

#include "datatype/timestamp.h"

#include "base/shop_role.h"
#include "template/template.h"

/* What is common to the users of one call. */
typedef struct ClaimRequest
{
	int64		template_id;
	const char *request_id;		/* NULL: none */
	const char *source;			/* stored with the coupon */
	RoleKinds	roles;			/* whom the verb is for */
	int			open_to;		/* which templates this verb may give: a set */
	TimestampTz now;			/* by which the windows are judged */
	bool		early;			/* also before the window begins */
	int32		limit_cap;		/* 0: the template's limit alone */
	bool		impatient;		/* what others have open is out of stock */
} ClaimRequest;

typedef struct ClaimResult
{
	int64		user_id;
	int			code;			/* OutcomeCode */
	int64		coupon_id;		/* the rest only with code 0 */
	int32		receive_seq;
	TimestampTz use_end;
	bool		repeated;
	bool		kept_out;		/* not_claimable: by an index or trigger of somebody's */
} ClaimResult;

extern void ClaimCoupons(const ClaimRequest *request, const int64 *users,
						 int nusers, ClaimResult *results);

#endif							/* COUPON_CLAIM_H */
