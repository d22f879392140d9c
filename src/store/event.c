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
	"INSERT INTO %1$s.coupon_event (kind, user_coupon_id, user_id, template_id, reason)"
	" VALUES ($1, $2, $3, $4, $5)",
	5, {TEXTOID, INT8OID, INT8OID, INT8OID, TEXTOID}
};

/*
 * EventAdd appends a row; reason may be NULL.
 */
void
EventAdd(const char *kind, int64 coupon_id, int64 user_id, int64 template_id,
		 const char *reason)
{
	Datum		args[5];
	QueryScope	scope;

	args[0] = CStringGetTextDatum(kind);
	args[1] = Int64GetDatum(coupon_id);
	args[2] = Int64GetDatum(user_id);
	args[3] = Int64GetDatum(template_id);
	args[4] = reason == NULL ? (Datum) 0 : CStringGetTextDatum(reason);
	QueryBegin(&scope);
	QueryRun(&add_event, args, reason == NULL ? "    n" : NULL);
	QueryEnd(&scope);
}
