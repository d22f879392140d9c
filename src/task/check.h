/*
 * check.h
 *		What running a task would do.
 */
#ifndef COUPON_CHECK_H
#define COUPON_CHECK_H

#include "task/task.h"

extern Datum TaskWarnings(const Task *task);

#endif							/* COUPON_CHECK_H */
