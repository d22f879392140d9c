/*
 * guc.c
 *		Every setting of coupon, in alphabetical order within each function.
 *
 * The settings that size or stamp shared memory can only be defined while
 * shared_preload_libraries is being loaded; a session that loads the library
 * later sees their defaults and no shared memory.
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "catalog/pg_authid.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/guc.h"
#include "base/ipaddr.h"

int			coupon_batch_size = 5000;
int			coupon_user_filter_memory = 8192;
char	   *coupon_databases = NULL;
char	   *coupon_endpoint_ca_file = NULL;
char	   *coupon_endpoint_deny = NULL;
int			coupon_gate_timeout = 10000;
int			coupon_limit_cache_memory = 8192;
int			coupon_keep_coupons = 0;
int			coupon_keep_events = 0;
int			coupon_keep_notifications = 30;
int			coupon_keep_reminders = 7;
int			coupon_keep_tasks = 90;
int			coupon_max_attempts = 12;
int			coupon_max_templates = 4096;
int			coupon_max_workers = 4;
int			coupon_node_id = 0;
int			coupon_task_share = 33;

/* Names are taken as they are written: no folding to lower case. */
static bool
CheckDatabases(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names;
	bool		ok = SplitGUCList(copy, ',', &names);

	if (!ok)
		GUC_check_errdetail("List syntax is invalid.");
	pfree(copy);
	list_free(names);
	return ok;
}

/* What coupon.endpoint_deny says; in the memory of the setting. */
typedef struct DeniedRanges
{
	int			count;
	AddressRange ranges[FLEXIBLE_ARRAY_MEMBER];
} DeniedRanges;

static const DeniedRanges *denied = NULL;

/* The next entry of a list and its length without blanks; NULL after the last. */
static const char *
NextEntry(const char **rest, size_t *length)
{
	const char *start = *rest;
	const char *end;

	if (start == NULL)
		return NULL;
	end = start + strcspn(start, ",");
	*rest = *end == ',' ? end + 1 : NULL;
	while (start < end && isspace((unsigned char) *start))
		start++;
	while (end > start && isspace((unsigned char) end[-1]))
		end--;
	*length = end - start;
	return start;
}

static bool
CheckEndpointDeny(char **newval, void **extra, GucSource source)
{
	const char *rest = *newval;
	const char *entry;
	size_t		length;
	DeniedRanges *parsed;
	int			count = 1;

	for (const char *c = *newval; *c; c++)
		count += *c == ',';
	parsed = CompatGucMalloc(offsetof(DeniedRanges, ranges) + count * sizeof(AddressRange));
	if (parsed == NULL)
		return false;
	parsed->count = 0;
	while ((entry = NextEntry(&rest, &length)) != NULL)
	{
		if (length == 0 && count == 1)
			break;				/* empty: nothing more is refused */
		if (!AddressParseRange(entry, length, &parsed->ranges[parsed->count++]))
		{
			GUC_check_errdetail("\"%.*s\" is no address range: write 10.0.0.0/8 or fd00::/8, with no bits set after the prefix.",
								(int) length, entry);
			CompatGucFree(parsed);
			return false;
		}
	}
	*extra = parsed;
	return true;
}

static void
AssignEndpointDeny(const char *newval, void *extra)
{
	denied = extra;
}

/*
 * GucDeniesAddress tells whether an address must not be connected to, by
 * coupon.endpoint_deny or by what it is.  Never raises an error.
 */
bool
GucDeniesAddress(const struct sockaddr *address)
{
	return AddressIsDenied(address, denied ? denied->ranges : NULL,
						   denied ? denied->count : 0);
}

/*
 * GucNamesDatabase tells whether coupon.databases names a database, or all.
 */
bool
GucNamesDatabase(const char *name)
{
	char	   *copy = pstrdup(coupon_databases);
	List	   *names;
	ListCell   *lc;
	bool		found = false;

	if (SplitGUCList(copy, ',', &names))
	{
		foreach(lc, names)
			found |= strcmp(lfirst(lc), "*") == 0 || strcmp(lfirst(lc), name) == 0;
	}
	list_free(names);
	pfree(copy);
	return found;
}

/* What sizes or stamps shared memory. */
static void
DefineAtStart(void)
{
	DefineCustomIntVariable("coupon.user_filter_memory",
							"Sets the memory in which users who have claimed are noted.",
							"It spares the look at the table for users who hold nothing. From 64 kB to 4 GB; 0 turns it off.",
							&coupon_user_filter_memory,
							8192,
							0,
							4 * 1024 * 1024,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.limit_cache_memory",
							"Sets the memory in which users who have had their limit are noted.",
							"It spares the look at the table for users who press again. From 64 kB to 4 GB; 0 turns it off.",
							&coupon_limit_cache_memory,
							8192,
							0,
							4 * 1024 * 1024,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.max_templates",
							"Sets how many templates the shared cache holds.",
							"A template with open claims keeps its place; others give theirs up. From 16 to 1048576.",
							&coupon_max_templates,
							4096,
							16,
							1024 * 1024,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.max_workers",
							"Sets how many workers and mailers run at a time, in all databases together.",
							"Those of more databases take turns. From 1 to 262143.",
							&coupon_max_workers,
							4,
							1,
							262143,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.node_id",
							"Sets the number of this server in the ids that it makes.",
							"Servers whose rows meet need different numbers. From 0 to 1023.",
							&coupon_node_id,
							0,
							0,
							1023,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);
}

