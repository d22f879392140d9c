/*
 * input_rows.h
 *		Lines of a file: what they say, their order, and what becomes of each.
 */
#ifndef COUPON_INPUT_ROWS_H
#define COUPON_INPUT_ROWS_H

#define LINE_MAX_USER_ID 1000	/* bytes of it that are looked at */

typedef enum LineFate
{
	LINE_WANTED,				/* is to get a coupon, if there is stock */
	LINE_ISSUED,
	LINE_PUT_OFF,
	LINE_ALREADY_RECEIVED,
	LINE_OUT_OF_STOCK,
	LINE_INVALID_USER_ID,
	LINE_REFUSED,				/* by a trigger, CHECK or index of somebody's */
	LINE_DUPLICATE				/* of the line before it in order of users */
} LineFate;

typedef struct Line
{
	int64		row_num;
	int64		user_id;		/* 0: invalid */
	const char *text;			/* of an invalid user id; NULL: there is none */
	const char *detail;
	int			leaf;
	LineFate	fate;
} Line;

extern void LineFill(Line *line, int64 row_num, const text *user, bool cut);
extern const char *LineDetail(char *message);
extern void LinesSortByRow(Line *lines, int nlines);
extern void LinesSortByUser(Line *lines, int nlines);
extern void LinesMarkDuplicates(Line *lines, int nlines);
extern int	LinesCount(const Line *lines, int nlines, LineFate fate);
extern void LinesCutToStock(Line *lines, int nlines, int64 units);
extern void LinesSettleDuplicates(Line *lines, int nlines);
extern int	LinesRecordFailures(int64 task_id, const Line *lines, int nlines);
extern int	LinesRecordPutOff(int64 task_id, int32 batch, const Line *lines,
							  int nlines);

#endif							/* COUPON_INPUT_ROWS_H */
