/*
 * subxact.c
 *		Run something in a subtransaction of its own, as PL/pgSQL does for a
 *		block with EXCEPTION.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/subxact.h"

/*
 * SubxactRun calls body(arg) and keeps what it has done, if it returns true.
 * False: it is rolled back, because body said so, or because of an error: that
 * is in *error then, to be handled or thrown again, else NULL.  Where error is
 * NULL, an error goes on to the caller's caller.
 */
bool
SubxactRun(SubxactBody body, void *arg, ErrorData **error)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile caught = NULL;
	volatile bool keep = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		keep = body(arg);
		if (keep)
			ReleaseCurrentSubTransaction();
		else
			RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		keep = false;
		MemoryContextSwitchTo(context);
		caught = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (caught != NULL && error == NULL)
		ReThrowError(caught);
	if (error != NULL)
		*error = caught;
	return keep;
}
