/*
 * section.c
 *		Sections of a file, whose lines are handled in the order of users.
 *
 * A section is some consecutive lines of a file, divided into batches not as
 * they come but by partition and user.  So a batch is about one partition, and
 * meets a page of an index several times, one after the other, where lines as
 * they come would touch another page of another partition each: with millions
 * of coupons that costs more than anything else about them.
 *
 * Stock goes to the lines in the order of the file.  So this order is for a
 * section for which it surely suffices (task_batch.c); otherwise the lines that
 * are left are divided anew, in the order of the file, before they are handled.
 *
 * What a batch consists of follows from the rows of the stage and of
 * coupon_task_batch alone: each runner that reads a section divides it alike.
 * Lines do not change after sealing, nor does what was done before a section
 * was put into the order of the file.  So a runner keeps the section that it is
 * at in its own memory; losing that costs a read.
 *
 * Functions other than SectionForget run between QueryBegin and QueryEnd.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/memutils.h"

#include "base/errors.h"
#include "base/owner_query.h"
#include "task/section.h"
#include "task/stage.h"

#define SECTIONS_KEPT 4			/* of several tasks, that take turns */

typedef struct Section
{
	int64		task_id;		/* 0: none */
	int64		first_line;
	bool		in_file_order;
	int			nlines;
	Line	   *lines;
	MemoryContext memory;
} Section;

/* The section used last comes first; one of each task at most. */
static Section kept[SECTIONS_KEPT];

/* The batches of a section: between $3 and $4, so that an index finds them. */
#define OF_SECTION "task_id OPERATOR(pg_catalog.=) $1" \
	" AND batch OPERATOR(pg_catalog.>) $3 AND batch OPERATOR(pg_catalog.<) $4" \
	" AND first_line OPERATOR(pg_catalog.=) $2"
#define OF_SECTION_TYPES 4, {INT8OID, INT8OID, INT8OID, INT8OID}

static OwnerQuery parts_of_section = {
	"SELECT position, lines, done_at IS NOT NULL AND NOT in_file_order"
	" FROM %1$s.coupon_task_batch WHERE " OF_SECTION,
	OF_SECTION_TYPES
};

/* All that are left, or none: those that somebody holds are not waited for. */
static OwnerQuery put_in_file_order = {
	"WITH free AS (SELECT batch, lines FROM %1$s.coupon_task_batch"
	"  WHERE " OF_SECTION " AND done_at IS NULL ORDER BY batch FOR UPDATE SKIP LOCKED)"
	" UPDATE %1$s.coupon_task_batch b SET in_file_order = true, position = f.position"
	" FROM (SELECT batch, pg_catalog.sum(lines) OVER (ORDER BY batch)"
	"   OPERATOR(pg_catalog.-) lines AS position FROM free) f"
	" WHERE b.task_id OPERATOR(pg_catalog.=) $1 AND b.batch OPERATOR(pg_catalog.=) f.batch"
	" AND (SELECT pg_catalog.count(*) FROM free) OPERATOR(pg_catalog.=)"
	"  (SELECT pg_catalog.count(*) FROM %1$s.coupon_task_batch"
	"   WHERE " OF_SECTION " AND done_at IS NULL)",
	OF_SECTION_TYPES
};

static void
FillArgs(const SectionPart *part, Datum *args)
{
	args[0] = Int64GetDatum(part->task_id);
	args[1] = Int64GetDatum(part->first_line);
	args[2] = Int64GetDatum((int64) part->batch - SECTION_BATCHES);
	args[3] = Int64GetDatum((int64) part->batch + SECTION_BATCHES);
}

/* What StageRead hands the lines of a section to. */
typedef struct Reading
{
	Section    *section;
	int			nread;			/* may come out as more than there should be */
} Reading;

static void
TakeLine(void *arg, int64 line, const text *user, bool cut)
{
	Reading    *reading = arg;
	MemoryContext caller = MemoryContextSwitchTo(reading->section->memory);

	if (reading->nread < reading->section->nlines)
		LineFill(&reading->section->lines[reading->nread], line, user, cut);
	reading->nread++;
	MemoryContextSwitchTo(caller);
}

static void
RefuseChanged(const SectionPart *part, int found, int expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_TASK_STATE),
			 errmsg("the stage of task %lld has been changed since it was sealed",
					(long long) part->task_id),
			 errdetail("From row %lld there are %d lines instead of %d.",
					   (long long) part->first_row, found, expected),
			 errhint("SELECT coupon_task_cancel(%lld) keeps what was issued.",
					 (long long) part->task_id)));
}

/* Read all lines and put them in the order of users. */
static void
ReadLines(Section *section, const SectionPart *part)
{
	Reading		reading = {section};

	section->lines = MemoryContextAllocHuge(section->memory,
											section->nlines * sizeof(Line));
	StageRead(part->task_id, part->first_line, part->last_line, TakeLine, &reading);
	if (reading.nread != section->nlines)
		RefuseChanged(part, reading.nread, section->nlines);

	LinesSortByRow(section->lines, section->nlines);
	for (int i = 0; i < section->nlines; i++)
		section->lines[i].row_num = part->first_row + i;
	LinesSortByUser(section->lines, section->nlines);
}

