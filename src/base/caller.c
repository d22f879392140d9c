/*
 * caller.c
 *		Functions that are not ours run as the caller, also where a statement
 *		of ours runs them as the owner of the extension.
 *
 * A shop may have triggers, CHECKs, defaults or expression indexes of its own
 * on our tables.  Their functions would run as the owner, a superuser, in a
 * session of somebody who may have made temporary tables: an audit trigger
 * that forgets to qualify a name is enough to hand that session the server.
 * So they run as whoever has called us, and with the caller's search path, as if
 * the caller had written the row by hand.  One that needs more is declared
 * SECURITY DEFINER by its author, and then keeps the rights of its own owner.
 *
 * What an expression has besides the functions that it calls is not switched, and
 * nothing is in a background worker, whom nobody has called.  So all of it belongs
 * to a superuser: attached.c sees to that.  What is switched is a superuser's
 * function that is not written with care.
 *
 * PostgreSQL's function manager hook serves, as it does for sepgsql: it is
 * called before and after each function that asks for it, and ours asks for all
 * that are not built in and not members of the extension, while a statement of
 * ours runs.  Support functions of operator classes, which only a superuser can
 * make, and those of range types are looked up once per session and may be out of
 * its sight.
 *
 * What goes on is a stack.  A scope is one of our statements; on top of it lie
 * the calls that the hook has seen.  A foreign function that is called by our
 * SQL, a statement or the body of a function of ours, is switched to the caller;
 * what it calls in turn runs as it decides.  Records of a transaction that fails
 * are taken off when it ends; PostgreSQL itself puts back the user then.
 *
 * A foreign function may SET something, the search path too, and our SQL goes on
 * with that until the scope ends.  So whatever we run as the owner has all its
 * names and operators qualified, and QueryEnd undoes what was set.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/caller.h"

#define OUR_LIBRARY "$libdir/coupon"

typedef struct CallerRecord
{
	FmgrInfo   *call;			/* NULL: a scope */
	int			nest_level;		/* of the transaction */
	bool		ours;			/* the SQL that runs directly in it is ours: */
	Oid			caller;			/* on whose behalf */
	int			caller_context;
	char	   *path;			/* the caller's search path */
	bool		has_path;		/* a scope: it is this record's, else of one below */
	Oid			owner;			/* and as whom */
	bool		switched;		/* a call: user and context are to be put back */
	Oid			user;
	int			sec_context;
	int			guc_level;		/* to be ended, 0: none */
} CallerRecord;

/* With whose rights a function runs when our SQL calls it. */
typedef enum CallerKind
{
	CALLER_OURS,				/* built in, or ours: as the owner */
	CALLER_DEFINER,				/* SECURITY DEFINER: as it says */
	CALLER_FOREIGN				/* as the caller */
} CallerKind;

/* What a function has in its SET clauses. */
typedef enum CallerSettings
{
	SETS_NOTHING,
	SETS_SOMETHING,				/* but not the search path */
	SETS_PATH
} CallerSettings;

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
 * on behalf of the caller, and returns a number of the scope: CallerEndScope ends
 * it, or the end of the transaction does.  One that begins directly in another,
 * in a trigger of ours, has the same caller.
 */
int
CallerBeginScope(Oid caller, int sec_context, const char *path, Oid owner)
{
	CallerRecord *scope = Push(NULL);
	CallerRecord *below = nrecords > 1 ? scope - 1 : NULL;
	bool		nested = below != NULL && below->ours && caller == below->owner;

	scope->ours = true;
	scope->caller = nested ? below->caller : caller;
	scope->caller_context = nested ? below->caller_context : sec_context;
	scope->has_path = !nested;
	scope->path = nested ? below->path : MemoryContextStrdup(TopTransactionContext, path);
	scope->owner = owner;
	return nrecords - 1;
}

/*
 * CallerEndScope ends a scope, and whatever an error has left above it.
 */
void
CallerEndScope(int scope)
{
	Assert(scope < nrecords && records[scope].call == NULL);
	if (records[scope].has_path)
		pfree(records[scope].path);
	nrecords = scope;
}

