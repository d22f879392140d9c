/*
 * row_writer.h
 *		Reading and writing rows of our own tables by the executor's row functions.
 */
#ifndef COUPON_ROW_WRITER_H
#define COUPON_ROW_WRITER_H

#include "access/genam.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/relcache.h"

#include "base/installed.h"

#define ROW_WRITER_COLUMNS 17	/* of ours, at most */

/* A table that is being written to. */
typedef struct RowWriter
{
	/* The row that was read last, or that is being filled, by column of ours. */
	Datum		values[ROW_WRITER_COLUMNS];
	bool		isnull[ROW_WRITER_COLUMNS];

	/* Where the walk has come to in its index; one over equal keys is in this order. */
	ItemPointerData entry;

	/* private to row_writer.c */
	int			ncolumns;
	AttrNumber	attno[ROW_WRITER_COLUMNS];
	Relation	rel;
	EState	   *estate;
	EPQState	epq;
	ResultRelInfo *info;
	IndexScanDesc scan;			/* NULL: none yet */
	ItemPointerData after;		/* entries up to here are passed over; invalid: none are */
	TupleTableSlot *read;		/* the row that was read last */
	TupleTableSlot *write;
	ExprState **defaults;		/* of columns that are not ours */
} RowWriter;

/* Sets a column of the row that is being filled, or changed. */
static inline void
RowWriterSet(RowWriter *writer, int column, Datum value)
{
	writer->values[column] = value;
	writer->isnull[column] = false;
}

/* The same; null unless "given". */
static inline void
RowWriterSetIf(RowWriter *writer, int column, bool given, Datum value)
{
	writer->values[column] = value;
	writer->isnull[column] = !given;
}

extern void RowWriterOpen(RowWriter *writer, Oid relation, const InstalledColumn *columns,
						  int ncolumns, uint32 updated);
extern void RowWriterScan(RowWriter *writer, const int *columns, int ncolumns,
						  ScanKey keys, int nkeys);
extern void RowWriterPassOver(RowWriter *writer, const ItemPointerData *entry);
extern bool RowWriterNext(RowWriter *writer);
extern bool RowWriterLock(RowWriter *writer, LockTupleMode mode, bool rarely_met);
extern void RowWriterClear(RowWriter *writer);
extern void RowWriterInsert(RowWriter *writer);
extern bool RowWriterUpdate(RowWriter *writer);
extern void RowWriterDelete(RowWriter *writer);
extern void RowWriterClose(RowWriter *writer);

#endif							/* COUPON_ROW_WRITER_H */
