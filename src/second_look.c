/*
 * second_look.c
 *		For tests: whether what shared memory says of rows is so in the tables.
 *
 * template_ids.c, claimants.c and holdings.c answer in place of an index, and
 * whether they may hangs on triggers, guards and epochs in many places.  With
 * coupon.debug_second_look each of their answers is looked up in the table as
 * well; then whatever runs into a hole fails there.
 *
 * A row found against the answer proves nothing if the answer is another one by
 * now: bits are set before the row can be seen, and what a commit takes back it
 * takes back a moment after.  So both are asked until they agree.  Who is about to
 * end cannot be waited for: we hold locks that others who have written may want.
 */
#include "postgres.h"

#include "access/transam.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "claimants.h"
#include "rows.h"
#include "second_look.h"
#include "template_ids.h"

#define MOMENTS 1000			/* of a millisecond */

static void
WaitAMoment(void)
{
	CHECK_FOR_INTERRUPTS();
	pg_usleep(1000);
}

/*
 * TrulyNoTemplate tells whether there is no such template, as was found, or at
 * least TemplateIdsLack does not say so any more.
 */
bool
TrulyNoTemplate(int64 template_id)
{
	for (int i = 0; i < MOMENTS; i++)
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		bool		found = RowsTemplateExists(template_id, snapshot);

		UnregisterSnapshot(snapshot);
		if (!found || !TemplateIdsLack(template_id))
			return true;
		WaitAMoment();
	}
	return false;
}

/*
 * TrulyHoldsNothing tells whether ClaimantsMayHave is right to say that a user
 * has no row of the template of this view, committed or not.
 */
bool
TrulyHoldsNothing(const TemplateView *view, int64 user_id)
{
	for (int i = 0; i < MOMENTS; i++)
	{
		TemplateView now;
		RowsOfUser	rows;
		RowsOpenClaim open;

		RowsProbe(view->key.template_id, user_id, NULL, &rows, &open);
		if (rows.last_seq == 0 && !TransactionIdIsValid(open.xid))
			return true;
		TemplatePeek(view->key.template_id, &now);
		if (!now.claimants ||
			ClaimantsMayHave(now.key.relation, now.key.template_id, user_id))
			return true;
		WaitAMoment();
	}
	return false;
}

/*
 * TrulyHasHad tells whether HoldingsRecall is right to say, for the epoch of this
 * view, that a user has had so many coupons.
 */
bool
TrulyHasHad(const TemplateView *view, int64 user_id, int32 last_seq)
{
	for (int i = 0; i < MOMENTS; i++)
	{
		TemplateView now;
		RowsOfUser	rows;

		RowsProbe(view->key.template_id, user_id, NULL, &rows, NULL);
		if (rows.last_seq >= last_seq)
			return true;
		TemplatePeek(view->key.template_id, &now);
		if (now.holdings != view->holdings)
			return true;
		WaitAMoment();
	}
	return false;
}
