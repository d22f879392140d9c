/*
 * raw_curl.c
 *		What libcurl can do on this machine: POSTs of one size to one address,
 *		so many in flight over connections that are kept, as fast as they go.
 *		No database, and nothing is different from one request to the next.
 *
 *		raw_curl URL requests in_flight bytes
 *
 * The multi interface with its sockets in an epoll descriptor, where they stay
 * while a connection is idle; one thread.  Prints requests a second; any
 * answer but 2xx, or none, ends it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>

#define MAX_FD 65536
#define EVENTS 256

static CURLM *multi;
static int	poll_set;
static unsigned char registered[MAX_FD];	/* 1: input, 2: output */
static unsigned char in_use[MAX_FD];
static long wait_ms = -1;

static void
Die(const char *why)
{
	fprintf(stderr, "raw_curl: %s\n", why);
	exit(1);
}

static void
Register(int fd, unsigned char wanted)
{
	struct epoll_event event;
	int			operation = registered[fd] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

	if (registered[fd] == wanted)
		return;
	if (wanted == 0)
		operation = EPOLL_CTL_DEL;
	memset(&event, 0, sizeof(event));
	event.events = (wanted & 1 ? EPOLLIN : 0) | (wanted & 2 ? EPOLLOUT : 0);
	event.data.fd = fd;
	if (epoll_ctl(poll_set, operation, fd, &event) != 0)
		Die("epoll_ctl failed");
	registered[fd] = wanted;
}

static int
SocketChanged(CURL *easy, curl_socket_t fd, int what, void *data, void *socket_data)
{
	if (fd >= MAX_FD)
		Die("too many descriptors");
	in_use[fd] = what != CURL_POLL_REMOVE;
	if (what != CURL_POLL_REMOVE)
		Register(fd, (what & CURL_POLL_IN ? 1 : 0) | (what & CURL_POLL_OUT ? 2 : 0));
	return 0;
}

static int
TimerChanged(CURLM *handle, long ms, void *data)
{
	wait_ms = ms;
	return 0;
}

static int
CloseSocket(void *data, curl_socket_t fd)
{
	registered[fd] = in_use[fd] = 0;
	return close(fd);
}

static size_t
Forget(char *data, size_t size, size_t n, void *arg)
{
	return size * n;
}

/* As large as what a signed push has. */
static struct curl_slist *
Headers(void)
{
	static const char *const lines[] = {
		"Content-Type: application/json",
		"User-Agent: coupon/1.0",
		"Expect:",
		"webhook-id: 382401028667998208",
		"webhook-timestamp: 1795238709",
		"webhook-signature: v1,AUSYKRQhvgmGj2Pkjcg6mPmBNMDKPiany7npBVY5+Cg="
	};
	struct curl_slist *headers = NULL;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		headers = curl_slist_append(headers, lines[i]);
	return headers;
}

static CURL *
MakeHandle(const char *url, const char *body, long bytes, struct curl_slist *headers)
{
	CURL	   *easy = curl_easy_init();

	if (easy == NULL)
		Die("out of memory");
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
	curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, bytes);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, Forget);
	curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, CloseSocket);
	curl_easy_setopt(easy, CURLOPT_TIMEOUT, 30L);
	return easy;
}

/* Count what has been answered, and start as many anew while there are more. */
static long
Turn(long *to_start)
{
	CURLMsg    *message;
	int			left;
	long		done = 0;

	while ((message = curl_multi_info_read(multi, &left)) != NULL)
	{
		CURL	   *easy = message->easy_handle;
		CURLcode	result = message->data.result;
		long		status = 0;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		if (result != CURLE_OK || status / 100 != 2)
			Die(result != CURLE_OK ? curl_easy_strerror(result) : "the answer is not 2xx");
		done++;
		curl_multi_remove_handle(multi, easy);
		if ((*to_start)-- > 0)
			curl_multi_add_handle(multi, easy);
	}
	return done;
}

static void
Wait(void)
{
	struct epoll_event events[EVENTS];
	int			running;
	int			n = epoll_wait(poll_set, events, EVENTS, (int) wait_ms);

	if (n == 0)
		curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
	for (int i = 0; i < n; i++)
	{
		int			fd = events[i].data.fd;

		if (!in_use[fd])
			Register(fd, 0);	/* its peer has closed an idle connection */
		else
			curl_multi_socket_action(multi, fd,
									 (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
									 (events[i].events & ~EPOLLOUT ? CURL_CSELECT_IN : 0),
									 &running);
	}
	if (wait_ms == 0)
		curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

static double
Now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

int
main(int argc, char **argv)
{
	long		requests = argc == 5 ? atol(argv[2]) : 0;
	long		in_flight = argc == 5 ? atol(argv[3]) : 0;
	long		bytes = argc == 5 ? atol(argv[4]) : 0;
	long		to_start = requests - in_flight;
	long		done = 0;
	char	   *body;
	struct curl_slist *headers;
	double		start;

	if (in_flight < 1 || bytes < 1 || to_start < 0)
		Die("usage: raw_curl URL requests in_flight bytes");
	curl_global_init(CURL_GLOBAL_DEFAULT);
	poll_set = epoll_create1(EPOLL_CLOEXEC);
	multi = curl_multi_init();
	body = malloc(bytes);
	if (poll_set < 0 || multi == NULL || body == NULL)
		Die("cannot begin");
	memset(body, 'x', bytes);
	headers = Headers();
	curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, SocketChanged);
	curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, TimerChanged);
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, in_flight);

	start = Now();
	for (long i = 0; i < in_flight; i++)
		curl_multi_add_handle(multi, MakeHandle(argv[1], body, bytes, headers));
	while (done < requests)
	{
		Wait();
		done += Turn(&to_start);
	}
	printf("%.0f\n", requests / (Now() - start));
	return 0;
}
