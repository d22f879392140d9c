/*
 * claim.h
 *		Claim coupons of one template for one or many users.
 */
#ifndef COUPON_CLAIM_H
#define COUPON_CLAIM_H

#include "datatype/timestamp.h"

#include "base/shop_role.h"
#include "template/template.h"

/* For what others have open. */
typedef enum ClaimWaiting
{
	CLAIM_WAITS,				/* as long as it takes */
	CLAIM_WAITS_BRIEFLY,		/* as for another press of the same user */
	CLAIM_WAITS_NOT
} ClaimWaiting;

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
	ClaimWaiting waiting;		/* in vain: the user is held up */
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
	bool		held_up;		/* out_of_stock: by what others have open */
} ClaimResult;

extern void ClaimCoupons(const ClaimRequest *request, const int64 *users,
						 int nusers, ClaimResult *results);

#endif							/* COUPON_CLAIM_H */
