/*
 * expressions.h
 *		Whose functions and types stand in the expressions of our tables.
 */
#ifndef COUPON_EXPRESSIONS_H
#define COUPON_EXPRESSIONS_H

#include "nodes/pg_list.h"

extern void ExpressionsInit(void);
extern void ExpressionsCheck(const List *relations);

#endif							/* COUPON_EXPRESSIONS_H */