/* Leave what was not done by user, and put it in the order of the file. */
static void
KeepLeftOver(Section *section, const bool *done)
{
	int			n = 0;

	for (int i = 0; i < section->nlines; i++)
	{
		if (!done[i])
			section->lines[n++] = section->lines[i];
	}
	section->nlines = n;
	LinesSortByRow(section->lines, n);
}

/* Read a section, in memory that lives as long as the current one. */
static void
Read(Section *section, const SectionPart *part)
{
	Datum		args[4];
	uint64		nparts;
	bool	   *done;
	bool		isnull;

	section->task_id = part->task_id;
	section->first_line = part->first_line;
	section->in_file_order = part->in_file_order;
	section->memory = AllocSetContextCreate(CurrentMemoryContext, "coupon section",
											ALLOCSET_DEFAULT_SIZES);
	FillArgs(part, args);
	nparts = QueryRun(&parts_of_section, args, NULL);
	section->nlines = 0;
	for (uint64 i = 0; i < nparts; i++)
		section->nlines += DatumGetInt32(QueryValue(i, 2, &isnull));
	done = palloc0(section->nlines);
	for (uint64 i = 0; i < nparts; i++)
	{
		int			position = DatumGetInt32(QueryValue(i, 1, &isnull));
		int			nlines = DatumGetInt32(QueryValue(i, 2, &isnull));

		if (DatumGetBool(QueryValue(i, 3, &isnull)) && position >= 0 &&
			position + nlines <= section->nlines)
			memset(done + position, true, nlines);
	}

	ReadLines(section, part);
	if (section->in_file_order)
		KeepLeftOver(section, done);
	pfree(done);
}

/* Let go of a section; the others close up. */
static void
Forget(int i)
{
	if (kept[i].task_id != 0)
		MemoryContextDelete(kept[i].memory);
	memmove(&kept[i], &kept[i + 1], (SECTIONS_KEPT - 1 - i) * sizeof(Section));
	kept[SECTIONS_KEPT - 1] = (Section) {0};
}

/* The section of a part, from memory or read: now the first that is kept. */
static const Section *
Get(const SectionPart *part)
{
	Section		section;
	int			i = 0;

	while (i < SECTIONS_KEPT - 1 && kept[i].task_id != part->task_id)
		i++;
	section = kept[i];
	if (section.task_id != part->task_id || section.first_line != part->first_line ||
		section.in_file_order != part->in_file_order)
	{
		Forget(i);
		i = SECTIONS_KEPT - 1;
		Read(&section, part);
		MemoryContextSetParent(section.memory, TopMemoryContext);
	}
	memmove(&kept[1], &kept[0], i * sizeof(Section));
	kept[0] = section;
	return &kept[0];
}

/*
 * SectionReadPart reads a part of a task from a row of the last result.
 */
void
SectionReadPart(SectionPart *part, int64 task_id, int row)
{
	bool		isnull;

	part->task_id = task_id;
	part->batch = DatumGetInt32(QueryValue(row, 1, &isnull));
	part->first_line = DatumGetInt64(QueryValue(row, 2, &isnull));
	part->last_line = DatumGetInt64(QueryValue(row, 3, &isnull));
	part->first_row = DatumGetInt64(QueryValue(row, 4, &isnull));
	part->position = DatumGetInt32(QueryValue(row, 5, &isnull));
	part->in_file_order = DatumGetBool(QueryValue(row, 6, &isnull));
	part->nlines = DatumGetInt32(QueryValue(row, 7, &isnull));
}

/*
 * SectionLines returns the lines of a part in the order of users, to live in
 * the current memory; texts of invalid ones live until the next call.  Raises
 * an error if the section does not have the lines that it had when the stage
 * was sealed.
 */
Line *
SectionLines(const SectionPart *part)
{
	const Section *section = Get(part);
	Line	   *lines = palloc(part->nlines * sizeof(Line));

	if (part->position < 0 || part->position > section->nlines - part->nlines)
		RefuseChanged(part, section->nlines, part->position + part->nlines);
	memcpy(lines, section->lines + part->position, part->nlines * sizeof(Line));
	if (part->in_file_order)
		LinesSortByUser(lines, part->nlines);
	LinesMarkDuplicates(lines, part->nlines);
	return lines;
}

/*
 * SectionPutInFileOrder divides those lines of a part's section that are left
 * anew, in the order of the file.  The task is locked for update, so no runner
 * is at them; false if somebody is.
 */
bool
SectionPutInFileOrder(const SectionPart *part)
{
	Datum		args[4];

	FillArgs(part, args);
	return QueryRun(&put_in_file_order, args, NULL) > 0;
}

/*
 * SectionForget gives back what is kept in memory of a task.
 */
void
SectionForget(int64 task_id)
{
	for (int i = 0; i < SECTIONS_KEPT; i++)
	{
		if (kept[i].task_id == task_id)
			Forget(i);
	}
}
