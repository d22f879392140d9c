/*
 * section.h
 *		Sections of a file, whose lines are handled in the order of users.
 */
#ifndef COUPON_SECTION_H
#define COUPON_SECTION_H

#include "task/input_rows.h"

/* A batch as part of its section: some columns of coupon_task_batch. */
typedef struct SectionPart
{
	int64		task_id;
	int32		batch;
	int64		first_line;		/* of the section, in the stage */
	int64		last_line;
	int64		first_row;		/* of the section, in the file */
	int			position;		/* of the part's first line in the section */
	int			nlines;			/* of the part */
	bool		in_file_order;	/* otherwise by user */
} SectionPart;

/* What SectionReadPart reads, the first columns of a result. */
#define SECTION_PART_COLUMNS "batch, first_line, last_line, first_row, position, in_file_order, lines"

extern void SectionReadPart(SectionPart *part, int64 task_id, int row);
extern Line *SectionLines(const SectionPart *part);
extern bool SectionPutInFileOrder(const SectionPart *part);
extern void SectionForget(int64 task_id);

#endif							/* COUPON_SECTION_H */
