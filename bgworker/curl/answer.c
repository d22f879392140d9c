/*
 * answer.c
 *		What becomes of a transfer: the callbacks of libcurl, and the verdict.
 *
 * Of an answer of HTTP the status, Retry-After and the body are kept, the body up to
 * a limit.  It counts once its header section is complete, whatever becomes of its
 * body.  A mail is done when the reply to its text has come; a refusal counts at any
 * point.
 *
 * All of this is called by libcurl, but for AnswerClear and AnswerJudge: no
 * memory of PostgreSQL, no errors.
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "base/guc.h"
#include "bgworker/curl/handle.h"

#define HEADER_LIMIT	(64 * 1024) /* bytes of an answer's header section */
#define BODY_LIMIT		(64 * 1024)
#define FIRST_ROOM		512
#define LONGEST_WAIT	INT_MAX /* ms, of Retry-After */

/*
 * AnswerDrop frees what was kept of a body.
 */
void
AnswerDrop(Transfer *transfer)
{
	free(transfer->answer);
	transfer->answer = NULL;
	transfer->answer_bytes = transfer->answer_room = 0;
}

/*
 * AnswerClear forgets what became of the transfer before.
 */
void
AnswerClear(Transfer *transfer)
{
	transfer->body_read = 0;
	transfer->begun = 0;
	transfer->began = false;
	transfer->answered = false;
	transfer->in_status_line = true;
	transfer->status = 0;
	transfer->header_bytes = 0;
	transfer->body_bytes = 0;
	AnswerDrop(transfer);
	transfer->refused[0] = '\0';
	transfer->shortage = false;
	transfer->why = NULL;
	transfer->failure[0] = '\0';
}

/*
 * AnswerBegins is called when a request is about to go out, over a new
 * connection or a kept one.
 */
int
AnswerBegins(void *data, char *remote, char *local, int remote_port, int local_port)
{
	Transfer   *transfer = data;
	struct sockaddr_storage address;

	if (!AddressFromText(remote, &address) ||
		GucDeniesAddress((struct sockaddr *) &address))
	{
		strlcpy(transfer->refused, remote, sizeof(transfer->refused));
		return CURL_PREREQFUNC_ABORT;
	}
	/* The kept ones are closed: should this one be too, no more of them. */
	if (++transfer->begun > 1)
		(void) curl_easy_setopt(transfer->easy, CURLOPT_FRESH_CONNECT, 1L);
	if (!transfer->mail)
		transfer->began = true;
	return CURL_PREREQFUNC_OK;
}

/*
 * AnswerWantsMail gives libcurl more of the text of a mail.
 */
size_t
AnswerWantsMail(char *to, size_t size, size_t count, void *data)
{
	Transfer   *transfer = data;
	size_t		n = Min(size * count, transfer->body_length - transfer->body_read);

	transfer->began = true;
	memcpy(to, transfer->body + transfer->body_read, n);
	transfer->body_read += n;
	return n;
}

/* The number in "HTTP/1.1 200 OK", 0 if there is none. */
static int
ParseStatus(const char *line, size_t length)
{
	const char *digits = memchr(line, ' ', length);
	int			status = 0;

	if (digits == NULL || line + length - digits < 4)
		return 0;
	for (int i = 1; i <= 3; i++)
	{
		if (!isdigit((unsigned char) digits[i]))
			return 0;
		status = status * 10 + (digits[i] - '0');
	}
	return status;
}

/*
 * AnswerHeader takes a line of a reply of SMTP, or of the header section of
 * HTTP.
 */
size_t
AnswerHeader(char *line, size_t size, size_t length, void *data)
{
	Transfer   *transfer = data;
	bool		status_line = transfer->in_status_line;

	transfer->header_bytes += length;
	if (transfer->header_bytes > HEADER_LIMIT)
	{
		transfer->why = "the header section of the answer is too long";
		return 0;
	}
	if (transfer->mail || transfer->answered)
		return length;
	transfer->in_status_line = line[0] == '\r' || line[0] == '\n';
	if (transfer->in_status_line)
		transfer->answered = transfer->status >= 200;	/* else it was interim */
	else if (status_line)
	{
		transfer->status = ParseStatus(line, length);
	}
	return length;
}

