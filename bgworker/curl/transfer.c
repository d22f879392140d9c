/*
 * transfer.c
 *		Messages on their way through libcurl, many at once.
 *
 * libcurl's multi interface is driven by sockets: it tells which it waits for,
 * and they are collected in one epoll descriptor (bgworker/curl/socket.c), which
 * the process can wait for beside its latch.  Connections are kept and used
 * again, and so are libcurl's handles, with the memory for headers and body: a
 * transfer like the one before it allocates nothing here.
 *
 * Handles live in static variables of the process and are made when it starts
 * its first transfer: nothing of libcurl exists in the postmaster or in shared
 * memory.  libcurl may start threads to resolve names.  They inherit the
 * signal mask, so signals are blocked around its calls: no thread but ours may
 * run a handler.
 *
 * Nothing may jump out of libcurl: the callbacks neither allocate memory of
 * PostgreSQL nor raise errors.
 *
 * What a receiver can do to us is bounded (bgworker/curl/answer.c).  Redirects are
 * not followed, and every address is looked at when it is connected to, and
 * again when a kept connection is used (ipaddr.c).
 *
 * libcurl sends a request again by itself if a connection that was kept is
 * closed by the receiver before anything was answered: once over another that
 * was kept, and then over a new one.  The newer versions look at most once a
 * second whether a kept connection is still open.
 *
 * SMTP: libcurl waits inside its calls while it ends a mail or a connection,
 * and everything else would wait with it.  So a mail has a process of its own
 * (bgworker/curl/mail_process.c).
 */
#include "postgres.h"

#include <signal.h>
#include <sys/epoll.h>

#include "libpq/pqsignal.h"
#include "portability/instr_time.h"
#include "utils/memutils.h"

#include "base/guc.h"
#include "bgworker/curl/handle.h"

#define KEEP_BUFFER		(64 * 1024) /* larger ones are freed after use */
#define LEAST_KEPT		64		/* connections that are kept in any case */
#define EVENTS			256		/* sockets that are looked at in one go */
#define LOOKS			8		/* of that, at most, before timeouts are judged */
#define LATE			50		/* ms behind the timer */
#define ROUNDS			4		/* of all that, until the caller has its turn */

static CURLM *multi = NULL;
static MemoryContext context = NULL;
static dlist_head unused[2];	/* by "mail" */
static dlist_head in_flight;
static dlist_head over;			/* libcurl has no more to do with them */
static int	in_flight_count = 0;
static int	most_in_flight = 0;
static char *ca_file = NULL;	/* the setting that handles are made with */
static int	generation = 0;		/* how often it has changed */
static bool timer_on = false;
static int64 timer;				/* when libcurl wants to be called, ms */

static int64
Now(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) (INSTR_TIME_GET_MICROSEC(now) / 1000);
}

/* All but SIGQUIT, whose handler only ends the process. */
static void
BlockSignals(sigset_t *saved)
{
	(void) sigprocmask(SIG_SETMASK, &BlockSig, saved);
}

static void
UnblockSignals(const sigset_t *saved)
{
	(void) sigprocmask(SIG_SETMASK, saved, NULL);
}

/* libcurl tells when it wants to be called; -1: not at all. */
static int
TimerChanged(CURLM *which, long timeout, void *data)
{
	timer_on = timeout >= 0;
	if (timer_on)
		timer = Now() + timeout;
	return 0;
}

static void
MakeMulti(void)
{
	SocketsInit();
	if (context == NULL)
	{
		if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
			ereport(ERROR,
					(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
					 errmsg("could not initialize libcurl")));
		context = AllocSetContextCreate(TopMemoryContext, "coupon transfers",
										ALLOCSET_DEFAULT_SIZES);
	}
	multi = curl_multi_init();
	if (multi == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
				 errdetail("libcurl could not make a multi handle.")));
	(void) curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, SocketsChanged);
	(void) curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, TimerChanged);
	(void) curl_multi_setopt(multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long) SocketsMost());
