/*
 * count_snapshot.c
 *		A snapshot to count coupons with.
 *
 * What is counted becomes the truth of all backends, so nothing may be missing.
 * ALTER TABLE and TRUNCATE write rows anew, which a snapshot that is older than
 * their commit does not see at all.  So all tables are locked before the snapshot
 * is taken.
 *
 * Locks: templates, their stock, the watermark, user_coupon and its partitions, in
 * AccessShareLock mode and this order, from CountSnapshotTake to
 * CountSnapshotRelease, or to the end of the (sub)transaction after an error.
 */
#include "postgres.h"

#include "access/table.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/count_snapshot.h"
#include "base/errors.h"

#define NTABLES (4 + COUPON_PARTITIONS)

static void
ListTables(const Catalog *cat, Oid *tables)
{
	tables[0] = cat->template_table;
	tables[1] = cat->stock_table;
	tables[2] = cat->watermark_table;
	tables[3] = cat->coupon_table;
	memcpy(tables + 4, cat->leaf, sizeof(cat->leaf));
}

static void
Lock(const Catalog *cat)
{
	Oid			tables[NTABLES];

	ListTables(cat, tables);
	for (int i = 0; i < NTABLES; i++)
		LockRelationOid(tables[i], AccessShareLock);
}

static void
Unlock(const Catalog *cat)
{
	Oid			tables[NTABLES];

	ListTables(cat, tables);
	for (int i = 0; i < NTABLES; i++)
		UnlockRelationOid(tables[i], AccessShareLock);
}

/*
 * CountSnapshotTake locks the tables and takes a snapshot of what is committed
 * now, whatever the isolation level.
 */
void
CountSnapshotTake(CountSnapshot *count)
{
	for (;;)
	{
		count->locked = *CatalogGet();
		Lock(&count->locked);
		if (memcmp(&count->locked, CatalogGet(), sizeof(Catalog)) == 0)
			break;
		Unlock(&count->locked); /* other tables, meanwhile */
	}
	count->snapshot = RegisterSnapshot(GetLatestSnapshot());
}

/* Whether this transaction has changed a table by DDL that others cannot see yet. */
static bool
HasOwnDdl(Oid relid)
{
	Relation	rel = table_open(relid, NoLock);
	bool		changed = rel->rd_createSubid == InvalidSubTransactionId &&
		CheckRelationLockedByMe(rel, AccessExclusiveLock, false);

	table_close(rel, NoLock);
	return changed;
}

/*
 * CountSnapshotRefuseOwnDdl raises VC013 where this transaction has locked one of
 * the tables exclusively, as DDL does: what it counts there is nobody else's truth,
 * and may never be.  Tables that it has created are its own.
 */
void
CountSnapshotRefuseOwnDdl(const CountSnapshot *count)
{
	Oid			tables[NTABLES];
	bool		changed = false;

	ListTables(&count->locked, tables);
	for (int i = 0; i < NTABLES && !changed; i++)
		changed = HasOwnDdl(tables[i]);
	if (changed)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_TRANSACTION),
				 errmsg("coupons cannot be counted in a transaction that has changed their tables by DDL"),
				 errhint("Commit first.")));
}

/*
 * CountSnapshotRelease gives the snapshot and the locks back.
 */
void
CountSnapshotRelease(CountSnapshot *count)
{
	UnregisterSnapshot(count->snapshot);
	Unlock(&count->locked);
}
