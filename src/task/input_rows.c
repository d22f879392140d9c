/*
 * input_rows.c
 *		Lines of a file: what they say, their order, and what becomes of each.
 *
 * Functions that record something run between QueryBegin and QueryEnd.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/int.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/catalog.h"
#include "base/owner_query.h"
#include "task/input_rows.h"

#define MAX_SHOWN_USER_ID 100	/* bytes of a bad user id that are kept */
#define MAX_DETAIL 500			/* bytes */

static const char *const causes[] = {
	[LINE_ALREADY_RECEIVED] = "already_received",
	[LINE_OUT_OF_STOCK] = "out_of_stock",
	[LINE_INVALID_USER_ID] = "invalid_user_id",
	[LINE_REFUSED] = "refused",
	[LINE_DUPLICATE] = "duplicate_line",
};

static OwnerQuery insert_failures = {
	"INSERT INTO %1$s.coupon_task_failure (task_id, row_num, user_id, cause, detail)"
	" SELECT $1, r, u, c, d FROM unnest($2, $3, $4, $5) AS x (r, u, c, d)",
	5, {INT8OID, INT8ARRAYOID, TEXTARRAYOID, TEXTARRAYOID, TEXTARRAYOID}
};

static OwnerQuery insert_put_off = {
	"INSERT INTO %1$s.coupon_task_put_off (task_id, batch, row_num, user_id)"
	" SELECT $1, $2, r, u FROM unnest($3, $4) AS x (r, u)",
	4, {INT8OID, INT4OID, INT8ARRAYOID, INT8ARRAYOID}
};

/*
 * Read a user id as it stands in a file: digits, perhaps with space around
 * them, or after the byte order mark with which some programs begin a file.
 * Returns what is wrong, or NULL.
 */
static const char *
ParseUserId(const char *s, const char *end, int64 *user_id)
{
	int64		n = 0;
	bool		negative;

	*user_id = 0;
	if (end - s >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0)
		s += 3;
	while (s < end && isspace((unsigned char) *s))
		s++;
	while (s < end && isspace((unsigned char) end[-1]))
		end--;
	if (s == end)
		return "empty";
	negative = *s == '-' && end - s > 1;
	for (s += negative; s < end; s++)
	{
		if (*s < '0' || *s > '9')
			return "not a number";
		if (!negative && (pg_mul_s64_overflow(n, 10, &n) ||
						  pg_add_s64_overflow(n, *s - '0', &n)))
			return "too large";
	}
	if (n == 0)
		return "not positive";
	*user_id = n;
	return NULL;
}

/*
 * LineFill makes a line of what a file says: user, the text of a user id, or
 * NULL; cut: there is more of it.  An invalid one is copied into the current memory.
 */
void
LineFill(Line *line, int64 row_num, const text *user, bool cut)
{
	line->row_num = row_num;
	line->user_id = 0;
	line->text = NULL;
	line->detail = "empty";
	if (user != NULL)
	{
		const char *said = VARDATA_ANY(user);
		int			length = VARSIZE_ANY_EXHDR(user);

		line->detail = ParseUserId(said, said + length, &line->user_id);
		if (cut)
		{
			line->user_id = 0;
			line->detail = "too long";
		}
		if (line->detail != NULL)
			line->text = pnstrdup(said, pg_mbcliplen(said, length, MAX_SHOWN_USER_ID));
	}
	line->fate = line->detail == NULL ? LINE_WANTED : LINE_INVALID_USER_ID;
	line->leaf = line->detail == NULL ? CatalogLeafNumber(line->user_id) :
		COUPON_PARTITIONS;
}

static inline int
CompareRows(const Line *a, const Line *b)
{
	return a->row_num < b->row_num ? -1 : a->row_num > b->row_num;
}

static inline int
CompareUsers(const Line *a, const Line *b)
{
	if (a->leaf != b->leaf)
		return a->leaf - b->leaf;
	if (a->user_id != b->user_id)
		return a->user_id < b->user_id ? -1 : 1;
	return CompareRows(a, b);
}

#define ST_SORT SortByRow
#define ST_ELEMENT_TYPE Line
#define ST_COMPARE(a, b) CompareRows(a, b)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

#define ST_SORT SortByUser
#define ST_ELEMENT_TYPE Line
#define ST_COMPARE(a, b) CompareUsers(a, b)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * LinesSortByRow puts lines in the order of the file.
 */
void
LinesSortByRow(Line *lines, int nlines)
{
	SortByRow(lines, nlines);
}

/*
 * LinesSortByUser puts lines in the order of the indexes: by partition and user,
 * a user's first line first; invalid ones last.
 */
void
LinesSortByUser(Line *lines, int nlines)
{
	SortByUser(lines, nlines);
}

/*
 * LinesMarkDuplicates: of a user's lines, which are neighbours, all but the
 * first are duplicates.
 */
void
LinesMarkDuplicates(Line *lines, int nlines)
{
	for (int i = 1; i < nlines; i++)
	{
		if (lines[i].user_id != 0 && lines[i].user_id == lines[i - 1].user_id)
			lines[i].fate = LINE_DUPLICATE;
	}
}