#if LIBCURL_VERSION_NUM >= 0x081400
	/* GiveUp does not wait for threads of the resolver either. */
	(void) curl_multi_setopt(multi, CURLMOPT_QUICK_EXIT, 1L);
#endif
	most_in_flight = 0;
}

static void
FreeTransfer(Transfer *transfer)
{
	curl_easy_cleanup(transfer->easy);
	curl_url_cleanup(transfer->url);
	AnswerDrop(transfer);
	if (transfer->endpoint)
		pfree(transfer->endpoint);
	if (transfer->buffer)
		pfree(transfer->buffer);
	pfree(transfer);
}

/* Handles that were made with another setting are not used again. */
static void
FollowSettings(void)
{
	const char *wanted = coupon_endpoint_ca_file;

	if (ca_file != NULL && strcmp(ca_file, wanted) == 0)
		return;
	if (ca_file != NULL)
		pfree(ca_file);
	ca_file = NULL;
	ca_file = MemoryContextStrdup(context, wanted);
	generation++;
}

/* A transfer that is not used; it stays in its list. */
static Transfer *
FindUnused(bool mail)
{
	Transfer   *transfer;

	FollowSettings();
	while (!dlist_is_empty(&unused[mail]))
	{
		transfer = dlist_head_element(Transfer, node, &unused[mail]);
		if (transfer->generation == generation)
			return transfer;
		dlist_delete(&transfer->node);
		FreeTransfer(transfer);
	}

	transfer = MemoryContextAllocZero(context, sizeof(Transfer));
	transfer->mail = mail;
	transfer->generation = generation;
	transfer->easy = curl_easy_init();
	transfer->url = curl_url();
	if (transfer->easy == NULL || transfer->url == NULL ||
		RequestPrepare(transfer, ca_file) != CURLE_OK)
	{
		FreeTransfer(transfer);
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
				 errdetail("libcurl could not make a handle.")));
	}
	dlist_push_head(&unused[mail], &transfer->node);
	return transfer;
}

/* Back to those that are not used; others first, whose memory is warmer. */
static void
Recycle(Transfer *transfer)
{
	if (transfer->buffer_size > KEEP_BUFFER)
	{
		pfree(transfer->buffer);
		transfer->buffer = NULL;
		transfer->buffer_size = 0;
	}
	/* It counts for ever how often it had to, and takes no kept ones any more. */
	if (transfer->begun > 1)
		transfer->generation = -1;
	transfer->owner = NULL;
	AnswerDrop(transfer);
	dlist_push_head(&unused[transfer->mail], &transfer->node);
}

/* As many connections are kept as there were transfers at a time. */
static void
KeepConnections(void)
{
	if (in_flight_count <= most_in_flight)
		return;
	most_in_flight = in_flight_count;
	(void) curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS,
							 (long) Min(Max(most_in_flight, LEAST_KEPT), SocketsMost()));
}

/* Give it to libcurl.  Returns why it cannot be, NULL if it could. */
static const char *
Begin(Transfer *transfer, const TransferRequest *request)
{
	const char *why = RequestCheck(request);
	CURLcode	code;
	CURLMcode	multi_code;

	if (why)
		return why;
	code = RequestApply(transfer, request, context);
	if (code == CURLE_OUT_OF_MEMORY)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
				 errdetail("libcurl could not copy a request.")));
	if (code != CURLE_OK)
		return curl_easy_strerror(code);

	if (transfer->mail)
		return MailBegin(transfer, context);
	/* That only notes it: threads come with TransferDrive. */
	multi_code = curl_multi_add_handle(multi, transfer->easy);
	return multi_code == CURLM_OK ? NULL : curl_multi_strerror(multi_code);
}

/*
 * TransferStart puts a message on its way, or among those that have failed.
 * The only errors that it raises are those of a process without memory or
 * descriptors; nothing has been started then.
 */
