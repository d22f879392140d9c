/*
 * count_snapshot.c
 *		A snapshot to count coupons with.
 *
 * What is counted becomes the truth of all backends, so nothing may be missing.
 * ALTER TABLE and TRUNCATE write rows anew, which a snapshot that is older than
 * their commit does not see at all.  So all tables are locked before the snapshot
 * is taken.
 *
 * Locks: templates, their stock and the watermark, and where coupons are to be
 * counted user_coupon and its partitions, in AccessShareLock mode and this order,
 * from CountSnapshotTake to CountSnapshotRelease, or to the end of the
 * (sub)transaction after an error.
 */
#include "postgres.h"

#include "access/table.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/count_snapshot.h"
#include "base/errors.h"

static void
ListTables(CountSnapshot *count, const Catalog *cat, bool coupons)
{
	Oid		   *table = count->tables;

	*table++ = cat->template_table;
	*table++ = cat->stock_table;
	*table++ = cat->watermark_table;
	if (coupons)
	{
		*table++ = cat->coupon_table;
		memcpy(table, cat->leaf, sizeof(cat->leaf));
		table += lengthof(cat->leaf);
	}
	count->ntables = table - count->tables;
}

static void
Unlock(const CountSnapshot *count)
{
	for (int i = 0; i < count->ntables; i++)
		UnlockRelationOid(count->tables[i], AccessShareLock);
}

/*
 * CountSnapshotTake locks the tables and takes a snapshot of what is committed
 * now, whatever the isolation level; coupons: for counting them, too.
 */
void
CountSnapshotTake(CountSnapshot *count, bool coupons)
{
	for (;;)
	{
		Catalog		before = *CatalogGet();

		ListTables(count, &before, coupons);
		for (int i = 0; i < count->ntables; i++)
			LockRelationOid(count->tables[i], AccessShareLock);
		if (memcmp(&before, CatalogGet(), sizeof(Catalog)) == 0)
			break;
		Unlock(count);			/* other tables, meanwhile */
	}
	count->snapshot = RegisterSnapshot(GetLatestSnapshot());
}

static bool
IsCreatedHere(Oid relid)
{
	Relation	rel = table_open(relid, NoLock);
	bool		created = rel->rd_createSubid != InvalidSubTransactionId;

	table_close(rel, NoLock);
	return created;
}

/* Whether this transaction has changed a table by DDL that others cannot see yet. */
static bool
HasOwnDdl(Oid relid)
{
	Relation	rel = table_open(relid, NoLock);
	bool		changed = CheckRelationLockedByMe(rel, AccessExclusiveLock, false);

	table_close(rel, NoLock);
	return changed || IsCreatedHere(relid);
}

/*
 * CountSnapshotRefuseOwnDdl raises VC013 where this transaction has locked one of
 * the tables exclusively, as DDL does, or has created a partition: what it counts
 * there is nobody else's truth, and may never be.  Where it has created all of
 * them, they are its own.
 */
void
CountSnapshotRefuseOwnDdl(const CountSnapshot *count)
{
	bool		changed = false;

	if (IsCreatedHere(count->tables[0]))
		return;
	for (int i = 0; i < count->ntables && !changed; i++)
		changed = HasOwnDdl(count->tables[i]);
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
	Unlock(count);
}
