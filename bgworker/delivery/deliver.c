/*
 * deliver.c
 *		Sends what waits in the outbox: lease, network, record.
 *
 * A turn collects what libcurl has finished.  When enough has come together,
 * one short transaction records these answers and leases as many notifications as
 * there are free places in flight; after its commit they are handed to
 * libcurl.  No transaction is open while anything is on the wire, and never
 * more is leased than can leave at once, so a notification that is late is late because
 * of its receiver.  Each channel has its own places: one that hangs for its
 * whole timeout takes none of the others' (channel_window.c).
 *
 * Transactions are asynchronous: if a crash takes one away, its notifications are
 * sent again under the same id.  Only where a notification tells of something that may
 * itself not be on disk yet (coupons of a distribution) it waits for that.
 *
 * What is known about channels here is a copy, read again when the outbox or a
 * channel has changed and at least each second while there is work.
 *
 * A failed transaction keeps its answers for the next; the places of those
 * that it had leased are looked for anew.  For a while each channel leases in a
 * subtransaction then, so that one with a row that fails stops no other.  A
 * notification that cannot even be written down counts as tried: it dies of its
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

#include "base/subxact.h"
#include "base/worker_slots.h"
#include "bgworker/base/process.h"
#include "bgworker/curl/transfer.h"
#include "bgworker/delivery/channel_window.h"
#include "bgworker/delivery/deliver.h"
#include "bgworker/delivery/retry.h"
#include "notification/lease.h"
#include "remind/remind.h"
#include "render/request.h"

#define RELOAD_PAUSE 1000		/* ms between two looks at channels under load */
#define LONGEST_PAUSE 60000		/* ms; then the queue is looked at anyhow */
#define CAREFUL_TIME 60000		/* ms after an error with subtransactions */
#define FAILED_PAUSE 5000		/* ms for a channel that failed in one */
#define ANSWERS_WAIT 20			/* ms that an answer waits for others */
#define HELD_WAIT 1000			/* ms until one is tried again whose row is held */
#define LOOK_AGAIN 5000			/* ms until its template is looked for again, at least */
#define LOOK_AGAIN_MOST (10 * 60 * 1000)
#define LONGEST_WAIT (24 * 60 * 60 * 1000)	/* ms for that, all together */

/* A request in flight. */
typedef struct Flight
{
	ChannelWindow	   *window;
	OutboxClass class;
	int			tries;
	int64		recipient;		/* the first of it; of a test the notification */
	TimestampTz version;		/* of the channel's row */
	LeaseAnswer answer;			/* what is known of it so far */
} Flight;

static bool for_mail;
static TimestampTz loaded_at = 0;	/* the windows have copies of channels from then */
static MemoryContext flight_context = NULL; /* of flights and answers */

static LeaseAnswer *answers = NULL; /* to be recorded */
static int	nanswers = 0;
static int	nheld = 0;		/* the first of them: others hold their rows */
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

/* Copy the channels that are ours; in a transaction. */
static void
LoadChannels(void)
{
	bool		any_mail = WindowLoadChannels(for_mail);

	if (!for_mail)
		SlotWantMailer(ProcessSlot(), any_mail);
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
	if (nanswers == nheld)
		first_answer_at = GetCurrentTimestamp();
	return &answers[nanswers++];
}

