/*
 * announce.c
 *		Tells users of coupons that a task has given them, through the channels
 *		that it names.
 *
 * Pushes go into the outbox with the coupons, in the transaction of the batch:
 * what a crash or an error takes away it takes away together, and is done once
 * more together.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/channel_names.h"
#include "notification/outbox.h"
#include "task/announce.h"

/*
 * AnnounceIssued tells the users of those lines that got a coupon.  Between
 * QueryBegin and QueryEnd.
 */
void
AnnounceIssued(const Task *task, const Line *lines, int nlines)
{
	OutboxEvent event = {.kind = "coupon", .template_id = task->template_id,
	.task_id = task->id, .due_at = GetCurrentTimestamp()};

	for (int channel = 0; task->notify != 0 && channel < CHANNELS; channel++)
	{
		OutboxPushes *pushes;

		if ((task->notify & (1 << channel)) == 0)
			continue;
		event.channel = ChannelName(channel);
		pushes = OutboxBegin(&event, false);
		for (int i = 0; i < nlines; i++)
		{
			if (lines[i].fate == LINE_ISSUED)
				(void) OutboxPut(pushes, lines[i].user_id);
		}
		OutboxEnd(pushes);
	}
}
