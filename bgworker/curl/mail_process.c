/*
 * mail_process.c
 *		A mail on its way, in a child process of its own.
 *
 * libcurl waits inside its calls while it ends a mail or a connection, whatever interface is
 * used; all other mails, and whoever wants this process to leave, would wait with it.  So
 * each mail has a child that does nothing but this: it is forked with the handle ready,
 * says through a pipe what became of the mail, and ends.  The pipe is in the epoll set of
 * bgworker/curl/socket.c.
 *
 * A child is nobody to PostgreSQL: it lets go of shared memory before anything else, all
 * signals that can be blocked are blocked there, and it never returns.  The kernel kills it
 * when its parent is gone (PR_SET_PDEATHSIG), so that a mail outlives no worker.
 *
 * A child is waited for when its pipe is closed: it has ended then, or is about to.
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libpq/pqsignal.h"
#include "storage/fd.h"
#include "storage/pg_shmem.h"

#include "bgworker/curl/handle.h"

#define FIRST_FREE 3			/* the descriptor behind standard error */
#define LAST_WORDS 1L			/* s that a child waits when it takes leave of its server */

/* A child that has not ended. */
typedef struct MailProcess
{
	dlist_node	node;
	pid_t		pid;
	int			pipe;			/* what it says */
	Transfer   *transfer;		/* NULL: it has said it, or nobody wants to know */
} MailProcess;

static dlist_head processes = DLIST_STATIC_INIT(processes);

/*
 * The mail is over, and its place given to another: a server that takes its time over the
 * farewell would collect our children.  The kernel ends this one.
 */
static void
EndSoon(void)
{
	sigset_t	alarms;

	(void) pqsignal(SIGALRM, SIG_DFL);
	(void) sigemptyset(&alarms);
	(void) sigaddset(&alarms, SIGALRM);
	(void) sigprocmask(SIG_UNBLOCK, &alarms, NULL);
	(void) alarm(2 * LAST_WORDS);
}

/* The child. */
static void
SendAndEnd(Transfer *transfer, pid_t parent, int to)
{
	CURLcode	code;
	TransferResult result;
	ssize_t		written;

	(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);				/* it was gone before */
	PGSharedMemoryDetach();
	/* Nor does it keep files of ours open, which may be dropped meanwhile. */
	if (dup2(to, FIRST_FREE) != FIRST_FREE)
		_exit(1);
	(void) close_range(FIRST_FREE + 1, ~0U, 0);
	code = curl_easy_perform(transfer->easy);
	memset(&result, 0, sizeof(result));
	AnswerJudge(transfer, code, &result);
	written = write(FIRST_FREE, &result, sizeof(result));	/* less than PIPE_BUF: whole or not at all */
	(void) curl_easy_setopt(transfer->easy, CURLOPT_SERVER_RESPONSE_TIMEOUT, LAST_WORDS);
	EndSoon();
	curl_easy_cleanup(transfer->easy);
	_exit(written == sizeof(result) ? 0 : 1);
}

static bool
WaitForPipe(int fd)
{
	struct epoll_event event = {0};

	event.events = EPOLLIN;
	event.data.fd = fd;
	return epoll_ctl(SocketsDescriptor(), EPOLL_CTL_ADD, fd, &event) == 0;
}

/*
 * MailBegin sends a mail whose handle is ready.  Returns why it cannot be, NULL if it could.
 */
const char *
MailBegin(Transfer *transfer, MemoryContext context)
{
	MailProcess *process = MemoryContextAllocZero(context, sizeof(MailProcess));
	pid_t		parent = getpid();
	sigset_t	saved;
	int			fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
	{
		pfree(process);
		transfer->shortage = true;
		return "this server lacks file descriptors for a mail";
	}
	fflush(NULL);				/* or the child would write it again */
	/* A handler that runs in the child would act for its parent. */
	(void) sigprocmask(SIG_SETMASK, &BlockSig, &saved);
	process->pid = fork();
	if (process->pid == 0)
		SendAndEnd(transfer, parent, fds[1]);
	(void) sigprocmask(SIG_SETMASK, &saved, NULL);
	(void) close(fds[1]);
	if (process->pid < 0)
	{
		(void) close(fds[0]);
		pfree(process);
		transfer->shortage = true;
		return "this server has no room for another process";
	}
	process->pipe = fds[0];
	process->transfer = transfer;
	dlist_push_tail(&processes, &process->node);
	ReserveExternalFD();
	/* Else its end is seen when the caller looks for another reason, at least once a minute. */
	(void) WaitForPipe(fds[0]);
	return NULL;
}

static void
Bury(MailProcess *process)
{
	/* Other children have it open too: closing alone would leave it in the epoll set. */
	(void) epoll_ctl(SocketsDescriptor(), EPOLL_CTL_DEL, process->pipe, NULL);
	(void) close(process->pipe);
	ReleaseExternalFD();
	while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
		;
	dlist_delete(&process->node);
	pfree(process);
}

/*
 * MailIsPipe tells whether a descriptor is the pipe of a child.
 */
bool
MailIsPipe(int fd)
{
	dlist_iter	iter;

	dlist_foreach(iter, &processes)
	{
		if (dlist_container(MailProcess, node, iter.cur)->pipe == fd)
			return true;
	}
	return false;
}

/*
 * MailNext returns a mail that is over, and what became of it; NULL: none is, now.
 */
Transfer *
MailNext(TransferResult *result)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &processes)
	{
		MailProcess *process = dlist_container(MailProcess, node, iter.cur);
		Transfer   *transfer = process->transfer;
		TransferResult said;
		ssize_t		n = read(process->pipe, &said, sizeof(said));

		if (n < 0)
			continue;			/* it is still at it */
		process->transfer = NULL;
		if (n == 0)
			Bury(process);
		if (transfer == NULL)
			continue;
		if (n == sizeof(said))
			*result = said;
		else
		{
			memset(result, 0, sizeof(*result));
			result->retry_after = -1;
			strlcpy(result->error, "the process that sent the mail has died", sizeof(result->error));
		}
		result->owner = transfer->owner;
		return transfer;
	}
	return NULL;
}

/*
 * MailForgetAll ends all children, whatever they are at.
 */
void
MailForgetAll(void)
{
	while (!dlist_is_empty(&processes))
	{
		MailProcess *process = dlist_head_element(MailProcess, node, &processes);

		(void) kill(process->pid, SIGKILL);		/* not waited for yet: the pid is his */
		Bury(process);
	}
}
