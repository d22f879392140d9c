/*
 * remind.h
 *		Reminders of sales: what their verbs and their tick share.
 */
#ifndef COUPON_REMIND_H
#define COUPON_REMIND_H

#include "datatype/timestamp.h"

#include "notification/lease.h"
#include "remind/bitmap.h"

#define REMIND_KIND "reminder"	/* kind of event in the outbox */

/*
 * Ids of the templates after $1 that anybody is reminded of, each found by one
 * probe into the index; the last is null.
 */
#define REMIND_TEMPLATES_AFTER_1 \
	"WITH RECURSIVE reminded AS (" \
	" SELECT (SELECT template_id FROM %1$s.coupon_remind" \
	"  WHERE template_id OPERATOR(pg_catalog.>) $1 ORDER BY template_id LIMIT 1) AS id" \
	" UNION ALL SELECT (SELECT r.template_id FROM %1$s.coupon_remind r" \
	"  WHERE r.template_id OPERATOR(pg_catalog.>) reminded.id ORDER BY r.template_id LIMIT 1)" \
	" FROM reminded WHERE reminded.id IS NOT NULL)"

extern TimestampTz RemindMoment(TimestampTz start, int minutes);
extern LeaseGiven RemindGiveBack(int64 id, int64 template_id, const int64 *users, int nusers);
extern LeaseGiven RemindMove(int64 id, int64 new_id, int64 template_id, const int64 *users,
							 int nusers);
extern int	RemindPlace(RemindBitmap bitmap, int channel, int minutes);
extern int	RemindIds(Datum notifications, bool isnull, RemindBitmap fired,
					  int64 *ids);

#endif							/* COUPON_REMIND_H */
