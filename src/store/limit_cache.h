/*
 * limit_cache.h
 *		How many coupons of a template a user was seen to have had.
 */
#ifndef COUPON_LIMIT_CACHE_H
#define COUPON_LIMIT_CACHE_H

extern Size LimitCacheShmemSize(void);
extern void LimitCacheShmemInit(void);
extern bool LimitCacheIsOn(void);
extern void LimitCacheStore(uint64 stamp, int64 user_id, int32 last_seq);
extern int32 LimitCacheLookup(uint64 stamp, int64 user_id);

#endif							/* COUPON_LIMIT_CACHE_H */
