/*
 * owner_query.h
 *		Saved SQL statements that run as the owner of the extension.
 */
#ifndef COUPON_OWNER_QUERY_H
#define COUPON_OWNER_QUERY_H

#include "executor/spi.h"
#include "fmgr.h"
#include "utils/snapshot.h"

#define QUERY_MAX_ARGS 20

/*
 * A statement, written with %1$s for the schema.  It runs with a search path
 * of pg_catalog alone.
 */
typedef struct OwnerQuery
{
	const char *sql;
	int			nargs;
	Oid			argtypes[QUERY_MAX_ARGS];
	/* private to owner_query.c */
	SPIPlanPtr	plan;
	uint64		version;
	int			running;		/* calls; stays above 0 after an error */
} OwnerQuery;

/* What QueryBegin has to put back. */
typedef struct QueryScope
{
	Oid			user;
	int			sec_context;
	int			guc_level;
	int			caller_scope;
} QueryScope;

extern void QueryBegin(QueryScope *scope);
extern void QueryPlanByIndex(void);
extern uint64 QueryRun(OwnerQuery *query, Datum *values, const char *nulls);
extern uint64 QueryRunLatest(OwnerQuery *query, Datum *values, const char *nulls);
extern uint64 QueryRunSnapshot(OwnerQuery *query, Datum *values, const char *nulls,
							   Snapshot snapshot);
extern void QueryEnd(QueryScope *scope);
extern Datum QueryValue(int row, int column, bool *isnull);
extern Datum QueryText(int row, int column, bool *isnull);
extern Datum QueryRequired(int row, int column, Oid type);
extern Datum QueryMaterialize(FunctionCallInfo fcinfo, OwnerQuery *query,
							  Datum *values, const char *nulls);

#endif							/* COUPON_OWNER_QUERY_H */
