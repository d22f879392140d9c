/*
 * turns.h
 *		Sales that have something to fire: shops take turns.
 */
#ifndef COUPON_TURNS_H
#define COUPON_TURNS_H

#include "remind/fire.h"

/* A sale that has, or may have, something to fire. */
typedef struct RemindDue
{
	RemindSale *sale;
	bool		was_held;		/* the tick's */
	int			marked;			/* rows, this time; -1: it was not its turn */
} RemindDue;

extern void RemindTakeTurns(RemindDue *due, int ndue, int64 *last_shop, TimestampTz now,
							int limit, RemindCounts *counts);

#endif							/* COUPON_TURNS_H */
