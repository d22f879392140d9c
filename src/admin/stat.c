/*
 * stat.c
 *		Seeing inside: what the shared cache knows of templates and of itself.
 *		The views coupon_stat, coupon_stat_cache and coupon_health are made of
 *		these functions.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/guc.h"
#include "base/id.h"
#include "base/outcome.h"
#include "base/shop_role.h"
#include "stock/cache.h"
#include "store/user_filter.h"
#include "template/template.h"

PG_FUNCTION_INFO_V1(coupon_stat_entries);
PG_FUNCTION_INFO_V1(coupon_stat_cache_counters);
PG_FUNCTION_INFO_V1(coupon_server_state);

#define RATE_OVER_SECONDS 5
#define ENTRY_COLUMNS 9

/* Claims a second, over the last full seconds. */
static double
ClaimRate(CacheEntry *entry)
{
	uint64		now = (uint64) (GetCurrentTimestamp() / USECS_PER_SEC) & PG_UINT32_MAX;
	uint64		sum = 0;

	for (int i = 0; i < CACHE_RATE_SECONDS; i++)
	{
		uint64		bucket = pg_atomic_read_u64(&entry->rate[i]);
		uint64		age = now - (bucket >> 32);

		if (age >= 1 && age <= RATE_OVER_SECONDS)
			sum += bucket & PG_UINT32_MAX;
	}
	return (double) sum / RATE_OVER_SECONDS;
}

StaticAssertDecl((int) OUTCOME_FIRST_OF_ORDERS <= CACHE_CODES,
				 "refusals are counted by outcome code");

/* {"out_of_stock": 12, …}: the refusals that have happened. */
static Datum
RefusalsAsJson(const uint64 *refused)
{
	StringInfoData json;

	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	for (int code = 1; code < OUTCOME_FIRST_OF_ORDERS; code++)
	{
		if (refused[code] > 0)
			appendStringInfo(&json, "%s\"%s\": " UINT64_FORMAT,
							 json.len > 1 ? ", " : "", OutcomeName(code),
							 refused[code]);
	}
	appendStringInfoChar(&json, '}');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

/*
 * coupon_stat_entries() → one row per template in the cache of this database,
 * with its counters since it was loaded.
 */
Datum
coupon_stat_entries(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			relation = CatalogGet()->template_table;
	CacheEntry *slot;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; CacheIsAttached() && (slot = CacheSlot(i)) != NULL; i++)
	{
		CacheKey	key = slot->key;
		LWLock	   *lock;
		CacheEntry *entry;
		CacheEntry	copy;
		TemplateAttrs attrs;
		uint64		refused[CACHE_CODES];
		Datum		values[ENTRY_COLUMNS];
		bool		nulls[ENTRY_COLUMNS] = {false};

		if (slot->state != CACHE_READY || key.database != MyDatabaseId ||
			key.relation != relation)
			continue;
		lock = CachePartitionLock(&key);
		LWLockAcquire(lock, LW_SHARED);
		entry = CacheFind(&key);
		if (entry != NULL)
			copy = *entry;
		LWLockRelease(lock);
		if (entry == NULL || copy.state != CACHE_READY)
			continue;
		memcpy(&attrs, copy.payload, sizeof(attrs));
		if (!RoleSeesShop(ROLE_OFFICE, attrs.has_shop, attrs.shop_number))
			continue;

		for (int code = 0; code < CACHE_CODES; code++)
			refused[code] = pg_atomic_read_u64(&copy.refused[code]);
		values[0] = Int64GetDatum(key.template_id);
		nulls[1] = nulls[4] = copy.quota == CACHE_UNLIMITED;
		values[1] = Int64GetDatum(copy.quota);
		values[2] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.issued));
		values[3] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.pending));
		values[4] = Int64GetDatum(Max(copy.quota - DatumGetInt64(values[2]), 0));
		values[5] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.claims));
		values[6] = Float8GetDatum(ClaimRate(&copy));
		values[7] = RefusalsAsJson(refused);
		values[8] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.returned));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

static Datum
ReturnRow(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/*
 * coupon_stat_cache_counters() → the counters of the whole cache, of all
 * databases, since the start of the server; nulls without shared memory.
 */
Datum
coupon_stat_cache_counters(PG_FUNCTION_ARGS)
{
	CacheStats	stats = {0};
	Datum		values[9];
	bool		nulls[9];

	memset(nulls, !CacheIsAttached(), sizeof(nulls));
	if (CacheIsAttached())
		CacheGetStats(&stats);
	values[0] = Int32GetDatum(stats.capacity);
	values[1] = Int32GetDatum(stats.entries);
	values[2] = Int64GetDatum((int64) stats.lookups);
	values[3] = Int64GetDatum((int64) stats.loads);
	values[4] = Int64GetDatum((int64) stats.refreshes);
	values[5] = Int64GetDatum((int64) stats.unknown);
	values[6] = Int64GetDatum((int64) stats.evictions);
	values[7] = Int64GetDatum((int64) stats.invalidations);
	nulls[8] = !UserFilterIsOn();
	values[8] = Float8GetDatum(nulls[8] ? 0 : UserFilterFill());
	return ReturnRow(fcinfo, values, nulls);
}

/*
 * coupon_server_state() → preloaded, in_recovery, id_seconds_ahead,
 * worker_wanted, preload_command: what coupon_health cannot ask SQL.
 */
Datum
coupon_server_state(PG_FUNCTION_ARGS)
{
	char	   *command = CacheIsAttached() ? NULL : GucPreloadCommand();
	Datum		values[5];
	bool		nulls[5] = {false};

	values[0] = BoolGetDatum(CacheIsAttached());
	values[1] = BoolGetDatum(RecoveryInProgress());
	values[2] = Int64GetDatum(IdSecondsAhead());
	values[3] = BoolGetDatum(GucNamesDatabase(get_database_name(MyDatabaseId)));
	nulls[4] = command == NULL;
	values[4] = command == NULL ? (Datum) 0 : CStringGetTextDatum(command);
	return ReturnRow(fcinfo, values, nulls);
}
