/*
 * count_snapshot.h
 *		A snapshot to count coupons with.
 */
#ifndef COUPON_COUNT_SNAPSHOT_H
#define COUPON_COUNT_SNAPSHOT_H

#include "utils/snapshot.h"

#include "base/catalog.h"

typedef struct CountSnapshot
{
	Snapshot	snapshot;
	/* private to count_snapshot.c */
	Oid			tables[4 + COUPON_PARTITIONS];	/* those that are locked */
	int			ntables;
} CountSnapshot;

extern void CountSnapshotTake(CountSnapshot *count, bool coupons);
extern void CountSnapshotRefuseOwnDdl(const CountSnapshot *count);
extern void CountSnapshotRelease(CountSnapshot *count);

#endif							/* COUPON_COUNT_SNAPSHOT_H */
