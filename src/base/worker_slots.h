/*
 * worker_slots.h
 *		The launcher, workers and mailers that there are.
 */
#ifndef COUPON_WORKER_SLOTS_H
#define COUPON_WORKER_SLOTS_H

#include "datatype/timestamp.h"

#define SLOT_LAUNCHER	0		/* number of the launcher's slot */
#define SLOT_ERROR_LENGTH 400

/* A new extension in more than one database since the launcher looked. */
#define SLOT_ANYWHERE	((Oid) PG_UINT32_MAX)

/* The processes that a database can have, each with a slot of its own. */
typedef enum WorkerKind
{
	KIND_WORKER,
	KIND_MAILER
} WorkerKind;

#define WORKER_KINDS 2

typedef enum WorkerState
{
	WORKER_STARTING,			/* asked for; not yet connected */
	WORKER_RUNNING,
	WORKER_LEFT,				/* made room, for another command or database */
	WORKER_ABSENT,				/* no extension in the database */
	WORKER_UNWANTED,			/* coupon.databases does not name it any more */
	WORKER_FAILED				/* ended by itself; will be tried again */
} WorkerState;

/* What anybody may know of a slot; all zero when it is opened. */
typedef struct SlotStatus
{
	Oid			database;		/* invalid: free, or the launcher's */
	WorkerKind	kind;
	int			pid;			/* 0: no process is attached */
	WorkerState state;
	TimestampTz started_at;		/* of the process */
	TimestampTz last_turn_at;	/* 0: none yet */
	int64		turns;
	int64		errors;
	TimestampTz last_error_at;	/* 0: none */
	char		last_error[SLOT_ERROR_LENGTH];	/* in the database's encoding */
} SlotStatus;

extern Size SlotShmemSize(void);
extern void SlotShmemInit(void);
extern int	SlotCount(void);
extern bool SlotGet(int number, SlotStatus *status);

/* For the launcher. */
extern int	SlotOpen(Oid database, WorkerKind kind);
extern void SlotClose(int number);
extern Oid	SlotTakeInstalled(void);
extern void SlotForgetAsked(int number);
extern void SlotSetCrowded(bool crowded);
extern bool SlotMailerIsWanted(Oid database);

/* For the process of a slot, and its launcher. */
extern bool SlotAttach(int number, Oid database);
extern void SlotDetach(int number);
extern uint32 SlotTakeReasons(int number);
extern bool SlotIsAsked(int number);
extern bool SlotIsCrowded(void);
extern void SlotWantMailer(int number, bool wanted);
extern void SlotSetState(int number, WorkerState state);
extern void SlotCountTurn(int number);
extern void SlotSetError(int number, const char *text);

/* For everybody else. */
extern void SlotWake(WorkerKind kind, uint32 reasons);
extern void SlotWakeLauncher(void);
extern void SlotTellInstalled(void);
extern void SlotAskToLeave(Oid database);

#endif							/* COUPON_WORKER_SLOTS_H */
