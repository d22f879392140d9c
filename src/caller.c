/*
 * caller.c
 *		Functions that are not ours run as the caller, also where a statement
 *		of ours runs them as the owner of the extension.
 *
 * A shop may have triggers, CHECKs, defaults or expression indexes of its own
 * on our tables.  Their functions would run as the owner, a superuser, in a
 * session of somebody who may have made temporary tables: an audit trigger
 * that forgets to qualify a name is enough to hand that session the server.
 * So they run as whoever has called us, as they would if he had written the
 * row himself.  One that needs more is declared SECURITY DEFINER by its author,
 * and then keeps the rights of its own owner.
 *
 * PostgreSQL's function manager hook serves, as it does for sepgsql: it is
 * called before and after each function that asks for it, and ours asks for all
 * that are not built in and not members of the extension, while a statement of
 * ours runs.
 *
 * What goes on is a stack.  A scope is one of our statements; on top of it lie
 * the calls that the hook has seen.  Only the call directly above a scope is
 * switched to the caller: what that one calls runs as it decides.  Records of a
 * transaction that fails are taken off when it ends; the user is put back by
 * PostgreSQL itself then.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "caller.h"

#define OUR_LIBRARY "$libdir/coupon"

typedef struct CallerRecord
{
	FmgrInfo   *call;			/* NULL: a scope */
	int			nest_level;		/* of the transaction */
	bool		switched;		/* a call: user and context are to be put back */
	Oid			user;			/* a scope: the caller; a call: who it was before */
	int			sec_context;
	Oid			owner;			/* a scope: as whom its statement runs */
} CallerRecord;

static CallerRecord *records = NULL;
static int	nrecords = 0;
static int	capacity = 0;

static needs_fmgr_hook_type previous_needs_hook = NULL;
static fmgr_hook_type previous_hook = NULL;

static CallerRecord *
Push(FmgrInfo *call)
{
	CallerRecord *record;

	if (records == NULL)
	{
		records = MemoryContextAlloc(TopMemoryContext, 16 * sizeof(CallerRecord));
		capacity = 16;
	}
	else if (nrecords == capacity)
	{
		records = repalloc(records, 2 * capacity * sizeof(CallerRecord));
		capacity *= 2;
	}
	record = &records[nrecords++];
	memset(record, 0, sizeof(CallerRecord));
	record->call = call;
	record->nest_level = GetCurrentTransactionNestLevel();
	return record;
}

/*
 * CallerBeginScope tells that statements of ours run as the owner from now on,
 * on behalf of the caller; CallerEndScope ends it, or the end of the
 * transaction does.  One that begins directly in another, in a trigger of ours,
 * has the same caller.
 */
void
CallerBeginScope(Oid caller, int sec_context, Oid owner)
{
	CallerRecord *scope = Push(NULL);
	CallerRecord *below = nrecords > 1 ? scope - 1 : NULL;
	bool		nested = below != NULL && below->call == NULL && caller == below->owner;

	scope->user = nested ? below->user : caller;
	scope->sec_context = nested ? below->sec_context : sec_context;
	scope->owner = owner;
}

void
CallerEndScope(void)
{
	Assert(nrecords > 0 && records[nrecords - 1].call == NULL);
	nrecords--;
}

/* Whether a function is neither ours nor one that defines its own rights. */
static bool
IsForeign(Oid function)
{
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		definer;
	bool		ours = false;

	if (function < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	definer = form->prosecdef;
	if (form->prolang == ClanguageId)
	{
		bool		isnull;
		Datum		library = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin, &isnull);

		ours = !isnull && strcmp(TextDatumGetCString(library), OUR_LIBRARY) == 0;
	}
	ReleaseSysCache(tuple);
	if (definer || ours)
		return false;
	return getExtensionOfObject(ProcedureRelationId, function) !=
		get_extension_oid("coupon", true);
}

static bool
NeedsHook(Oid function)
{
	if (previous_needs_hook && previous_needs_hook(function))
		return true;
	return nrecords > 0 && IsForeign(function);
}

/*
 * A function is called: a record of it, so that what it calls is not directly
 * above our statement, and the switch if it is one to be switched.
 */
static void
BeginCall(FmgrInfo *call)
{
	CallerRecord top = records[nrecords - 1];
	CallerRecord *record;

	record = Push(call);
	if (top.call != NULL || GetUserId() != top.owner || !IsForeign(call->fn_oid))
		return;
	GetUserIdAndSecContext(&record->user, &record->sec_context);
	record->switched = true;
	SetUserIdAndSecContext(top.user, top.sec_context | SECURITY_LOCAL_USERID_CHANGE);
}

static void
EndCall(FmgrInfo *call)
{
	CallerRecord *record = &records[nrecords - 1];

	if (record->call != call)
		return;
	if (record->switched)
		SetUserIdAndSecContext(record->user, record->sec_context);
	nrecords--;
}

static void
AroundCall(FmgrHookEventType event, FmgrInfo *call, Datum *private)
{
	if (previous_hook)
		previous_hook(event, call, private);
	if (nrecords == 0)
		return;
	if (event == FHET_START)
		BeginCall(call);
	else
		EndCall(call);
}

static void
AtTransactionEnd(XactEvent event, void *arg)
{
	nrecords = 0;
}

static void
AtSubtransactionEnd(SubXactEvent event, SubTransactionId subid,
					SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	while (nrecords > 0 && records[nrecords - 1].nest_level >= level)
		nrecords--;
}

/*
 * CallerInit sets the hooks and registers the callbacks; called once, from
 * _PG_init.
 */
void
CallerInit(void)
{
	previous_needs_hook = needs_fmgr_hook;
	needs_fmgr_hook = NeedsHook;
	previous_hook = fmgr_hook;
	fmgr_hook = AroundCall;
	RegisterXactCallback(AtTransactionEnd, NULL);
	RegisterSubXactCallback(AtSubtransactionEnd, NULL);
}
