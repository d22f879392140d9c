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
#include "bgworker/delivery/decide.h"
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
#define READ_TIME 50			/* ms of a turn for what answers say */
#define FAILURE_KEPT 8192		/* bytes of its body */

/* A request in flight. */
typedef struct Flight
{
	ChannelWindow	   *window;
	OutboxClass class;
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
static int	nrecorded = 0;		/* the first of them, in the transaction that is open */
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

/* Of a failure its beginning, for people. */
static void
KeepBody(LeaseAnswer *answer, const TransferResult *result)
{
	size_t		length = answer->to_judge ? result->body_length : Min(result->body_length, FAILURE_KEPT);

	if (length == 0)
		return;
	answer->body = MemoryContextAlloc(flight_context, length);
	memcpy(answer->body, result->body, length);
	answer->body_length = length;
	answer->body_cut = length < result->body_length;
}

static void
Land(Flight *flight, const TransferResult *result)
{
	ChannelWindow	   *window = flight->window;
	LeaseAnswer *answer = NewAnswer();
	RetryAbout	about = ABOUT_CHANNEL;
	/* What has been set anew meanwhile may be another receiver. */
	bool		same = window->channel != NULL && flight->version == window->version;

	*answer = flight->answer;
	if (same)
		about = RetryWhom(&window->pace, window->channel, result->status, flight->recipient);
	answer->gone = RetryJudge(result, for_mail, about, answer);
	answer->channel = window->name;
	answer->version = flight->version;
	answer->to_judge = answer->verdict == LEASE_DELIVERED && same && AnswerIsJudged(window->channel);
	if (answer->to_judge || answer->verdict != LEASE_DELIVERED)
		KeepBody(answer, result);
	if (same && about == ABOUT_CHANNEL)
		RetryAdapt(&window->pace, result, for_mail, window->channel->max_in_flight, answer->sent_at);
	/* What is to be judged keeps its place, or a slow judge would have ever more to do. */
	answer->has_place = answer->to_judge;
	answer->class = flight->class;
	if (!answer->has_place)
		window->in_flight[flight->class]--;
	pfree(flight);
}

static void
Collect(void)
{
	TransferResult result;

	TransferDrive();
	while (TransferNext(&result))
	{
		Land(result.owner, &result);
		free(result.body);
	}
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

/* When those are tried again whom the answer to a success names; not at all after too many times. */
static void
JudgeAgain(LeaseAnswer *answer)
{
	LeaseAnswer one = *answer;

	RetryRefused(&one);
	answer->next_at = one.next_at;
	if (one.verdict == LEASE_DEAD)
		AnswerGiveUpAgain(answer);
}

/*
 * What the body of an answer says, where the channel is still as it was; else the status
 * alone counts, and of the body nothing is kept, since its secrets are not known.
 */
static void
ReadAnswer(LeaseAnswer *answer)
{
	const LeaseChannel *channel = NULL;

	answer->text = NULL;
	answer->dead.n = answer->again.n = 0;
	if (answer->body == NULL && !answer->to_judge)
		return;
	for (int i = 0; i < WindowCount(); i++)
	{
		ChannelWindow *window = WindowAt(i);

		if (strcmp(window->name, answer->channel) != 0)
			continue;
		if (answer->has_place)
			window->in_flight[answer->class]--;
		answer->has_place = false;
		if (window->version == answer->version)
			channel = window->channel;
	}
	if (channel == NULL)
		return;
	AnswerKeepText(channel, answer);
	if (!answer->to_judge)
		return;
	answer->verdict = LEASE_DELIVERED;
	answer->error[0] = '\0';
	if (!AnswerJudgeBody(channel, answer))
		RetryRefused(answer);
	else if (answer->again.n > 0)
		JudgeAgain(answer);
}

static void
Record(bool careful)
{
	static const LeaseOrigin origin = {RemindGiveBack, RemindMove};
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), READ_TIME);

	nrecorded = 0;
	while (nrecorded < nanswers && (nrecorded == 0 || GetCurrentTimestamp() < until))
		ReadAnswer(&answers[nrecorded++]);
	if (nrecorded == 0)
		return;
	LeaseRecord(answers, nrecorded, careful, &origin);
	for (int i = 0; i < nrecorded; i++)
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

/* Those that are recorded; the others wait until their rows are free, or for the next turn. */
static void
ForgetRecorded(void)
{
	int			n = 0;

	for (int i = 0; i < nrecorded; i++)
	{
		if (answers[i].held)
			answers[n++] = answers[i];
		else if (answers[i].body != NULL)
			pfree(answers[i].body);
	}
	nheld = n;
	for (int i = nrecorded; i < nanswers; i++)
		answers[n++] = answers[i];
	nanswers = n;
	nrecorded = 0;
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
	(void) RetryJudge(&result, for_mail, ABOUT_CHANNEL, answer);
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
		request.mail_to = DecideMailboxes(&leased->notification);
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

/* Send one notification; whatever goes wrong is its own misfortune. */
static void
Send(ChannelWindow *window, const LeasedNotification *leased)
{
	MemoryContext context = CurrentMemoryContext;
	LeaseAnswer known = {.id = leased->notification.id, .attempts = leased->attempts,
	.tries = leased->tries, .sent_at = GetCurrentTimestamp()};
	Flight	   *flight;

	if (DecideUnsent(leased, window->channel, &known))
	{
		*NewAnswer() = known;
		WindowBeganNone(window);
		return;
	}
	flight = MemoryContextAlloc(flight_context, sizeof(Flight));
	flight->window = window;
	flight->class = leased->class;
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
		WindowAt(i)->pace.not_before = WindowAt(i)->pace.failed_at = WindowAt(i)->allowed_at = 0;
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
