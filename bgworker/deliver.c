/*
 * deliver.c
 *		Sends what waits in the outbox: lease, network, record.
 *
 * A turn collects what libcurl has finished.  When enough has come together,
 * one short transaction records these answers and leases as many pushes as
 * there are free places in flight; after its commit they are handed to
 * libcurl.  No transaction is open while anything is on the wire, and never
 * more is leased than can leave at once, so a push that is late is late because
 * of its receiver.  Each channel has its own places: one that hangs for its
 * whole timeout takes none of the others'.
 *
 * Transactions are asynchronous: if a crash takes one away, its pushes are
 * sent again under the same id.  Only where a push tells of something that may
 * itself not be on disk yet (coupons of a distribution) it waits for that.
 *
 * What is known about channels here is a copy, read again when the outbox or a
 * channel has changed and at least each second while there is work.
 *
 * A failed transaction keeps its answers for the next; the places of those
 * that it had leased are looked for anew.  For a while each channel leases in a
 * subtransaction then, so that one with a row that fails stops no other.  A
 * push that cannot even be written down counts as tried: it dies of its
 * attempts and stops nobody.  One whose worker dies is sent again when its lease
 * is over.
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "deliver.h"
#include "duty.h"
#include "lease.h"
#include "render.h"
#include "retry.h"
#include "status.h"
#include "subxact.h"
#include "transfer.h"
#include "wake.h"

#define MAX_LANES 8				/* there are five channels */
#define LEASE_SLACK 10000		/* ms of a lease past the request's timeout */
#define RELOAD_PAUSE 1000		/* ms between two looks at channels under load */
#define RESCAN_PAUSE 1000		/* ms between two looks at the queue from its head */
#define RESCAN_SHARE 10			/* ... or so many times what such a look takes */
#define OVERTAKEN 100			/* ms by which commits are out of order as a rule */
#define LONGEST_PAUSE 60000		/* ms; then the queue is looked at anyhow */
#define CAREFUL_TIME 60000		/* ms after an error with subtransactions */
#define FAILED_PAUSE 5000		/* ms for a channel that failed in one */
#define ANSWERS_WAIT 20			/* ms that an answer waits for others */
#define PORTION 2				/* that part of a window is worth a transaction */

/* What this process knows of a channel; the place among lanes never changes. */
typedef struct Lane
{
	char		name[NAMEDATALEN];
	const LeaseChannel *channel;	/* NULL: not set up, off, or not for us */
	TimestampTz version;		/* of the channel's row that the pace is for */
	RetryPace	pace;
	int			in_flight;
	TimestampTz from;			/* earlier pushes were looked for before */
	TimestampTz scanned_at;		/* when that was from the beginning */
	int			rescan_pause;	/* ms until that is to be done again */
	TimestampTz look_at;		/* when the queue may have something for us */
} Lane;

/* A request in flight. */
typedef struct Flight
{
	int			lane;
	int			tries;
	TimestampTz version;		/* of the channel's row */
	LeaseAnswer answer;			/* what is known of it so far */
} Flight;

static bool for_mail;
static Lane lanes[MAX_LANES];
static int	nlanes = 0;

static MemoryContext channel_context = NULL;	/* of the copies of channels */
static TimestampTz loaded_at = 0;
static MemoryContext flight_context = NULL; /* of flights and answers */

static LeaseAnswer *answers = NULL; /* to be recorded */
static int	nanswers = 0;
static int	max_answers = 0;
static TimestampTz first_answer_at;
static bool in_work = false;	/* stays true after an error */
static TimestampTz careful_until = 0;

/*
 * DeliverInit prepares this process for mail, or for all other channels.
 */
void
DeliverInit(bool mail)
{
	for_mail = mail;
	flight_context = AllocSetContextCreate(TopMemoryContext, "coupon deliveries",
										   ALLOCSET_DEFAULT_SIZES);
}

static Lane *
LaneOf(const char *name)
{
	for (int i = 0; i < nlanes; i++)
	{
		if (strcmp(lanes[i].name, name) == 0)
			return &lanes[i];
	}
	if (nlanes == MAX_LANES)
		elog(ERROR, "too many channels");
	memset(&lanes[nlanes], 0, sizeof(Lane));
	strlcpy(lanes[nlanes].name, name, NAMEDATALEN);
	RetryPaceInit(&lanes[nlanes].pace);
	return &lanes[nlanes++];
}

static void
SetChannel(Lane *lane, const LeaseChannel *channel)
{
	lane->channel = channel;
	if (lane->version == channel->updated_at)
		return;
	/* It may be another receiver; what was learnt was of the last. */
	lane->version = channel->updated_at;
	RetryPaceInit(&lane->pace);
}

