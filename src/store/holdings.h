/*
 * holdings.h
 *		How many coupons of a template a user was seen to have had.
 */
#ifndef COUPON_HOLDINGS_H
#define COUPON_HOLDINGS_H

extern Size HoldingsShmemSize(void);
extern void HoldingsShmemInit(void);
extern bool HoldingsIsOn(void);
extern void HoldingsNote(uint64 epoch, int64 user_id, int32 last_seq);
extern int32 HoldingsRecall(uint64 epoch, int64 user_id);

#endif							/* COUPON_HOLDINGS_H */
