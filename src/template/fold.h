/*
 * fold.h
 *		Fold coupons past the watermark into the counts of coupon_stock.
 */
#ifndef COUPON_FOLD_H
#define COUPON_FOLD_H

extern bool FoldIsRunning(void);
extern int64 FoldWatermark(void);
extern long FoldNew(bool woken);

#endif							/* COUPON_FOLD_H */