/*
 * LinesCount returns how many lines have that fate.
 */
int
LinesCount(const Line *lines, int nlines, LineFate fate)
{
	int			n = 0;

	for (int i = 0; i < nlines; i++)
		n += lines[i].fate == fate;
	return n;
}

static int
CompareInt8(const void *a, const void *b)
{
	int64		left = *(const int64 *) a;
	int64		right = *(const int64 *) b;

	return left < right ? -1 : left > right;
}

/*
 * LinesCutToStock leaves as many lines wanted as there are units, which are
 * fewer: the first of the file.
 */
void
LinesCutToStock(Line *lines, int nlines, int64 units)
{
	int64	   *rows = palloc(nlines * sizeof(int64));
	int			n = 0;

	for (int i = 0; i < nlines; i++)
	{
		if (lines[i].fate == LINE_WANTED)
			rows[n++] = lines[i].row_num;
	}
	Assert(units < n);
	qsort(rows, n, sizeof(int64), CompareInt8);
	for (int i = 0; i < nlines; i++)
	{
		if (lines[i].fate == LINE_WANTED && lines[i].row_num >= rows[units])
			lines[i].fate = LINE_OUT_OF_STOCK;
	}
	pfree(rows);
}

/*
 * LinesSettleDuplicates lets a user's further lines share the fate of the
 * first, unless that has a coupon.
 */
void
LinesSettleDuplicates(Line *lines, int nlines)
{
	for (int i = 1; i < nlines; i++)
	{
		LineFate	first = lines[i - 1].fate;

		if (lines[i].user_id != 0 && lines[i].user_id == lines[i - 1].user_id &&
			(first == LINE_ALREADY_RECEIVED || first == LINE_OUT_OF_STOCK))
			lines[i].fate = first;
	}
}

static Datum
ArrayOf(Datum *values, bool *nulls, int n, Oid type)
{
	int			lower = 1;

	return PointerGetDatum(construct_md_array(values, nulls, 1, &n, &lower, type,
											  type == INT8OID ? 8 : -1,
											  type == INT8OID ? FLOAT8PASSBYVAL : false,
											  type == INT8OID ? TYPALIGN_DOUBLE : TYPALIGN_INT));
}

/*
 * LineDetail cuts a message that others have written to what is kept of it.
 */
const char *
LineDetail(char *message)
{
	message[pg_mbcliplen(message, strlen(message), MAX_DETAIL)] = '\0';
	return message;
}

static bool
HasFailed(const Line *line)
{
	return line->fate >= LINE_ALREADY_RECEIVED;
}

/*
 * LinesRecordFailures records the lines that get no coupon, and returns how
 * many there are.
 */
int
LinesRecordFailures(int64 task_id, const Line *lines, int nlines)
{
	Datum	   *column[4];
	bool	   *nulls[4];
	Datum		args[5];
	int			n = 0;

	for (int c = 0; c < 4; c++)
	{
		column[c] = palloc(nlines * sizeof(Datum));
		nulls[c] = palloc0(nlines * sizeof(bool));
	}
	for (int i = 0; i < nlines; i++)
	{
		const Line *line = &lines[i];

		if (!HasFailed(line))
			continue;
		column[0][n] = Int64GetDatum(line->row_num);
		nulls[1][n] = line->user_id == 0 && line->text == NULL;
		if (line->user_id != 0)
			column[1][n] = CStringGetTextDatum(psprintf(INT64_FORMAT, line->user_id));
		else if (line->text != NULL)
			column[1][n] = CStringGetTextDatum(line->text);
		column[2][n] = CStringGetTextDatum(causes[line->fate]);
		nulls[3][n] = line->detail == NULL;
		if (line->detail != NULL)
			column[3][n] = CStringGetTextDatum(line->detail);
		n++;
	}
	if (n == 0)
		return 0;
	args[0] = Int64GetDatum(task_id);
	args[1] = ArrayOf(column[0], nulls[0], n, INT8OID);
	for (int c = 1; c < 4; c++)
		args[c + 1] = ArrayOf(column[c], nulls[c], n, TEXTOID);
	QueryRun(&insert_failures, args, NULL);
	return n;
}

/*
 * LinesRecordPutOff records the lines that are handled later, and returns how
 * many there are.
 */
int
LinesRecordPutOff(int64 task_id, int32 batch, const Line *lines, int nlines)
{
	Datum	   *rows = palloc(nlines * sizeof(Datum));
	Datum	   *users = palloc(nlines * sizeof(Datum));
	Datum		args[4];
	int			n = 0;

	for (int i = 0; i < nlines; i++)
	{
		if (lines[i].fate != LINE_PUT_OFF)
			continue;
		rows[n] = Int64GetDatum(lines[i].row_num);
		users[n++] = Int64GetDatum(lines[i].user_id);
	}
	if (n == 0)
		return 0;
	args[0] = Int64GetDatum(task_id);
	args[1] = Int32GetDatum(batch);
	args[2] = ArrayOf(rows, NULL, n, INT8OID);
	args[3] = ArrayOf(users, NULL, n, INT8OID);
	QueryRun(&insert_put_off, args, NULL);
	return n;
}