/* Copy the channels that are ours; in a transaction. */
static void
LoadChannels(void)
{
	/* The transaction's, until it is known to be good. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "coupon channels",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	List	   *channels = LeaseChannels();
	bool		any_mail = false;
	ListCell   *lc;

	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, TopMemoryContext);
	if (channel_context != NULL)
		MemoryContextDelete(channel_context);
	channel_context = context;
	for (int i = 0; i < nlanes; i++)
		lanes[i].channel = NULL;
	foreach(lc, channels)
	{
		const LeaseChannel *channel = lfirst(lc);

		if (!channel->enabled)
			continue;
		any_mail |= channel->is_mail;
		if (channel->is_mail == for_mail)
			SetChannel(LaneOf(channel->name), channel);
	}
	if (!for_mail)
		WakeWantMailer(DutySlot(), any_mail);
	loaded_at = GetCurrentTimestamp();
}

static LeaseAnswer *
NewAnswer(void)
{
	if (nanswers == max_answers)
	{
		int			wanted = Max(2 * max_answers, 256);

		if (answers == NULL)
			answers = MemoryContextAlloc(flight_context, wanted * sizeof(LeaseAnswer));
		else
			answers = repalloc(answers, wanted * sizeof(LeaseAnswer));
		max_answers = wanted;
	}
	if (nanswers == 0)
		first_answer_at = GetCurrentTimestamp();
	return &answers[nanswers++];
}

static void
Land(Flight *flight, const TransferResult *result)
{
	Lane	   *lane = &lanes[flight->lane];
	LeaseAnswer *answer = NewAnswer();

	*answer = flight->answer;
	answer->gone = RetryJudge(result, for_mail, flight->tries, answer);
	answer->channel = lane->name;
	answer->version = flight->version;
	if (lane->channel != NULL)
		RetryAdapt(&lane->pace, result, for_mail, lane->channel->max_in_flight);
	lane->in_flight--;
	pfree(flight);
}

static void
Collect(void)
{
	TransferResult result;

	TransferDrive();
	while (TransferNext(&result))
		Land(result.owner, &result);
}

static int
FreePlaces(const Lane *lane)
{
	if (lane->channel == NULL)
		return 0;
	return (int) Min(lane->pace.window, lane->channel->max_in_flight) - lane->in_flight;
}

/* When the answers so far are worth a transaction. */
static TimestampTz
AnswersDueAt(void)
{
	if (nanswers == 0)
		return DT_NOEND;
	return TimestampTzPlusMilliseconds(first_answer_at, ANSWERS_WAIT);
}

/* When a lane has work for a transaction; DT_NOEND: not before a place is free. */
static TimestampTz
LaneDueAt(const Lane *lane)
{
	int			free = FreePlaces(lane);
	TimestampTz due = Max(lane->look_at, lane->pace.not_before);

	if (free <= 0)
		return DT_NOEND;
	/* A few places wait for the answers that are to be recorded, never for others. */
	if (nanswers > 0 && lane->in_flight > 0 &&
		free * PORTION < Min(lane->pace.window, lane->channel->max_in_flight))
		return Max(due, AnswersDueAt());
	return due;
}

static void
Record(bool careful)
{
	if (nanswers == 0)
		return;
	LeaseRecord(answers, nanswers, careful);
	for (int i = 0; i < nanswers; i++)
	{
		if (answers[i].gone &&
			LeaseDisable(answers[i].channel, answers[i].version,
						 "the receiver answered 410 Gone"))
		{
			ereport(LOG,
					(errmsg("coupon channel \"%s\" is switched off: the receiver answered 410 Gone",
							answers[i].channel),
					 errhint("Set it anew, or SELECT coupon_channel_enable('%s').",
							 answers[i].channel)));
			loaded_at = 0;
		}
	}
}

/* When to look again although nobody wakes us; "all" was looked at now. */
static void
PlanNextLook(Lane *lane, TimestampTz now, bool all)
{
	bool		any_due;
	TimestampTz again;

	lane->look_at = LeaseLookAhead(lane->name, all ? DT_NOBEGIN : now, &any_due);
	again = TimestampTzPlusMilliseconds(lane->scanned_at, lane->rescan_pause + 1);
	/* Those due that we did not get are in flight, or another's for a while. */
	if (!all || any_due)
		lane->look_at = Min(lane->look_at, Max(again, now));
	lane->look_at = Min(lane->look_at, TimestampTzPlusMilliseconds(now, LONGEST_PAUSE));
	/* What is committed out of order is found when all is looked at. */
	lane->from = Max(lane->from, TimestampTzPlusMilliseconds(now, -OVERTAKEN));
}

/*
 * Lease for one lane; the pushes live in the memory context given.  A look from
 * the beginning may have to pass all that was delivered since some old snapshot
 * was taken: it is made the more seldom, the longer it takes.
 */
static List *
TakeFor(Lane *lane, MemoryContext context)
{
	TimestampTz now = GetCurrentTimestamp();
	int			free = FreePlaces(lane);
	bool		all = TimestampDifferenceExceeds(lane->scanned_at, now,
												 lane->rescan_pause);
	MemoryContext old;
	List	   *pushes;

	if (all)
	{
		lane->from = DT_NOBEGIN;
		lane->scanned_at = now;
	}
	old = MemoryContextSwitchTo(context);
	pushes = LeaseTake(lane->channel, free, &lane->from,
					   TimestampTzPlusMilliseconds(now, lane->channel->timeout + LEASE_SLACK));
	MemoryContextSwitchTo(old);
	if (list_length(pushes) == free)
		lane->look_at = 0;
	else
		PlanNextLook(lane, now, all);
	if (all)
		lane->rescan_pause = Max(RESCAN_PAUSE, RESCAN_SHARE *
								 TimestampDifferenceMilliseconds(now, GetCurrentTimestamp()));
	return pushes;
}

/* What TakeIsolated asks for, and gets. */
typedef struct Taking
{
	Lane	   *lane;
	MemoryContext context;
	List	   *pushes;
} Taking;

static bool
Take(void *arg)
{
	Taking	   *taking = arg;

	taking->pushes = TakeFor(taking->lane, taking->context);
	return true;
}

/* TakeFor, but an error is this lane's alone. */
static List *
TakeIsolated(Lane *lane, MemoryContext context)
{
	Taking		taking = {lane, context, NIL};
	ErrorData  *error;
	TimestampTz now;

	if (SubxactRun(Take, &taking, &error))
		return taking.pushes;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);	/* we are to leave */
	StatusSetError(DutySlot(), psprintf("channel %s: %s", lane->name, error->message));
	now = GetCurrentTimestamp();
	lane->scanned_at = 0;
	lane->look_at = TimestampTzPlusMilliseconds(now, FAILED_PAUSE);
	careful_until = TimestampTzPlusMilliseconds(now, CAREFUL_TIME);
	return NIL;
}

