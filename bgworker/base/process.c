/*
 * process.c
 *		This worker or mailer, as all that it does may know it.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgworker/base/process.h"

static int	my_slot;
static WorkerKind my_kind;
static bool leaving = false;

/*
 * ProcessInit says which slot this process has, and what it is.
 */
void
ProcessInit(int slot, WorkerKind kind)
{
	my_slot = slot;
	my_kind = kind;
}

/*
 * ProcessSlot returns the number of this process's slot.
 */
int
ProcessSlot(void)
{
	return my_slot;
}

/*
 * ProcessKind tells whether this process is a worker or a mailer.
 */
WorkerKind
ProcessKind(void)
{
	return my_kind;
}

/*
 * ProcessClockWentBack tells whether the clock was set back since the last call:
 * moments that were noted before may lie far ahead then.  "last" is where the
 * caller keeps what it showed, 0 at first.
 */
bool
ProcessClockWentBack(TimestampTz *last)
{
	TimestampTz before = *last;

	*last = GetCurrentTimestamp();
	return *last < before;
}

/*
 * ProcessSetLeaving tells whether this process is to leave as soon as what it has begun
 * is over.
 */
void
ProcessSetLeaving(bool to_leave)
{
	leaving = to_leave;
}

/*
 * ProcessIsLeaving tells that nothing new is to be begun.
 */
bool
ProcessIsLeaving(void)
{
	return leaving;
}
