/*
 * template_ids.c
 *		Ids that surely no template has.
 *
 * A claim for an id that does not exist would cost a probe of the primary key
 * each time, half as much again as any other refusal.  Instead the ids that
 * there are have their bits in the filter of claimants.c, in which a template is
 * a pair with the user 0, whom there is not.
 *
 * The row trigger sets the bits of a template after its row is inserted, before
 * anybody else can see it.  Its own transaction can, in a user's trigger that fires
 * before ours: so one that has a transaction id asks the index.  Of older rows the filter knows nothing until
 * somebody has read all of coupon_template, rows of open transactions included,
 * and stated so for this database.  A row that comes while he reads is either
 * read or told of by its trigger.  The statement carries the guard of the
 * triggers (Catalog.template_guard), and is worth nothing under another one: a
 * trigger was switched off since, or the table rewritten.
 *
 * Bits are never cleared: for an id that was deleted, the index is asked.
 *
 * Statements are in as many places as there are, by the number of the database.
 * Of two databases that want the same place the later one goes without.
 *
 * Locking: the guard of a place is written by who holds the loader lock of template
 * 0 of its database, so that one reads the table at a time; it is read without any
 * lock, like the filter.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog.h"
#include "claimants.h"
#include "locks.h"
#include "template_ids.h"

#define PLACES 64
#define NO_USER 0

typedef struct IdsPlace
{
	pg_atomic_uint32 database;	/* 0: free; stays once it is set */
	pg_atomic_uint64 guard;		/* under which all ids are in the filter */
} IdsPlace;

static IdsPlace *places = NULL;

/*
 * TemplateIdsShmemSize returns the bytes that the places need.
 */
Size
TemplateIdsShmemSize(void)
{
	return PLACES * sizeof(IdsPlace);
}

/*
 * TemplateIdsShmemInit attaches to the places, and makes them.  The caller holds
 * AddinShmemInitLock.
 */
void
TemplateIdsShmemInit(void)
{
	bool		found;

	places = ShmemInitStruct("coupon template ids", TemplateIdsShmemSize(), &found);
	if (found)
		return;
	for (int i = 0; i < PLACES; i++)
	{
		pg_atomic_init_u32(&places[i].database, InvalidOid);
		pg_atomic_init_u64(&places[i].guard, 0);
	}
}

/*
 * TemplateIdsAdd notes that a template exists, or may: it is called before
 * anybody but this transaction sees it.
 */
void
TemplateIdsAdd(Oid relation, int64 template_id)
{
	ClaimantsAdd(relation, template_id, NO_USER);
}

static IdsPlace *
PlaceOfDatabase(void)
{
	return &places[MyDatabaseId % PLACES];
}

/*
 * TemplateIdsLack returns true where surely no template that this transaction may
 * see has this id; false where that is not known.
 */
bool
TemplateIdsLack(int64 template_id)
{
	const Catalog *cat = CatalogGet();
	IdsPlace   *place;

	if (places == NULL || cat->template_guard == 0 ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	place = PlaceOfDatabase();
	return pg_atomic_read_u32(&place->database) == MyDatabaseId &&
		pg_atomic_read_u64(&place->guard) == cat->template_guard &&
		!ClaimantsMayHave(cat->template_table, template_id, NO_USER);
}

static bool
TakePlace(IdsPlace *place)
{
	uint32		owner = InvalidOid;

	return pg_atomic_compare_exchange_u32(&place->database, &owner, MyDatabaseId) ||
		owner == MyDatabaseId;
}

/* Put all ids into the filter, those of rows that are not committed too. */
static void
ReadIds(Oid relation)
{
	Relation	rel = table_open(relation, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, SnapshotAny, 0, NULL);
	AttrNumber	att = 0;

	for (int i = 0; i < RelationGetDescr(rel)->natts; i++)
	{
		if (strcmp(NameStr(TupleDescAttr(RelationGetDescr(rel), i)->attname), "id") == 0)
			att = i + 1;
	}
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		TemplateIdsAdd(relation, DatumGetInt64(slot_getattr(slot, att, &isnull)));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
}

/*
 * TemplateIdsLearn reads the ids of all templates, unless somebody has, or is
 * just doing so.  Once after the start of the server, and after DDL.
 */
void
TemplateIdsLearn(void)
{
	uint64		guard = CatalogGet()->template_guard;
	IdsPlace   *place;
	LOCKTAG		tag;

	if (places == NULL || !ClaimantsIsOn() || guard == 0 || RecoveryInProgress())
		return;
	place = PlaceOfDatabase();
	if (pg_atomic_read_u64(&place->guard) == guard || !TakePlace(place))
		return;
	LockTagOfLoader(&tag, 0);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return;
	pg_atomic_write_u64(&place->guard, 0);
	ReadIds(CatalogGet()->template_table);
	if (CatalogGet()->template_guard == guard)
		pg_atomic_write_u64(&place->guard, guard);
	(void) LockRelease(&tag, ExclusiveLock, false);
}