/* A reminder is of no use when the sale has begun, or is no more. */
static bool
IsTooLate(const RenderPush *push)
{
	return strcmp(push->kind, "reminder") == 0 &&
		(!push->has_start || push->start <= GetCurrentTimestamp());
}

/*
 * Whom a mail goes to, up to a NULL: more than one where it was cut for a
 * channel of another kind.  A user id is an address for gateways only.
 */
static const char **
Mailboxes(const RenderPush *push)
{
	const char **list = palloc((push->nrecipients + 1) * sizeof(char *));
	int			n = 0;

	for (int i = 0; i < push->nrecipients; i++)
	{
		const char *address = push->recipients[i].address;

		if (address != NULL && RenderIsMailAddress(address))
			list[n++] = address;
	}
	list[n] = NULL;
	return list;
}

/* Why it can never be sent, NULL if it can. */
static const char *
WhatIsBroken(const LeasedPush *leased)
{
	if (leased->broken == NULL && for_mail && Mailboxes(&leased->push)[0] == NULL)
		return "the user has no mail address: see coupon_contact_set";
	return leased->broken;
}

/* One that cannot be written down, as if its receiver had refused it. */
static void
CountAsFailed(const LeasedPush *leased, const LeaseAnswer *known, MemoryContext context)
{
	TransferResult result = {.status = 0, .retry_after = -1};
	LeaseAnswer *answer;
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	/* not within a character */
	strlcpy(result.error, error->message,
			pg_mbcliplen(error->message, strlen(error->message),
						 sizeof(result.error) - 1) + 1);
	FreeErrorData(error);
	answer = NewAnswer();
	*answer = *known;
	(void) RetryJudge(&result, for_mail, leased->tries, answer);
}

static void
HandOver(const LeaseChannel *channel, const LeasedPush *leased, Flight *flight)
{
	TransferRequest request = {channel->endpoint, channel->username, channel->password,
	channel->timeout};
	StringInfoData body;
	const char **headers = NULL;

	initStringInfo(&body);
	if (for_mail)
	{
		RenderMail(&leased->push, channel->render, flight->answer.sent_at, &body);
		request.mail_from = channel->render->mail_from;
		request.mail_to = Mailboxes(&leased->push);
	}
	else
	{
		RenderRequest(&leased->push, channel->render, flight->answer.sent_at, &body,
					  &headers);
		request.headers = (const char *const *) headers;
	}
	request.body = body.data;
	request.body_length = body.len;
	TransferStart(&request, flight);
}

