/*
 * procedure.c
 *		Procedures that commit as they go.
 *
 * PostgreSQL lets a procedure commit only if it is the caller's own (neither
 * SECURITY DEFINER nor with SET) and called outside a transaction block.  So
 * ours are invoker's and switch to the owner for each piece of work, between
 * two commits (owner_query.c).
 *
 * Each transaction after the first is READ COMMITTED, whatever the session's
 * default: several procedures divide work by locking rows and looking again.
 * Each has a snapshot on the stack, as code that reads tables expects.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "nodes/parsenodes.h"
#include "utils/snapmgr.h"

#include "base/errors.h"
#include "base/procedure.h"

static bool has_snapshot = false;

/*
 * ProcedureBegin starts a procedure named for messages, in a transaction of
 * its own.  Raises VC013 inside a transaction block; "instead" is the hint.
 */
void
ProcedureBegin(FunctionCallInfo fcinfo, const char *name, const char *instead)
{
	Node	   *context = fcinfo->context;

	if (context == NULL || !IsA(context, CallContext) ||
		castNode(CallContext, context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block or a function", name),
				 errdetail("It commits after each batch."),
				 errhint("%s", instead)));
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	has_snapshot = false;		/* an earlier one may have ended in an error */
	ProcedureNextTransaction();
}

/*
 * ProcedureNextTransaction commits, and starts the next transaction.
 */
void
ProcedureNextTransaction(void)
{
	if (has_snapshot)
		PopActiveSnapshot();
	has_snapshot = false;
	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
	PushActiveSnapshot(GetTransactionSnapshot());
	has_snapshot = true;
}

/*
 * ProcedureEnd ends the procedure; CALL commits what is left.
 */
void
ProcedureEnd(void)
{
	PopActiveSnapshot();
	has_snapshot = false;
	SPI_finish();
}
