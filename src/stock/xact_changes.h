/*
 * xact_changes.h
 *		What this transaction has done that shared memory learns at its end.
 */
#ifndef COUPON_XACT_CHANGES_H
#define COUPON_XACT_CHANGES_H

#include "stock/cache.h"

typedef enum ChangeKind
{
	CHANGE_RESERVED,			/* n units of stock taken for coupons */
	CHANGE_LOWERED,			/* n units that leave the total at commit */
	CHANGE_SHUT,			/* n units that only keep others out */
	CHANGE_CREATED,			/* a template inserted */
	CHANGE_EDITED,			/* a template, or its quota, changed */
	CHANGE_TAKEN_OUT,		/* all units of a template lowered, and none issued */
	CHANGE_RECOUNT,			/* coupons changed behind the counter */
	CHANGE_FEWER,				/* users may have fewer coupons than before */
	CHANGE_KINDS
} ChangeKind;

#define CHANGE_ALL_TEMPLATES 0 /* as template id of EDITED, RECOUNT and FEWER */

extern void ChangesInit(void);
extern void ChangesMakeRoom(void);
extern void ChangesAddUnits(ChangeKind kind, CacheEntry *entry, int64 n);
extern void ChangesTakeBack(CacheEntry *entry, int64 n);
extern int	ChangesHeld(void);
extern int64 ChangesUnits(const CacheEntry *entry);
extern int64 ChangesLowered(const CacheEntry *entry);
extern void ChangesAdd(ChangeKind kind, Oid relation, int64 template_id);
extern bool ChangesHas(ChangeKind kind, int64 template_id);
extern void ChangesSetGate(CacheEntry *entry);

#endif							/* COUPON_XACT_CHANGES_H */
