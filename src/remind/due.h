/*
 * due.h
 *		Reminders of a sale that are due: read, and marked as fired.
 */
#ifndef COUPON_DUE_H
#define COUPON_DUE_H

#include "base/row_writer.h"
#include "remind/bitmap.h"

/* A row of coupon_remind, as it was read. */
typedef struct RemindRow
{
	int64		user_id;
	RemindBitmap bitmap;
	RemindBitmap fired;
	Datum		notifications;
	bool		no_notifications;	/* it is null */
} RemindRow;

/* Where a look at the rows of a sale has come to. */
typedef struct RemindPosition
{
	int			minutes;		/* of the rows' next reminders */
	ItemPointerData entry;		/* the last of these in the index; invalid: none yet */
} RemindPosition;

typedef struct RemindRows
{
	/* private to remind/due.c */
	int64		template_id;
	int			farthest;
	RemindPosition *position;			/* NULL: nobody goes on from there */
	int			limit;
	int			nmarked;
	RowWriter	table;			/* with a walk along its index */
	MemoryContext row_context;
	RemindRow	row;			/* the last */
} RemindRows;

extern void RemindRowsBegin(RemindRows *rows, int64 template_id, int nearest, int farthest,
							int limit);
extern void RemindRowsGoOn(RemindRows *rows, int64 template_id, RemindPosition *position,
						   int farthest, int limit);
extern const RemindRow *RemindRowsNext(RemindRows *rows);
extern bool RemindRowsMark(RemindRows *rows, RemindBitmap fired, const int64 *ids);
extern int	RemindRowsEnd(RemindRows *rows);

#endif							/* COUPON_DUE_H */
