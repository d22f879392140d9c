/*
 * template_ids.c
 *		Ids that surely no template has.
 *
 * A claim for an id that does not exist would cost a probe of the primary key
 * each time, half as much again as any other refusal.  Instead the ids that
 * there are have their bits in the filter of claimants.c, in which a template is
 * a pair with the user 0, whom there is not.
 *
 * The row trigger sets the bits of a template after its row is inserted or
 * updated, before anybody else can see it.  Its own transaction can, in a user's
 * trigger that fires before ours: so one that has a transaction id asks the index.
 * Of older rows the filter knows nothing until all of coupon_template was read,
 * rows of open transactions included, and that was stated for this database.  A row
 * that comes meanwhile, or gets a new place by an UPDATE, is either read or told of
 * by its trigger.  The statement carries the guard of the triggers
 * (Catalog.template_guard), and is worth nothing under another one: a trigger was
 * switched off since, or the table rewritten.  (DDL that commits is heard of a moment
 * after its rows are seen, before it returns.)
 *
 * The table is read in parts, one by each who asks for an id that does not exist:
 * nobody waits for all of a large one, and who is cancelled leaves what others read.
 *
 * Bits are never cleared: for an id that was deleted, the index is asked.
 *
 * Statements are in as many places as there are, by the number of the database.
 * Of two databases that want the same place the later one goes without.
 *
 * Locking: a place is written by who holds the loader lock of template 0 of its
 * database, so that one reads the table at a time; the guard is read without any
 * lock, like the filter.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/bufmgr.h"
#include "storage/shmem.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog.h"
#include "claimants.h"
#include "locks.h"
#include "template_ids.h"

#define PLACES 64
#define PART_BLOCKS 1024		/* read at once: 8 MB, some 40 ms */
#define NO_USER 0

typedef struct IdsPlace
{
	pg_atomic_uint32 database;	/* 0: free; else until that is dropped */
	pg_atomic_uint64 guard;		/* under which all ids are in the filter */
	uint64		reading;		/* under which those before next_block are */
	BlockNumber next_block;
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
		places[i].reading = 0;
		places[i].next_block = 0;
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
	const Catalog *cat;
	IdsPlace   *place;

	if (places == NULL || TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	AcceptInvalidationMessages();	/* as a probe of the index would */
	cat = CatalogGet();
	place = PlaceOfDatabase();
	if (cat->template_guard == 0 ||
		pg_atomic_read_u32(&place->database) != MyDatabaseId ||
		pg_atomic_read_u64(&place->guard) != cat->template_guard)
		return false;
	pg_read_barrier();			/* the bits were there before the guard */
	return !ClaimantsMayHave(cat->template_table, template_id, NO_USER);
}

static bool
TakePlace(IdsPlace *place)
{
	uint32		owner = InvalidOid;

	return pg_atomic_compare_exchange_u32(&place->database, &owner, MyDatabaseId) ||
		owner == MyDatabaseId;
}

/*
 * Put the ids of a part of the table into the filter, those of rows that are not
 * committed too; false where it was the last one.
 */
static bool
ReadPart(Oid relation, BlockNumber from)
{
	Relation	rel = table_open(relation, AccessShareLock);
	bool		more = RelationGetNumberOfBlocks(rel) > (uint64) from + PART_BLOCKS;
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan;
	ItemPointerData first,
				last;
	AttrNumber	att = 0;

	ItemPointerSet(&first, from, FirstOffsetNumber);
	ItemPointerSet(&last, more ? from + PART_BLOCKS - 1 : MaxBlockNumber, MaxOffsetNumber);
	scan = table_beginscan_tidrange(rel, SnapshotAny, &first, &last);
	for (int i = 0; i < RelationGetDescr(rel)->natts; i++)
	{
		if (strcmp(NameStr(TupleDescAttr(RelationGetDescr(rel), i)->attname), "id") == 0)
			att = i + 1;
	}
	while (table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot))
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		TemplateIdsAdd(relation, DatumGetInt64(slot_getattr(slot, att, &isnull)));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return more;
}

/*
 * TemplateIdsForgetDatabase frees the place of a database that nobody is in.
 */
void
TemplateIdsForgetDatabase(Oid database)
{
	uint32		owner = database;

	(void) pg_atomic_compare_exchange_u32(&places[database % PLACES].database, &owner,
										  InvalidOid);
}

/*
 * TemplateIdsLearn reads ids of templates, until all have been, unless somebody is
 * just doing so.  Once after the start of the server, and after DDL; not for a
 * transaction that asks the index all the same, and may have changed the guard for
 * itself alone.
 */
void
TemplateIdsLearn(void)
{
	uint64		guard = CatalogGet()->template_guard;
	IdsPlace   *place;
	LOCKTAG		tag;

	if (places == NULL || !ClaimantsIsOn() || guard == 0 || RecoveryInProgress() ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	place = PlaceOfDatabase();
	if (pg_atomic_read_u64(&place->guard) == guard || !TakePlace(place))
		return;
	LockTagOfLoader(&tag, 0);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return;
	if (place->reading != guard)
	{
		pg_atomic_write_u64(&place->guard, 0);
		place->reading = guard;
		place->next_block = 0;
	}
	if (ReadPart(CatalogGet()->template_table, place->next_block))
		place->next_block += PART_BLOCKS;
	else if (CatalogGet()->template_guard == guard)
	{
		pg_write_barrier();
		pg_atomic_write_u64(&place->guard, guard);
	}
	(void) LockRelease(&tag, ExclusiveLock, false);
}
