/*
 * trigger.c
 *		What our trigger functions are called with.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/rel.h"
#include "utils/typcache.h"

#include "template/trigger.h"

/*
 * TriggerIsReplica tells whether rows come from elsewhere, where they have been
 * accepted: by logical apply, or a restore.
 */
bool
TriggerIsReplica(void)
{
	return SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA;
}

/*
 * TriggerGet returns what a trigger function was called with; raises 39P01 where it
 * is none.
 */
TriggerData *
TriggerGet(FunctionCallInfo fcinfo)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function can only be called as a trigger")));
	return (TriggerData *) fcinfo->context;
}

/*
 * TriggerRow returns the row that a BEFORE trigger lets through, or that an AFTER
 * trigger is told of.
 */
HeapTuple
TriggerRow(TriggerData *trigger)
{
	return TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
		trigger->tg_newtuple : trigger->tg_trigtuple;
}

/*
 * TriggerColumn returns a column of a row by name.
 */
Datum
TriggerColumn(TriggerData *trigger, HeapTuple tuple, const char *name, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	int			att = SPI_fnumber(desc, name);

	if (att <= 0)
		elog(ERROR, "table \"%s\" has no column \"%s\"",
			 RelationGetRelationName(trigger->tg_relation), name);
	return heap_getattr(tuple, att, desc, isnull);
}

/*
 * TriggerInt8 is TriggerColumn for a bigint.
 */
int64
TriggerInt8(TriggerData *trigger, HeapTuple tuple, const char *name,
		   int64 if_null)
{
	bool		isnull;
	Datum		value = TriggerColumn(trigger, tuple, name, &isnull);

	return isnull ? if_null : DatumGetInt64(value);
}

/*
 * TriggerSameColumn tells whether an UPDATE leaves a column as it is.
 */
bool
TriggerSameColumn(TriggerData *trigger, const char *name)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	bool		old_null,
				new_null;
	Datum		old = TriggerColumn(trigger, trigger->tg_trigtuple, name, &old_null);
	Datum		new = TriggerColumn(trigger, trigger->tg_newtuple, name, &new_null);
	Form_pg_attribute att;
	TypeCacheEntry *type;

	if (old_null || new_null)
		return old_null && new_null;
	att = TupleDescAttr(desc, SPI_fnumber(desc, name) - 1);
	type = lookup_type_cache(att->atttypid, TYPECACHE_EQ_OPR_FINFO);
	return DatumGetBool(FunctionCall2Coll(&type->eq_opr_finfo,
										  att->attcollation, old, new));
}
