/*
 * attached.h
 *		Whose functions and types hang on our tables.
 */
#ifndef COUPON_ATTACHED_H
#define COUPON_ATTACHED_H

#include "nodes/pg_list.h"

extern void AttachedInit(void);
extern void AttachedCheck(const List *relations);

#endif							/* COUPON_ATTACHED_H */
