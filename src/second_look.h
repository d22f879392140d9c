/*
 * second_look.h
 *		For tests: whether what shared memory says of rows is so in the tables.
 */
#ifndef COUPON_SECOND_LOOK_H
#define COUPON_SECOND_LOOK_H

#include "template.h"

#ifdef COUPON_SECOND_LOOK
#define SecondLook(agrees) \
	do { \
		if (!(agrees)) \
			elog(PANIC, "%s: not so in the table", #agrees); \
	} while (0)

extern bool TrulyNoTemplate(int64 template_id);
extern bool TrulyHoldsNothing(const TemplateView *view, int64 user_id);
extern bool TrulyHasHad(const TemplateView *view, int64 user_id, int32 last_seq);
#else
#define SecondLook(agrees) ((void) 0)
#endif

#endif							/* COUPON_SECOND_LOOK_H */
