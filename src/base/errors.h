/*
 * errors.h
 *		Private SQLSTATEs of coupon, class VC.
 *
 * Refusals of business are rows with a code, never errors (see outcome.h).
 * The states here stand for misuse, broken input and a server that is not
 * set up; docs/reference.md lists them for users.  VC1nn is what
 * coupon_require() raises for outcome nn.
 */
#ifndef COUPON_ERRORS_H
#define COUPON_ERRORS_H

#define ERRCODE_COUPON_NOT_PRELOADED	MAKE_SQLSTATE('V','C','0','0','1')
#define ERRCODE_COUPON_IN_RECOVERY		MAKE_SQLSTATE('V','C','0','0','2')
#define ERRCODE_COUPON_BAD_ARGUMENT		MAKE_SQLSTATE('V','C','0','0','3')
#define ERRCODE_COUPON_CACHE_FULL		MAKE_SQLSTATE('V','C','0','0','4')
#define ERRCODE_COUPON_NO_PREPARE		MAKE_SQLSTATE('V','C','0','0','5')
#define ERRCODE_COUPON_BELOW_ISSUED		MAKE_SQLSTATE('V','C','0','0','6')
#define ERRCODE_COUPON_TEMPLATE_IN_USE	MAKE_SQLSTATE('V','C','0','0','7')
#define ERRCODE_COUPON_GATE_TIMEOUT		MAKE_SQLSTATE('V','C','0','0','8')
#define ERRCODE_COUPON_NOT_INSTALLED	MAKE_SQLSTATE('V','C','0','0','9')
#define ERRCODE_COUPON_WRONG_ISOLATION	MAKE_SQLSTATE('V','C','0','1','0')
#define ERRCODE_COUPON_NOT_FOLDED		MAKE_SQLSTATE('V','C','0','1','1')
#define ERRCODE_COUPON_BAD_GRANT		MAKE_SQLSTATE('V','C','0','1','2')
#define ERRCODE_COUPON_IN_TRANSACTION	MAKE_SQLSTATE('V','C','0','1','3')
#define ERRCODE_COUPON_TASK_STATE		MAKE_SQLSTATE('V','C','0','1','4')
#define ERRCODE_COUPON_NO_CRON			MAKE_SQLSTATE('V','C','0','1','5')
#define ERRCODE_COUPON_ATTACHED			MAKE_SQLSTATE('V','C','0','1','6')

#endif							/* COUPON_ERRORS_H */
