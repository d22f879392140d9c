/*
 * remind_mark.h
 *		Marking reminders as fired.
 */
#ifndef COUPON_REMIND_MARK_H
#define COUPON_REMIND_MARK_H

#include "storage/itemptr.h"

#include "remind_bitmap.h"

/* A row of coupon_remind that this transaction has locked, and its new state. */
typedef struct RemindMark
{
	ItemPointerData tid;
	int64		user_id;
	RemindBitmap bitmap;
	RemindBitmap fired;
	int			nids;
	int64	   *ids;			/* of what has fired, in the order of the bits */
} RemindMark;

extern void RemindMarkFired(Oid relation, int64 template_id,
							const RemindMark *rows, int nrows);

#endif							/* COUPON_REMIND_MARK_H */
