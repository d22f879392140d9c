/*
 * template.h
 *		A coupon template as claims see it: attributes and stock, from the
 *		shared cache or, where its own transaction changed it, from its row.
 */
#ifndef COUPON_TEMPLATE_H
#define COUPON_TEMPLATE_H

#include "datatype/timestamp.h"
#include "storage/lockdefs.h"
#include "utils/snapshot.h"

#include "stock/cache.h"
#include "stock/stock.h"

typedef enum TemplateStatus
{
	TEMPLATE_DRAFT,
	TEMPLATE_PUBLISHED,
	TEMPLATE_OFFLINE
} TemplateStatus;

typedef enum TemplateOpenTo
{
	TEMPLATE_ANYONE,
	TEMPLATE_REGISTRATION,
	TEMPLATE_TASK,
	TEMPLATE_CODE
} TemplateOpenTo;

#define TEMPLATE_OPEN_TO(who)	(1 << (who))	/* element of a set of them */
#define TEMPLATE_OPEN_TO_ALL	(TEMPLATE_OPEN_TO(TEMPLATE_CODE + 1) - 1)

/* The columns that a claim needs; lives in the payload of a cache entry. */
typedef struct TemplateAttrs
{
	int64		shop_number;
	TimestampTz receive_start;
	TimestampTz receive_end;
	TimestampTz use_start;		/* DT_NOBEGIN: from the claim on */
	TimestampTz use_end;
	Interval	use_validity;	/* where has_use_end is false */
	int32		per_user_limit;
	uint8		status;			/* TemplateStatus */
	uint8		open_to;		/* TemplateOpenTo */
	bool		has_shop;
	bool		has_use_end;
} TemplateAttrs;

/* Whose view of the template this is. */
typedef enum TemplateOrigin
{
	TEMPLATE_SHARED,			/* everybody's */
	TEMPLATE_OWN_CHANGED,		/* this transaction has changed it */
	TEMPLATE_OWN_CREATED		/* this transaction has made it */
} TemplateOrigin;

typedef struct TemplateView
{
	CacheKey	key;
	TemplateOrigin origin;
	TemplateAttrs attrs;
	CacheEntry *entry;			/* when shared: for counting only, since it */
	uint64		generation;		/* may be another's when this has changed */
	int64		quota;			/* CACHE_UNLIMITED: no total */
	int64		issued;
	bool		filter_complete;		/* user_filter.c knows all who hold any */
	uint64		limit_stamp;		/* for limit_cache.c; 0: do not ask */
} TemplateView;

extern bool TemplateFetch(int64 template_id, TemplateView *view);
extern void TemplatePeek(int64 template_id, TemplateView *view);
extern void TemplateRefuseOwnRows(int64 template_id);
extern bool TemplateTryWait(const TemplateView *view, StockResult reason);
extern bool TemplateIsGated(int64 template_id);
extern StockResult TemplateReserve(const TemplateView *view, int64 want,
								   int64 *got);
extern int	TemplateJudge(const TemplateView *view, int open_to, TimestampTz now);
extern void TemplateUseWindow(const TemplateView *view, TimestampTz now,
							  TimestampTz *use_start, TimestampTz *use_end);
extern void TemplateCheckOwn(const TemplateView *view);
extern void TemplateWait(const TemplateView *view, StockResult reason);
extern void TemplateCountRefusals(const TemplateView *view, int code, int64 n);
extern bool TemplateRecount(int64 template_id);
extern bool TemplateFetchAnywhere(int64 template_id, TemplateView *view);
extern int64 TemplateStockLeft(const TemplateView *view);
extern void TemplateRequirePreload(void);

/* template/load.c: what the two other rooms of the template share */
typedef struct TemplateRow
{
	TemplateAttrs attrs;
	int64		others;			/* quota of other holders */
	int64		quota;			/* of this database: the rest of the total */
	int64		folded;
	int64		watermark;
} TemplateRow;

extern bool TemplateReadRow(int64 template_id, Snapshot snapshot,
							TemplateRow *row);
extern int64 TemplateCountIssued(int64 template_id, const TemplateRow *row,
								 Snapshot snapshot);
extern void TemplateNoteCreated(Oid relation, int64 template_id);
extern bool TemplateLoad(int64 template_id, bool count_again);
extern void TemplateLockLoader(int64 template_id, LOCKMODE mode);
extern void TemplateUnlockLoader(int64 template_id, LOCKMODE mode);

#endif							/* COUPON_TEMPLATE_H */