/* Room for so many bytes of the body; false: there is no memory, and nothing is kept. */
static bool
MakeRoom(Transfer *transfer, size_t wanted)
{
	size_t		room = Max(transfer->answer_room * 2, Max(wanted, FIRST_ROOM));
	char	   *answer;

	if (wanted <= transfer->answer_room)
		return true;
	answer = realloc(transfer->answer, room);
	if (answer == NULL)
	{
		AnswerDrop(transfer);
		return false;
	}
	transfer->answer = answer;
	transfer->answer_room = room;
	return true;
}

/*
 * AnswerBody takes a part of the body.
 */
size_t
AnswerBody(char *bytes, size_t size, size_t length, void *data)
{
	Transfer   *transfer = data;
	bool		all_kept = transfer->answer_bytes == transfer->body_bytes;

	transfer->body_bytes += length;
	if (transfer->body_bytes > BODY_LIMIT)
		return 0;
	if (!transfer->mail && all_kept && MakeRoom(transfer, transfer->body_bytes))
	{
		memcpy(transfer->answer + transfer->answer_bytes, bytes, length);
		transfer->answer_bytes += length;
	}
	return length;
}

/* Text for people may have come from the receiver: nothing but ASCII. */
static void
CopyText(char *to, size_t size, const char *from)
{
	size_t		n = 0;

	for (; from[n] && n + 1 < size; n++)
		to[n] = from[n] >= ' ' && from[n] <= '~' ? from[n] : '?';
	to[n] = '\0';
}

/* ms; -1: it did not say. */
static long
RetryAfter(const Transfer *transfer)
{
	curl_off_t	seconds = 0;

	if (transfer->mail ||
		curl_easy_getinfo(transfer->easy, CURLINFO_RETRY_AFTER, &seconds) != CURLE_OK ||
		seconds <= 0)
		return -1;
	return seconds > LONGEST_WAIT / 1000 ? LONGEST_WAIT : (long) seconds * 1000;
}

/* Why there is no answer. */
static const char *
WhyNot(const Transfer *transfer, CURLcode code)
{
	if (transfer->why)
		return transfer->why;
	if (code == CURLE_OK)
		return "the answer ends within its header section";
#if LIBCURL_VERSION_NUM >= 0x080600
	if (code == CURLE_TOO_LARGE)
		return "a line of the answer is too long";
#else
	if (code == CURLE_OUT_OF_MEMORY)	/* does not tell these apart */
		return "a line of the answer is too long, or out of memory";
#endif
	return transfer->failure[0] ? transfer->failure : curl_easy_strerror(code);
}

/*
 * AnswerJudge says what became of a transfer that libcurl has ended with a
 * code; CURLE_FAILED_INIT: it never got there, or was lost with it.
 */
void
AnswerJudge(Transfer *transfer, CURLcode code, TransferResult *result)
{
	long		answer = 0;		/* last reply of SMTP */

	if (transfer->mail && code != CURLE_FAILED_INIT)
		(void) curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &answer);
	result->owner = transfer->owner;
	result->sent_nothing = !transfer->began;
	result->shortage = transfer->shortage && !transfer->began;
	result->retry_after = -1;
	result->error[0] = '\0';
	result->body = transfer->answer;
	result->body_length = transfer->answer_bytes;
	transfer->answer = NULL;	/* now the caller's */
	AnswerDrop(transfer);
	if (transfer->mail)
		result->status = code == CURLE_OK || answer >= 400 ? (int) answer : 0;
	else
		result->status = transfer->answered ? transfer->status : 0;
	if (result->status != 0)
	{
		result->retry_after = RetryAfter(transfer);
		return;
	}

	if (transfer->refused[0] != '\0')
		snprintf(result->error, sizeof(result->error),
				 "address %s is refused: it is in coupon.endpoint_deny, or link-local, multicast or of a metadata service",
				 transfer->refused);
	else if (result->shortage)
		strlcpy(result->error, "this server lacks file descriptors or memory for a connection",
				sizeof(result->error));
	else
		CopyText(result->error, sizeof(result->error), WhyNot(transfer, code));
}