/* Send one push; whatever goes wrong is its own misfortune. */
static void
Send(Lane *lane, const LeasedPush *leased)
{
	MemoryContext context = CurrentMemoryContext;
	LeaseAnswer known = {.tid = leased->tid, .id = leased->push.id, .attempts = leased->attempts,
	.sent_at = GetCurrentTimestamp()};
	const char *broken;
	Flight	   *flight;

	broken = WhatIsBroken(leased);
	if (broken != NULL || IsTooLate(&leased->push))
	{
		known.verdict = broken != NULL ? LEASE_DEAD : LEASE_MISSED;
		if (broken != NULL)
			strlcpy(known.error, broken, sizeof(known.error));
		known.sent_at = DT_NOBEGIN;
		*NewAnswer() = known;
		return;
	}
	flight = MemoryContextAlloc(flight_context, sizeof(Flight));
	flight->lane = lane - lanes;
	flight->tries = leased->tries;
	flight->version = lane->channel->updated_at;
	flight->answer = known;
	PG_TRY();
	{
		HandOver(lane->channel, leased, flight);
		lane->in_flight++;
	}
	PG_CATCH();
	{
		pfree(flight);
		CountAsFailed(leased, &known, context);
	}
	PG_END_TRY();
}

/* Look everywhere again: what a failed transaction had leased is free. */
static void
StartAnew(void)
{
	for (int i = 0; i < nlanes; i++)
		lanes[i].look_at = lanes[i].scanned_at = 0;
	loaded_at = 0;
}

/* One transaction, and what it has leased leaves. */
static void
Work(void)
{
	MemoryContext turn = CurrentMemoryContext;
	TimestampTz now = GetCurrentTimestamp();
	List	   *taken[MAX_LANES] = {NIL};
	ListCell   *lc;

	if (in_work)
	{
		StartAnew();
		careful_until = TimestampTzPlusMilliseconds(now, CAREFUL_TIME);
	}
	in_work = true;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	Record(now < careful_until);
	if (TimestampDifferenceExceeds(loaded_at, now, RELOAD_PAUSE))
		LoadChannels();
	for (int i = 0; i < nlanes; i++)
	{
		if (LaneDueAt(&lanes[i]) > now)
			continue;
		taken[i] = now < careful_until ? TakeIsolated(&lanes[i], turn) :
			TakeFor(&lanes[i], turn);
		foreach(lc, taken[i])
		{
			if (((LeasedPush *) lfirst(lc))->asynchronous)
				ForceSyncCommit();
		}
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(turn);
	in_work = false;
	nanswers = 0;

	for (int i = 0; i < nlanes; i++)
	{
		foreach(lc, taken[i])
			Send(&lanes[i], lfirst(lc));
	}
}

/* When there is work for a transaction. */
static TimestampTz
WorkDueAt(void)
{
	TimestampTz due = AnswersDueAt();

	/* Rows may come without a word: from PREPARE TRANSACTION, or a restore. */
	due = Min(due, TimestampTzPlusMilliseconds(loaded_at, LONGEST_PAUSE));

	for (int i = 0; i < nlanes; i++)
		due = Min(due, LaneDueAt(&lanes[i]));
	return due;
}

static void
ForgetMoments(void)
{
	StartAnew();
	first_answer_at = careful_until = 0;
	for (int i = 0; i < nlanes; i++)
		lanes[i].pace.not_before = 0;
}

/* Collect answers, work if it is time, and say when to come again. */
static long
Turn(void)
{
	static TimestampTz last = 0;
	long		ms;

	if (DutyClockWentBack(&last))
		ForgetMoments();		/* they may lie far ahead */
	Collect();
	if (in_work || WorkDueAt() <= GetCurrentTimestamp())
	{
		Work();
		Collect();
	}
	ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), WorkDueAt());
	if (TransferTimeout() >= 0)
		ms = Min(ms, TransferTimeout());
	return ms;
}

/*
 * DeliverDuty is a duty of workers and mailers: it looks into the outbox, and
 * sends.
 */
long
DeliverDuty(bool woken)
{
	if (woken)
	{
		loaded_at = 0;
		for (int i = 0; i < nlanes; i++)
			lanes[i].look_at = 0;
	}
	return Turn();
}

/* DeliverAnswers is the duty for the socket: answers have come. */
long
DeliverAnswers(bool woken)
{
	return Turn();
}
