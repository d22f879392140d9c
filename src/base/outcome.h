/*
 * outcome.h
 *		The one vocabulary of answers: refusals of business are codes, in a
 *		row, never errors.
 */
#ifndef COUPON_OUTCOME_H
#define COUPON_OUTCOME_H

typedef enum OutcomeCode
{
	OUTCOME_OK = 0,
	OUTCOME_NOT_FOUND = 1,
	OUTCOME_OUT_OF_STOCK = 2,
	OUTCOME_ENDED = 3,
	OUTCOME_OVER_LIMIT = 4,
	OUTCOME_NOT_STARTED = 5,
	OUTCOME_NOT_PUBLISHED = 6,
	OUTCOME_NOT_CLAIMABLE = 7,
	OUTCOME_INVALID_CODE = 8,
	OUTCOME_CODE_USED = 9,
	OUTCOME_THROTTLED = 10,
	OUTCOME_WRONG_STATE = 11,
	OUTCOME_EMPTY = 12,
	OUTCOME_ALREADY_STARTED = 13,
	OUTCOME_TOO_LATE = 14,
	OUTCOME_DUPLICATE = 15,
	OUTCOME_NOT_RESERVED = 16,
	OUTCOME_COUNT
} OutcomeCode;

extern const char *OutcomeName(int code);

#endif							/* COUPON_OUTCOME_H */
