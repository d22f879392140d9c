/*
 * stage.h
 *		The stage table of a task: the lines of its file.
 */
#ifndef COUPON_STAGE_H
#define COUPON_STAGE_H

#include "executor/spi.h"

#define SECTION_BATCHES 32		/* of a section, at most; their numbers follow each other */

/* What is in a stage. */
typedef struct StageSurvey
{
	int64		lines;
	int64		invalid;
	int64		duplicate;		/* of a valid line before */
	int64		held;			/* users who have the template already */
} StageSurvey;

extern Oid	StageOid(int64 task_id);
extern void StageLook(int64 task_id, int64 template_id, StageSurvey *survey);
extern void StageCreate(int64 task_id, Oid loader);
extern void StageLockToSeal(int64 task_id);
extern int64 StageClear(int64 task_id);
extern void StageDrop(int64 task_id);
extern int64 StageSeal(int64 task_id, int64 first_row, int batch_size);
extern void StageRead(int64 task_id, int64 first_line, int64 last_line,
					  void (*take) (void *arg, int64 line, const text *user, bool cut),
					  void *arg);

#endif							/* COUPON_STAGE_H */
