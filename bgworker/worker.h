/*
 * worker.h
 *		The worker of one database.
 */
#ifndef COUPON_WORKER_H
#define COUPON_WORKER_H

#include "postmaster/bgworker.h"

#include "base/worker_slots.h"

extern bool WorkerRegister(int number, Oid database, WorkerKind kind,
						   BackgroundWorkerHandle **handle);
extern PGDLLEXPORT void CouponWorkerMain(Datum arg);

#endif							/* COUPON_WORKER_H */
