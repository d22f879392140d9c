/*
 * announce.h
 *		Tells users of coupons that a task has given them.
 */
#ifndef COUPON_ANNOUNCE_H
#define COUPON_ANNOUNCE_H

#include "task/input_rows.h"
#include "task/task.h"

extern void AnnounceIssued(const Task *task, const Line *lines, int nlines);

#endif							/* COUPON_ANNOUNCE_H */
