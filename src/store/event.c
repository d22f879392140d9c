/*
 * event.c
 *		The history of what was done with coupons, coupon_event.
 *
 * A row is appended in the transaction of what it tells.  Claims are not among
 * them: the coupon itself is the record of those.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "base/owner_query.h"
#include "store/event.h"

static OwnerQuery add_event = {
	"INSERT INTO %1$s.coupon_event (kind, user_coupon_id, user_id, template_id, order_id, amount,"
	" discount, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
	8, {TEXTOID, INT8OID, INT8OID, INT8OID, TEXTOID, NUMERICOID, NUMERICOID, TEXTOID}
};

static Datum
TextOrNull(const char *text)
{
	return text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

/*
 * EventAdd appends a row.  Between QueryBegin and QueryEnd of the caller's.
 */
void
EventAdd(const Event *event)
{
	Datum		args[8] = {
		CStringGetTextDatum(event->kind), Int64GetDatum(event->coupon_id),
		Int64GetDatum(event->user_id), Int64GetDatum(event->template_id),
		TextOrNull(event->order_id), event->amount, event->discount, TextOrNull(event->reason)
	};
	char		nulls[9] = "        ";

	nulls[4] = nulls[5] = nulls[6] = event->order_id == NULL ? 'n' : ' ';
	nulls[7] = event->reason == NULL ? 'n' : ' ';
	if (QueryRun(&add_event, args, nulls) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("what was done with coupon %lld could not be recorded", (long long) event->coupon_id),
				 errdetail("A trigger or rule on \"coupon_event\" has prevented it.")));
}
