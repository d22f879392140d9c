/*
 * claimants.h
 *		Who may hold a coupon of which template: a filter in shared memory that
 *		can say "surely not".
 */
#ifndef COUPON_CLAIMANTS_H
#define COUPON_CLAIMANTS_H

extern Size ClaimantsShmemSize(void);
extern void ClaimantsShmemInit(void);
extern bool ClaimantsIsOn(void);
extern void ClaimantsAdd(Oid relation, int64 template_id, int64 user_id);
extern bool ClaimantsMayHave(Oid relation, int64 template_id, int64 user_id);
extern double ClaimantsFill(void);

#endif							/* COUPON_CLAIMANTS_H */
