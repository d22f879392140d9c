/*
 * yield_database.c
 *		Makes room for commands that need a database to themselves.
 *
 * DROP DATABASE, ALTER DATABASE … RENAME and … SET TABLESPACE, and CREATE
 * DATABASE … TEMPLATE refuse while another session is connected; they wait for
 * five seconds, but tell only autovacuum to go.  So a hook looks at utility
 * commands before they are executed, and asks the worker to leave.  The
 * command then finds the database free, or still waits for other sessions;
 * the launcher starts a worker again when it is over.
 *
 * Only for users who may do it: others get their error and disturb nobody.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/acl.h"

#include "base/commit_wakeup.h"
#include "base/compat.h"
#include "base/worker_slots.h"
#include "bgworker/yield_database.h"

static ProcessUtility_hook_type previous_hook = NULL;

static void
MakeRoom(const char *name)
{
	Oid			database;

	if (name == NULL || !IsTransactionState())
		return;
	database = get_database_oid(name, true);
	if (OidIsValid(database) &&
		CompatDatabaseOwnerCheck(database, GetUserId()))
		SlotAskToLeave(database);
}

/* The value of an option of CREATE or ALTER DATABASE, NULL without it. */
static const char *
Option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

static void
LookAtCommand(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			MakeRoom(castNode(DropdbStmt, statement)->dbname);
			break;
		case T_CreatedbStmt:
			MakeRoom(Option(castNode(CreatedbStmt, statement)->options, "template"));
			break;
		case T_RenameStmt:
			if (castNode(RenameStmt, statement)->renameType == OBJECT_DATABASE)
				MakeRoom(castNode(RenameStmt, statement)->subname);
			break;
		case T_AlterDatabaseStmt:
			if (Option(castNode(AlterDatabaseStmt, statement)->options, "tablespace"))
				MakeRoom(castNode(AlterDatabaseStmt, statement)->dbname);
			break;
		case T_DropStmt:
			/* The worker then finds that it is no longer needed. */
			if (castNode(DropStmt, statement)->removeType == OBJECT_EXTENSION)
				WakeWorkerAtCommit(WAKE_LOOK);
			break;
		default:
			break;
	}
}

static void
BeforeUtility(PlannedStmt *statement, const char *query, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *environment, DestReceiver *dest,
			  QueryCompletion *completion)
{
	LookAtCommand(statement->utilityStmt);
	if (previous_hook)
		previous_hook(statement, query, read_only_tree, context, params,
					  environment, dest, completion);
	else
		standard_ProcessUtility(statement, query, read_only_tree, context, params,
								environment, dest, completion);
}

/*
 * LeaveInit sets the hook; called from _PG_init of the postmaster.
 */
void
LeaveInit(void)
{
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = BeforeUtility;
}
