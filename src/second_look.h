/*
 * second_look.h
 *		For tests: whether what shared memory says of rows is so in the tables.
 */
#ifndef COUPON_SECOND_LOOK_H
#define COUPON_SECOND_LOOK_H

#include "guc.h"
#include "template.h"

/* The condition is only asked with coupon.debug_second_look. */
#define SecondLook(condition) \
	do { \
		if (unlikely(coupon_debug_second_look) && !(condition)) \
			elog(ERROR, "%s: not so in the table", #condition); \
	} while (0)

extern bool TrulyNoTemplate(int64 template_id);
extern bool TrulyHoldsNothing(const TemplateView *view, int64 user_id);
extern bool TrulyHasHad(const TemplateView *view, int64 user_id, int32 last_seq);

#endif							/* COUPON_SECOND_LOOK_H */