/*
 * CallerSqlIsOurs tells whether what runs now runs as the owner on behalf of a
 * caller: a statement of ours, or of a function of ours.
 */
bool
CallerSqlIsOurs(void)
{
	return nrecords > 0 && records[nrecords - 1].ours &&
		GetUserId() == records[nrecords - 1].owner;
}

static bool
IsMember(Oid function)
{
	Oid			extension = getExtensionOfObject(ProcedureRelationId, function);

	return OidIsValid(extension) && extension == get_extension_oid("coupon", true);
}

static CallerKind
KindOf(Oid function)
{
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		definer;
	bool		ours = false;

	if (function < FirstNormalObjectId)
		return CALLER_OURS;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return CALLER_FOREIGN;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	definer = form->prosecdef;
	if (form->prolang == ClanguageId)
	{
		bool		isnull;
		Datum		library = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin, &isnull);

		ours = !isnull && strcmp(TextDatumGetCString(library), OUR_LIBRARY) == 0;
	}
	ReleaseSysCache(tuple);
	if (definer)
		return CALLER_DEFINER;
	return ours || IsMember(function) ? CALLER_OURS : CALLER_FOREIGN;
}

/* What a function sets itself, which is done before the hook is called. */
static CallerSettings
SettingsOf(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	CallerSettings found = SETS_NOTHING;
	bool		isnull;
	Datum		settings;
	Datum	   *elements;
	int			n;

	if (!HeapTupleIsValid(tuple))
		return SETS_NOTHING;
	settings = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	if (!isnull)
	{
		found = SETS_SOMETHING;
		deconstruct_array(DatumGetArrayTypeP(settings), TEXTOID, -1, false, TYPALIGN_INT,
						  &elements, NULL, &n);
		for (int i = 0; i < n; i++)
		{
			if (pg_strncasecmp(TextDatumGetCString(elements[i]), "search_path=",
							   strlen("search_path=")) == 0)
				found = SETS_PATH;
		}
	}
	ReleaseSysCache(tuple);
	return found;
}

static bool
NeedsHook(Oid function)
{
	if (previous_needs_hook && previous_needs_hook(function))
		return true;
	return nrecords > 0 && KindOf(function) == CALLER_FOREIGN;
}

/*
 * A function is called: a record of it, and the switch if it is one to be
 * switched.  (A function of ours comes here if it has settings of its own.)
 */
static void
BeginCall(FmgrInfo *call)
{
	CallerRecord top = records[nrecords - 1];
	CallerRecord *record = Push(call);
	CallerSettings settings;
	CallerKind	kind;

	record->caller = top.caller;
	record->caller_context = top.caller_context;
	record->path = top.path;
	record->owner = top.owner;
	if (!top.ours || GetUserId() != top.owner)
		return;
	kind = KindOf(call->fn_oid);
	record->ours = kind == CALLER_OURS;
	if (kind != CALLER_FOREIGN)
		return;
	GetUserIdAndSecContext(&record->user, &record->sec_context);
	record->switched = true;
	SetUserIdAndSecContext(top.caller, top.caller_context | SECURITY_LOCAL_USERID_CHANGE);
	/* What sets something has a level already, which ends before EndCall. */
	settings = SettingsOf(call->fn_oid);
	record->guc_level = settings == SETS_NOTHING ? NewGUCNestLevel() : 0;
	if (settings != SETS_PATH)
		(void) set_config_option("search_path", top.path, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

/* failed: the end of the (sub)transaction puts settings back. */
static void
EndCall(FmgrInfo *call, bool failed)
{
	int			n = nrecords;

	/* What lies above was left by an error, which somebody has caught. */
	while (n > 0 && records[n - 1].call != call)
		n--;
	if (n == 0)
		return;
	nrecords = n - 1;
	if (!records[nrecords].switched)
		return;
	if (!failed && records[nrecords].guc_level > 0)
		AtEOXact_GUC(true, records[nrecords].guc_level);
	SetUserIdAndSecContext(records[nrecords].user, records[nrecords].sec_context);
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
		EndCall(call, event == FHET_ABORT);
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
