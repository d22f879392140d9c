/*
 * owner_query.c
 *		Saved SQL statements that run as the owner of the extension.
 *
 * Ordinary users hold no rights on our tables, only EXECUTE on functions.
 * Declaring those functions SECURITY DEFINER with SET search_path costs 5 to
 * 10 % of a refused claim, so the user is switched around the SQL alone, as
 * foreign key triggers do.  An error needs no cleaning up here: transaction
 * and subtransaction abort put the user and the SPI stack back.
 */
#include "postgres.h"

#include "access/tupconvert.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/plancache.h"
#include "utils/snapmgr.h"

#include "base/caller.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/owner_query.h"

/*
 * QueryBegin connects to SPI and becomes the owner of the extension, with a
 * search path in which nobody can put a function, operator or type of their own.
 * Triggers of a shop run as the caller and with the caller's path (caller.c).
 */
void
QueryBegin(QueryScope *scope)
{
	const Catalog *cat = CatalogGet();
	char	   *path = pstrdup(GetConfigOption("search_path", false, false));

	scope->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	GetUserIdAndSecContext(&scope->user, &scope->sec_context);
	scope->caller_scope = CallerBeginScope(scope->user, scope->sec_context, path,
										   cat->owner);
	pfree(path);
	SetUserIdAndSecContext(cat->owner, scope->sec_context | COMPAT_OWNER_CONTEXT);
}

/*
 * QueryPlanByIndex makes the plans until QueryEnd go by index, row by row,
 * whatever old statistics say: for a few rows, or a portion, of a large table.
 */
void
QueryPlanByIndex(void)
{
	static const char *const off[] = {
		"enable_seqscan", "enable_bitmapscan", "enable_hashjoin",
		"enable_mergejoin", "enable_sort", "jit"
	};

	for (int i = 0; i < lengthof(off); i++)
		(void) set_config_option(off[i], "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("plan_cache_mode", "force_generic_plan", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * QueryEnd becomes the caller again and leaves SPI; results go with it.
 */
void
QueryEnd(QueryScope *scope)
{
	SetUserIdAndSecContext(scope->user, scope->sec_context);
	CallerEndScope(scope->caller_scope);
	SPI_finish();
	/* Also what a user's trigger has set meanwhile. */
	AtEOXact_GUC(false, scope->guc_level);
}

/* Prepare the statement unless its plan is still good for this catalog. */
static void
Prepare(OwnerQuery *query)
{
	const Catalog *cat = CatalogGet();
	uint64		version = CatalogVersion();
	char	   *sql;

	if (likely(query->plan != NULL && query->version == version))
		return;
	if (query->plan != NULL && query->running == 0)
		SPI_freeplan(query->plan);
	query->plan = NULL;			/* one that is running is left to its memory */

	sql = psprintf(query->sql, quote_identifier(cat->schema));
	query->plan = SPI_prepare(sql, query->nargs, query->argtypes);
	if (query->plan == NULL || SPI_keepplan(query->plan) != 0)
		elog(ERROR, "could not prepare \"%s\": %s", sql,
			 SPI_result_code_string(SPI_result));
	query->version = version;
	pfree(sql);
}

/*
 * QueryRun executes the statement between QueryBegin and QueryEnd and returns
 * the number of rows; QueryValue reads them.
 */
uint64
QueryRun(OwnerQuery *query, Datum *values, const char *nulls)
{
	int			rc;

	Prepare(query);
	query->running++;
	rc = SPI_execute_plan(query->plan, values, nulls, false, 0);
	query->running--;
	if (rc < 0)
		elog(ERROR, "statement \"%s\" failed: %s", query->sql,
			 SPI_result_code_string(rc));
	return SPI_processed;
}

/* Lock what a statement reads, and what belongs to it, until the end of the transaction. */
static void
LockTablesOf(OwnerQuery *query)
{
	ListCell   *source;
	ListCell   *relid;

	foreach(source, SPI_plan_get_plan_sources(query->plan))
	{
		foreach(relid, ((CachedPlanSource *) lfirst(source))->relationOids)
		{
			LockRelationOid(lfirst_oid(relid), AccessShareLock);
			(void) find_all_inheritors(lfirst_oid(relid), AccessShareLock, NULL);
		}
	}
}

/*
 * QueryRunLatest reads what is committed now, whatever the isolation level of the
 * caller, as foreign key checks do.  The snapshot is taken with the tables locked:
 * an older one does not see rows that an ALTER TABLE or a TRUNCATE, which the lock
 * has waited for, has written anew.
 */
uint64
QueryRunLatest(OwnerQuery *query, Datum *values, const char *nulls)
{
	Snapshot	snapshot;
	uint64		rows;

	Prepare(query);
	LockTablesOf(query);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	rows = QueryRunSnapshot(query, values, nulls, snapshot);
	UnregisterSnapshot(snapshot);
	return rows;
}

/*
 * QueryRunSnapshot reads with the snapshot given, which was taken with the tables
 * locked: see CatalogLatestSnapshot.
 */
uint64
QueryRunSnapshot(OwnerQuery *query, Datum *values, const char *nulls, Snapshot snapshot)
{
	int			rc;

	Prepare(query);
	query->running++;
	rc = SPI_execute_snapshot(query->plan, values, nulls, snapshot,
							  InvalidSnapshot, true, false, 0);
	query->running--;
	if (rc < 0)
		elog(ERROR, "statement \"%s\" failed: %s", query->sql,
			 SPI_result_code_string(rc));
	return SPI_processed;
}

/*
 * QueryValue returns a column (from 1) of a row (from 0) of the last result;
 * it lives in SPI's memory, until QueryEnd.
 */
Datum
QueryValue(int row, int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						 column, isnull);
}

/* QueryValue where the type is what its place is read as. */
static Datum
TypedValue(int row, int column, Oid type, bool *isnull)
{
	Form_pg_attribute att = TupleDescAttr(SPI_tuptable->tupdesc, column - 1);

	if (att->atttypid != type)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("column \"%s\" is not of type %s", NameStr(att->attname),
						format_type_be(type)),
				 errhint("Undo what was changed with ALTER TABLE.")));
	return QueryValue(row, column, isnull);
}

