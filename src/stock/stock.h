/*
 * stock.h
 *		Stock escrow: reserve units of a template without touching its row.
 */
#ifndef COUPON_STOCK_H
#define COUPON_STOCK_H

#include "stock/cache.h"

typedef enum StockResult
{
	STOCK_OK,					/* reserved */
	STOCK_EMPTY,				/* none free now */
	STOCK_CHANGED,				/* the entry is not what it was: look again */
	STOCK_CLOSED,				/* a gate is closed: wait for its owner */
	STOCK_RECOUNT				/* count the rows again before reserving */
} StockResult;

/* Numbers of an entry, read at one moment. */
typedef struct StockNumbers
{
	int64		quota;			/* CACHE_UNLIMITED: no total */
	int64		issued;
	int64		pending;
	int64		returned;
	int64		own;			/* of pending: this transaction's */
	int64		own_lowered;	/* of them: leave the total when it commits */
	bool		recount;		/* the count is due to be made again */
} StockNumbers;

extern StockResult StockReserve(const CacheKey *key, uint64 generation,
								int64 want, bool partial, int64 *got);
extern StockResult StockReserveUpTo(const CacheKey *key, int64 limit,
									int64 want, bool partial, int64 *got);
extern void StockShut(const CacheKey *key);
extern TimestampTz StockGateDeadline(void);
extern void StockWaitForOthers(const CacheKey *key, TimestampTz deadline);
extern void StockTakeBack(const CacheKey *key, int64 n);
extern StockResult StockLower(const CacheKey *key, int64 limit, int64 n,
							  TimestampTz deadline);
extern bool StockCloseGate(const CacheKey *key, TimestampTz deadline);
extern void StockOpenGate(const CacheKey *key);
extern bool StockIsCrowded(void);
extern bool StockIsGated(const CacheKey *key);
extern bool StockRead(const CacheKey *key, StockNumbers *numbers);

#endif							/* COUPON_STOCK_H */