static void
Land(Flight *flight, const TransferResult *result)
{
	ChannelWindow	   *window = flight->window;
	LeaseAnswer *answer = NewAnswer();
	RetryAbout	about = ABOUT_CHANNEL;

	*answer = flight->answer;
	if (window->channel != NULL)
		about = RetryWhom(&window->pace, window->channel, result->status, flight->recipient);
	answer->gone = RetryJudge(result, for_mail, about, flight->tries, answer);
	answer->channel = window->name;
	answer->version = flight->version;
	/* What has been set anew meanwhile may be another receiver. */
	if (window->channel != NULL && flight->version == window->version && about == ABOUT_CHANNEL)
		RetryAdapt(&window->pace, result, for_mail, window->channel->max_in_flight);
	window->in_flight[flight->class]--;
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

/* When the answers so far are worth a transaction. */
static TimestampTz
AnswersDueAt(void)
{
	if (nanswers == 0)
		return DT_NOEND;
	return TimestampTzPlusMilliseconds(first_answer_at,
									   nanswers > nheld ? ANSWERS_WAIT : HELD_WAIT);
}

/*
 * When a window is worth a transaction; DT_NOEND: not before a place is free.  A
 * few places wait for the answers that are to be recorded, never for others.
 */
static TimestampTz
WindowDueAt(const ChannelWindow *window)
{
	TimestampTz ready = WindowReadyAt(window);

	if (ready == DT_NOEND || nanswers == nheld || WindowHasPortion(window))
		return ready;
	return Max(ready, AnswersDueAt());
}

static void
Record(bool careful)
{
	if (nanswers == 0)
		return;
	LeaseRecord(answers, nanswers, careful, RemindGiveBack);
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

/* Those that are recorded; the others wait until their rows are free. */
static void
ForgetRecorded(void)
{
	nheld = 0;
	for (int i = 0; i < nanswers; i++)
	{
		if (answers[i].held)
			answers[nheld++] = answers[i];
	}
	nanswers = nheld;
	first_answer_at = GetCurrentTimestamp();
}

/* What TakeIsolated asks for, and gets. */
typedef struct Taking
{
	ChannelWindow	   *window;
	MemoryContext context;
	List	   *notifications;
} Taking;

static bool
Take(void *arg)
{
	Taking	   *taking = arg;

	taking->notifications = WindowTake(taking->window, taking->context);
	return true;
}

/* WindowTake, but an error is this window's alone. */
static List *
TakeIsolated(ChannelWindow *window, MemoryContext context)
{
	Taking		taking = {window, context, NIL};
	ErrorData  *error;
	TimestampTz now;

	if (SubxactRun(Take, &taking, &error))
		return taking.notifications;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);	/* we are to leave */
	SlotSetError(ProcessSlot(), psprintf("channel %s: %s", window->name, error->message));
	now = GetCurrentTimestamp();
	WindowLookAgain(window, true);
	window->rests_until = TimestampTzPlusMilliseconds(now, FAILED_PAUSE);
	careful_until = TimestampTzPlusMilliseconds(now, CAREFUL_TIME);
	return NIL;
}

static bool
IsReminder(const RenderEvent *event)
{
	return strcmp(event->kind, "reminder") == 0;
}

/*
 * A reminder is of no use when the sale has begun.  A template that is not there may yet
 * come, with the rest of a restore, or has been deleted.
 */
static bool
IsTooLate(const LeasedNotification *leased, TimestampTz now)
{
	const RenderEvent *event = leased->notification.event;

	if (event->template_id != 0 && !event->template_found)
		return TimestampDifferenceExceeds(leased->due_at, now, LONGEST_WAIT);
	return IsReminder(event) &&
		(event->template_id == 0 || (event->has_start && event->start <= now));
}

/*
 * A reminder whose sale was put off since, or is not published, is given back: it fires
 * again when it is time.
 */
static bool
IsForLater(const RenderEvent *event, TimestampTz now)
{
	return IsReminder(event) && event->template_found &&
		(!event->published || TIMESTAMP_IS_NOEND(event->start) ||
		 event->start - now > (event->minutes + 1) * USECS_PER_MINUTE);
}

/* When a template that is not there is looked for again: the longer it took, the later. */
static TimestampTz
LookAgainAt(const LeasedNotification *leased, TimestampTz now)
{
	long		waited = TimestampDifferenceMilliseconds(leased->due_at, now);

	return TimestampTzPlusMilliseconds(now, Min(Max(waited / 4, LOOK_AGAIN), LOOK_AGAIN_MOST));
}

/*
 * Whom a mail goes to, up to a NULL: more than one where it was cut for a
 * channel of another kind.  A user id is an address for gateways only.
 */
static const char **
Mailboxes(const RenderNotification *notification)
{
	const char **list = palloc((notification->nrecipients + 1) * sizeof(char *));
	int			n = 0;

	for (int i = 0; i < notification->nrecipients; i++)
	{
		const char *address = notification->recipients[i].address;

		if (address != NULL && RenderIsMailAddress(address))
			list[n++] = address;
	}
	list[n] = NULL;
	return list;
}

/* Why it can never be sent, NULL if it can. */
static const char *
WhatIsBroken(const LeasedNotification *leased)
{
	if (leased->broken == NULL && for_mail && Mailboxes(&leased->notification)[0] == NULL)
		return "the user has no mail address: see coupon_contact_set";
	return leased->broken;
}

/* One that cannot be written down, as if its receiver had refused it. */
static void
CountAsFailed(const LeasedNotification *leased, const LeaseAnswer *known, MemoryContext context)
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
	(void) RetryJudge(&result, for_mail, ABOUT_CHANNEL, leased->tries, answer);
}

static void
HandOver(const LeaseChannel *channel, const LeasedNotification *leased, Flight *flight)
{
	TransferRequest request = {channel->endpoint, channel->username, channel->password,
	channel->timeout, channel->require_tls};
	StringInfoData body;
	const char **headers = NULL;

	initStringInfo(&body);
	if (for_mail)
	{
		RenderMail(&leased->notification, channel->render, flight->answer.sent_at, &body);
		request.mail_from = channel->render->mail_from;
		request.mail_to = Mailboxes(&leased->notification);
	}
	else
	{
		RenderRequest(&leased->notification, channel->render, flight->answer.sent_at, &body,
					  &headers);
		request.headers = (const char *const *) headers;
	}
	request.body = body.data;
	request.body_length = body.len;
	TransferStart(&request, flight);
}