void
TransferStart(const TransferRequest *request, void *owner)
{
	Transfer   *transfer;
	const char *why;

	if (multi == NULL)
		MakeMulti();
	transfer = FindUnused(RequestIsMail(request));
	AnswerClear(transfer);
	why = Begin(transfer, request);
	transfer->why = why;
	transfer->owner = owner;
	transfer->timeout = request->timeout;
	transfer->started = Now();
	transfer->code = CURLE_FAILED_INIT;
	dlist_delete(&transfer->node);
	dlist_push_tail(why ? &over : &in_flight, &transfer->node);
	in_flight_count++;
	KeepConnections();
}

/* libcurl is broken: all that is in flight has failed, but mails; the next makes it anew. */
static void
GiveUp(CURLMcode code)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &in_flight)
	{
		Transfer   *transfer = dlist_container(Transfer, node, iter.cur);

		if (transfer->mail)
			continue;
		(void) curl_multi_remove_handle(multi, transfer->easy);
		transfer->why = curl_multi_strerror(code);
		dlist_delete(&transfer->node);
		dlist_push_tail(&over, &transfer->node);
	}
	(void) curl_multi_cleanup(multi);
	multi = NULL;
	timer_on = false;
}

static CURLMcode
HandleEvent(const struct epoll_event *event)
{
	int			fd = event->data.fd;
	int			what = 0;
	int			running;

	if (MailIsPipe(fd))
		return CURLM_OK;		/* read by TransferNext */
	if (SocketsNotUsed(fd))
		return CURLM_OK;		/* an idle connection: libcurl looks before use */
	/* Let it find out: told of an error, it does not try a new connection. */
	if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		what |= CURL_CSELECT_IN;
	if (event->events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
		what |= CURL_CSELECT_OUT;
	return curl_multi_socket_action(multi, fd, what, &running);
}

static bool
TimerIsDue(void)
{
	return timer_on && timer <= Now();
}

/* One look at sockets; "more" tells whether another may find more. */
static CURLMcode
ServeSockets(bool *more)
{
	struct epoll_event events[EVENTS];
	CURLMcode	code = CURLM_OK;
	int			n = epoll_wait(SocketsDescriptor(), events, EVENTS, 0);

	for (int i = 0; i < n && code == CURLM_OK; i++)
		code = HandleEvent(&events[i]);
	*more = n == EVENTS;
	return code;
}

/* How long a request may take, in all, before libcurl ends it; it asks at each step. */
static void
SetTimeout(Transfer *transfer, int64 ms)
{
	(void) curl_easy_setopt(transfer->easy, CURLOPT_TIMEOUT_MS, (long) ms);
}

/* Nothing times out for a moment. */
static void
HoldTimeouts(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &in_flight)
	{
		Transfer   *transfer = dlist_container(Transfer, node, iter.cur);

		if (!transfer->mail)
			SetTimeout(transfer, Now() - transfer->started + transfer->timeout);
	}
}

/* Put aside what libcurl has finished. */
static void
TakeFinished(void)
{
	CURLMsg    *message;
	Transfer   *transfer;
	int			left;

	while (multi != NULL && (message = curl_multi_info_read(multi, &left)) != NULL)
	{
		CURL	   *easy = message->easy_handle;
		CURLcode	code = message->data.result;	/* gone with the handle */

		if (message->msg != CURLMSG_DONE)
			continue;
		(void) curl_easy_getinfo(easy, CURLINFO_PRIVATE, (void **) &transfer);
		(void) curl_multi_remove_handle(multi, easy);
		transfer->code = code;
		dlist_delete(&transfer->node);
		dlist_push_tail(&over, &transfer->node);
	}
}

/* What is not over by now has timed out if its time is up: libcurl may have forgotten its timer. */
static void
JudgeTimeouts(void)
{
	dlist_mutable_iter iter;

	TakeFinished();
	dlist_foreach_modify(iter, &in_flight)
	{
		Transfer   *transfer = dlist_container(Transfer, node, iter.cur);

		if (transfer->mail)
			continue;
		if (Now() - transfer->started < transfer->timeout)
			SetTimeout(transfer, transfer->timeout);
		else
		{
			(void) curl_multi_remove_handle(multi, transfer->easy);
			transfer->why = "the request has timed out";
			dlist_delete(&transfer->node);
			dlist_push_tail(&over, &transfer->node);
		}
	}
}