/*
 * QueryText is QueryValue for a text.  Raises VC009 where ALTER TABLE has made
 * something else of the column.
 */
Datum
QueryText(int row, int column, bool *isnull)
{
	return TypedValue(row, column, TEXTOID, isnull);
}

/*
 * QueryRequired is QueryValue for a column of a type that is passed by reference
 * and that is NOT NULL as installed.  Raises VC009 where ALTER TABLE has changed
 * that.
 */
Datum
QueryRequired(int row, int column, Oid type)
{
	bool		isnull;
	Datum		value = TypedValue(row, column, type, &isnull);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_NOT_INSTALLED),
				 errmsg("column \"%s\" is null",
						NameStr(TupleDescAttr(SPI_tuptable->tupdesc, column - 1)->attname)),
				 errhint("Undo what was changed with ALTER TABLE.")));
	return value;
}

/*
 * QueryMaterialize is the whole body of a set-returning function that reads:
 * runs the statement and returns all its rows.  Raises 42804 where the row type
 * is not as it was installed.
 */
Datum
QueryMaterialize(FunctionCallInfo fcinfo, OwnerQuery *query,
				 Datum *values, const char *nulls)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	QueryScope	scope;
	TupleConversionMap *map;
	uint64		rows;

	InitMaterializedSRF(fcinfo, 0);
	QueryBegin(&scope);
	rows = QueryRun(query, values, nulls);
	/* ALTER TYPE may have changed the one, and not the other. */
	map = convert_tuples_by_position(SPI_tuptable->tupdesc, rsinfo->setDesc,
									 "the row type of a function of coupon is not as it was installed");
	for (uint64 i = 0; i < rows; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];

		tuplestore_puttuple(rsinfo->setResult,
							map == NULL ? row : execute_attr_map_tuple(row, map));
	}
	QueryEnd(&scope);

	return (Datum) 0;
}
