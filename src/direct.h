/*
 * direct.h
 *		Writing rows of our own tables without the executor.
 */
#ifndef COUPON_DIRECT_H
#define COUPON_DIRECT_H

#include "access/genam.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

#define DIRECT_ROWS 64			/* that go into a table together */

/* What a table is like when it is installed. */
typedef struct DirectLayout
{
	int			ncolumns;
	int			nchecks;
	int			nfilled;		/* that are NOT NULL */
	const Oid  *types;			/* InvalidOid: a type of ours */
} DirectLayout;

/* A table that is being written to. */
typedef struct DirectTable
{
	Relation	rel;
	/* private to direct.c */
	EState	   *estate;
	ResultRelInfo *info;
	BlockNumber nblocks;		/* at least so many; 0: not asked yet */
	TupleTableSlot *read;		/* the row that was fetched last */
	IndexScanDesc scan;			/* NULL: none */
	TupleTableSlot *slots[DIRECT_ROWS];	/* rows to be inserted; made as needed */
	int			nslots;
	int			nrows;
} DirectTable;

/* Sets a column, from 0, of a row that is being filled. */
static inline void
DirectSet(TupleTableSlot *row, int column, Datum value)
{
	row->tts_values[column] = value;
	row->tts_isnull[column] = false;
}

extern bool DirectOpen(DirectTable *table, Oid relation, const DirectLayout *layout);
extern TupleTableSlot *DirectFetch(DirectTable *table, ItemPointer tid);
extern bool DirectScanBegin(DirectTable *table, const AttrNumber *columns, int ncolumns,
							ScanKey keys, int nkeys);
extern TupleTableSlot *DirectScanNext(DirectTable *table);
extern void DirectScanEnd(DirectTable *table);
extern bool DirectDelete(DirectTable *table, ItemPointer tid);
extern TupleTableSlot *DirectNew(DirectTable *table);
extern TupleTableSlot *DirectNewVersion(DirectTable *table);
extern void DirectInsert(DirectTable *table);
extern bool DirectMayBeHeld(const DirectTable *table);
extern bool DirectLock(DirectTable *table, ItemPointer tid);
extern bool DirectUpdate(DirectTable *table, ItemPointer tid);
extern void DirectClose(DirectTable *table);

#endif							/* COUPON_DIRECT_H */