/* Whether there is nothing to send, or not now; the answer says what becomes of it. */
static bool
IsDecided(const LeasedNotification *leased, LeaseAnswer *answer)
{
	const RenderEvent *event = leased->notification.event;
	TimestampTz now = answer->sent_at;
	const char *reason = WhatIsBroken(leased);

	if (reason != NULL)
		answer->verdict = LEASE_DEAD;
	else if (IsTooLate(leased, now))
		answer->verdict = LEASE_MISSED;
	else if (IsForLater(event, now))
		answer->verdict = LEASE_GIVE_BACK;
	else if (event->template_id != 0 && !event->template_found)
	{
		reason = "its template is not there";
		answer->verdict = LEASE_RETRY;
		answer->untried = true;
		answer->next_at = LookAgainAt(leased, now);
	}
	else
		return false;
	answer->sent_at = DT_NOBEGIN;
	if (reason != NULL)
		strlcpy(answer->error, reason, sizeof(answer->error));
	return true;
}

/* Send one notification; whatever goes wrong is its own misfortune. */
static void
Send(ChannelWindow *window, const LeasedNotification *leased)
{
	MemoryContext context = CurrentMemoryContext;
	LeaseAnswer known = {.id = leased->notification.id, .attempts = leased->attempts,
	.sent_at = GetCurrentTimestamp()};
	Flight	   *flight;

	if (IsDecided(leased, &known))
	{
		*NewAnswer() = known;
		return;
	}
	flight = MemoryContextAlloc(flight_context, sizeof(Flight));
	flight->window = window;
	flight->class = leased->class;
	flight->tries = leased->tries;
	flight->recipient = leased->recipients[0].user_id != 0 ? leased->recipients[0].user_id : known.id;
	flight->version = window->channel->updated_at;
	flight->answer = known;
	PG_TRY();
	{
		HandOver(window->channel, leased, flight);
		window->in_flight[flight->class]++;
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
	for (int i = 0; i < WindowCount(); i++)
		WindowLookAgain(WindowAt(i), true);
	loaded_at = 0;
}

/* One transaction, and what it has leased leaves. */
static void
Work(void)
{
	MemoryContext turn = CurrentMemoryContext;
	TimestampTz now = GetCurrentTimestamp();
	List	   *taken[WINDOW_MOST] = {NIL};
	ListCell   *lc;

	if (in_work)
	{
		StartAnew();
		careful_until = TimestampTzPlusMilliseconds(now, CAREFUL_TIME);
	}
	in_work = true;
	WindowForgetLeased();		/* by one that failed */
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	Record(now < careful_until);
	if (TimestampDifferenceExceeds(loaded_at, now, RELOAD_PAUSE))
		LoadChannels();
	for (int i = 0; i < WindowCount(); i++)
	{
		ChannelWindow	   *window = WindowAt(i);

		/* With all answers recorded, also those for whom few places are free. */
		if (WindowReadyAt(window) > now || ProcessIsLeaving())
			continue;
		taken[i] = now < careful_until ? TakeIsolated(window, turn) : WindowTake(window, turn);
		foreach(lc, taken[i])
		{
			if (((LeasedNotification *) lfirst(lc))->asynchronous)
				ForceSyncCommit();
		}
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(turn);
	in_work = false;
	ForgetRecorded();

	for (int i = 0; i < WindowCount(); i++)
	{
		foreach(lc, taken[i])
			Send(WindowAt(i), lfirst(lc));
	}
	WindowForgetLeased();
}

/* When there is work for a transaction. */
static TimestampTz
WorkDueAt(void)
{
	TimestampTz due = AnswersDueAt();

	/* Rows may come without a word: from PREPARE TRANSACTION, or a restore. */
	due = Min(due, TimestampTzPlusMilliseconds(loaded_at, LONGEST_PAUSE));

	for (int i = 0; i < WindowCount(); i++)
		due = Min(due, WindowDueAt(WindowAt(i)));
	return due;
}

static void
ForgetMoments(void)
{
	StartAnew();
	first_answer_at = careful_until = 0;
	for (int i = 0; i < WindowCount(); i++)
		WindowAt(i)->pace.not_before = 0;
}

/* Collect answers, work if it is time, and say when to come again. */
static long
Turn(void)
{
	static TimestampTz last = 0;
	long		ms;

	if (ProcessClockWentBack(&last))
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
 * DeliverJob is a job of workers and mailers: it looks into the outbox, and
 * sends.
 */
long
DeliverJob(bool woken)
{
	if (woken)
	{
		loaded_at = 0;
		for (int i = 0; i < WindowCount(); i++)
			WindowLookAgain(WindowAt(i), false);
	}
	return Turn();
}

/*
 * DeliverIsIdle tells whether nothing is on its way, and all answers are recorded.
 */
bool
DeliverIsIdle(void)
{
	return TransferInFlight() == 0 && AnswersDueAt() == DT_NOEND;
}

/* DeliverAnswers is the job for the socket: answers have come. */
long
DeliverAnswers(bool woken)
{
	return Turn();
}
