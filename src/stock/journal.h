/*
 * journal.h
 *		What this transaction has done that shared memory learns at its end.
 */
#ifndef COUPON_JOURNAL_H
#define COUPON_JOURNAL_H

#include "stock/cache.h"

typedef enum JournalKind
{
	JOURNAL_RESERVED,			/* n units of stock taken for coupons */
	JOURNAL_LOWERED,			/* n units that leave the total at commit */
	JOURNAL_CREATED,			/* a template inserted */
	JOURNAL_CHANGED,			/* a template, or its quota, changed */
	JOURNAL_RECOUNT,			/* coupons changed behind the counter */
	JOURNAL_FEWER,				/* users may have fewer coupons than before */
	JOURNAL_KINDS
} JournalKind;

#define JOURNAL_ALL_TEMPLATES 0 /* as template id of the last three */

extern void JournalInit(void);
extern void JournalMakeRoom(void);
extern void JournalAddUnits(JournalKind kind, CacheEntry *entry, int64 n);
extern void JournalTakeBack(CacheEntry *entry, int64 n);
extern int64 JournalUnits(CacheEntry *entry);
extern int64 JournalLowered(CacheEntry *entry);
extern void JournalAddChange(JournalKind kind, Oid relation, int64 template_id);
extern bool JournalHas(JournalKind kind, int64 template_id);
extern void JournalSetGate(CacheEntry *entry);

#endif							/* COUPON_JOURNAL_H */
