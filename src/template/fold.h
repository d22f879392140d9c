/*
 * fold.h
 *		Fold coupons past the watermark into the counts of coupon_stock.
 */
#ifndef COUPON_FOLD_H
#define COUPON_FOLD_H

#include "storage/lockdefs.h"

extern bool FoldIsRunning(void);
extern bool FoldLock(int32 holder, LOCKMODE mode, bool wait);
extern int64 FoldUpto(int32 holder);
extern int64 FoldWatermark(void);
extern long FoldNew(bool woken);

#endif							/* COUPON_FOLD_H */
