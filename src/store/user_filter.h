/*
 * user_filter.h
 *		Which users may hold a coupon of which template: a filter in shared memory that
 *		can say "surely not".
 */
#ifndef COUPON_USER_FILTER_H
#define COUPON_USER_FILTER_H

extern Size UserFilterShmemSize(void);
extern void UserFilterShmemInit(void);
extern bool UserFilterIsOn(void);
extern void UserFilterAdd(Oid relation, int64 template_id, int64 user_id);
extern bool UserFilterMayHave(Oid relation, int64 template_id, int64 user_id);
extern double UserFilterFill(void);

#endif							/* COUPON_USER_FILTER_H */