/*
 * Sockets, and then the timer; "more" tells whether another round may find more.
 *
 * libcurl ends a request whose time is up before it looks whether the answer is there.  So
 * where nobody was here when the timer was due, since this process waited for a lock, say,
 * what lies there is read first: else a request that was answered would be sent again.
 */
static CURLMcode
Round(bool *more)
{
	CURLMcode	code = CURLM_OK;
	bool		late = timer_on && Now() - timer > LATE;
	bool		unread = true;
	int			running;

	if (late)
		HoldTimeouts();
	for (int i = 0; i < LOOKS && unread && code == CURLM_OK; i++)
		code = ServeSockets(&unread);
	if (late && code == CURLM_OK)
		JudgeTimeouts();
	if (code == CURLM_OK && TimerIsDue())
	{
		timer_on = false;
		code = curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
	}
	*more = unread || TimerIsDue();
	return code;
}

/*
 * TransferDrive lets libcurl do what it can without waiting.
 */
void
TransferDrive(void)
{
	CURLMcode	code = CURLM_OK;
	bool		more = true;
	sigset_t	saved;

	if (multi == NULL)
		return;
	BlockSignals(&saved);
	for (int i = 0; i < ROUNDS && more && code == CURLM_OK; i++)
		code = Round(&more);
	if (code != CURLM_OK)
		GiveUp(code);
	UnblockSignals(&saved);
	SocketsReserve();
}

/*
 * TransferMost returns how many messages may be on their way at a time, so that
 * descriptors are left for PostgreSQL's own files.
 */
int
TransferMost(void)
{
	return SocketsMost();
}

/*
 * TransferInFlight returns how many are started and not yet taken.
 */
int
TransferInFlight(void)
{
	return in_flight_count;
}

/*
 * TransferSocket returns a descriptor that is readable when TransferDrive has
 * work; -1 before the first transfer, and the same one ever after.
 */
int
TransferSocket(void)
{
	return SocketsDescriptor();
}

/*
 * TransferTimeout returns in how many milliseconds TransferDrive or
 * TransferNext has work even if the descriptor stays silent; -1: it has not.
 */
long
TransferTimeout(void)
{
	int64		now;

	if (!dlist_is_empty(&over))
		return 0;
	if (!timer_on)
		return -1;
	now = Now();
	return timer <= now ? 0 : (long) (timer - now);
}

/* It is over, and can be used again. */
static void
Finish(Transfer *transfer)
{
	dlist_delete(&transfer->node);
	in_flight_count--;
	Recycle(transfer);
}

/*
 * TransferNext takes the next transfer that is over.  False: none is, now.
 */
bool
TransferNext(TransferResult *result)
{
	Transfer   *transfer;

	if (dlist_is_empty(&over))
		TakeFinished();
	if (!dlist_is_empty(&over))
	{
		transfer = dlist_head_element(Transfer, node, &over);
		AnswerJudge(transfer, transfer->code, result);
		Finish(transfer);
		return true;
	}
	transfer = MailNext(result);
	if (transfer == NULL)
		return false;
	Finish(transfer);
	return true;
}

/*
 * TransferForgetAll stops whatever is in flight.  Owners are not told.
 * Connections that are idle are kept.
 */
void
TransferForgetAll(void)
{
	sigset_t	saved;

	MailForgetAll();
	if (in_flight_count == 0)
		return;
	BlockSignals(&saved);
	while (!dlist_is_empty(&in_flight))
	{
		Transfer   *transfer = dlist_head_element(Transfer, node, &in_flight);

		if (!transfer->mail)
			(void) curl_multi_remove_handle(multi, transfer->easy);
		dlist_delete(&transfer->node);
		Recycle(transfer);
	}
	UnblockSignals(&saved);
	while (!dlist_is_empty(&over))
	{
		Transfer   *transfer = dlist_head_element(Transfer, node, &over);

		dlist_delete(&transfer->node);
		Recycle(transfer);
	}
	in_flight_count = 0;
	SocketsReserve();
}