/* How long what is over is kept. */
static void
DefineKeeping(void)
{
	/* Not for operators to set: what is deleted may be another shop's. */
	DefineCustomIntVariable("coupon.keep_coupons",
							"Sets how many days coupon_purge keeps coupons that are over.",
							"0 keeps them for ever. From 0 to 36500.",
							&coupon_keep_coupons,
							0,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.keep_events",
							"Sets how many days coupon_purge keeps the history of coupons.",
							"0 keeps it for ever. From 0 to 36500.",
							&coupon_keep_events,
							0,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.keep_notifications",
							"Sets how many days coupon_purge keeps notifications that are over.",
							"0 keeps them for ever. From 0 to 36500.",
							&coupon_keep_notifications,
							30,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.keep_reminders",
							"Sets how many days coupon_purge keeps reminders of sales that have begun.",
							"0 keeps them for ever. From 0 to 36500.",
							&coupon_keep_reminders,
							7,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.keep_tasks",
							"Sets how many days coupon_purge keeps tasks that are finished.",
							"0 keeps them for ever. From 0 to 36500.",
							&coupon_keep_tasks,
							90,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);
}

/*
 * GucInit defines the settings and reserves the prefix "coupon".
 */
void
GucInit(void)
{
	DefineCustomIntVariable("coupon.batch_size",
							"Sets how many lines or rows one transaction of a long job handles.",
							"From 1 to 100000.",
							&coupon_batch_size,
							5000,
							1,
							100000,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomStringVariable("coupon.databases",
							   "Sets in which databases coupon keeps a worker.",
							   "A list of names, * for every database that has the extension; empty for none.",
							   &coupon_databases,
							   "*",
							   PGC_SIGHUP,
							   GUC_LIST_INPUT,
							   CheckDatabases, NULL, NULL);

	/* Whether a file exists and who may read it is nobody else's business. */
	DefineCustomStringVariable("coupon.endpoint_ca_file",
							   "Sets the file with the certificate authorities that endpoints of channels are checked by.",
							   "In PEM format. Empty for those of the system.",
							   &coupon_endpoint_ca_file,
							   "",
							   PGC_SIGHUP,
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, NULL);

	DefineCustomStringVariable("coupon.endpoint_deny",
							   "Sets which addresses are refused as endpoints of channels, besides link-local and metadata addresses.",
							   "A list of ranges such as 10.0.0.0/8 and fd00::/8.",
							   &coupon_endpoint_deny,
							   "",
							   PGC_SIGHUP,
							   0,
							   CheckEndpointDeny, AssignEndpointDeny, NULL);

	DefineCustomIntVariable("coupon.gate_timeout",
							"Sets how long a recount or a smaller total waits for open claims.",
							"New claims of that template wait meanwhile. From 1 ms to one hour.",
							&coupon_gate_timeout,
							10000,
							1,
							3600 * 1000,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.max_attempts",
							"Sets how many times the worker tries to deliver a notification.",
							"The pauses double from a second to an hour; 12 attempts take about half an hour. Then it is dead, see coupon_notification_replay. From 1 to 100.",
							&coupon_max_attempts,
							12,
							1,
							100,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.task_share",
							"Sets how much of the server's cores distributions use while claims are served.",
							"In percent, of all runners together. 100 lets them take what they can get. From 1 to 100.",
							&coupon_task_share,
							33,
							1,
							100,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineKeeping();
	if (process_shared_preload_libraries_in_progress)
		DefineAtStart();
	MarkGUCPrefixReserved("coupon");
}

/*
 * GucPreloadCommand returns the statement after which, and a restart, this
 * library is preloaded with those that already are; NULL for a user who must
 * not see these.  Each name is quoted by itself: in one pair of quotes they
 * would be one name, and the server would not start any more.
 */
char *
GucPreloadCommand(void)
{
	const char *libraries = GetConfigOption("shared_preload_libraries", true, false);
	StringInfoData command;
	List	   *names;
	ListCell   *lc;

	/* Not the current user: that is our owner, where a default makes an id. */
	if (!superuser_arg(GetOuterUserId()) &&
		!has_privs_of_role(GetOuterUserId(), ROLE_PG_READ_ALL_SETTINGS))
		return NULL;
	initStringInfo(&command);
	appendStringInfoString(&command, "ALTER SYSTEM SET shared_preload_libraries = ");
	if (libraries != NULL && SplitDirectoriesString(pstrdup(libraries), ',', &names))
	{
		foreach(lc, names)
			appendStringInfo(&command, "%s, ", quote_literal_cstr(lfirst(lc)));
	}
	appendStringInfoString(&command, "'coupon';");
	return command.data;
}

/*
 * GucRefuseNotPreloaded raises VC001: what cannot be done, and how it could.
 */
void
GucRefuseNotPreloaded(const char *what)
{
	char	   *command = GucPreloadCommand();

	ereport(ERROR,
			(errcode(ERRCODE_COUPON_NOT_PRELOADED),
			 errmsg("%s: the library \"coupon\" is not preloaded", what),
			 command != NULL ?
			 errhint("Run %s and restart the server.", command) :
			 errhint("A superuser has to add it to \"shared_preload_libraries\", and restart the server.")));
}
