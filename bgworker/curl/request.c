/*
 * request.c
 *		What may be sent, and what libcurl is told about it.
 *
 * Over smtp:// TLS is used when offered.  A password is sent over TLS only,
 * except to this machine itself.
 */
#include "postgres.h"

#include <limits.h>
#include <netinet/in.h>

#include "utils/memutils.h"

#include "bgworker/curl/handle.h"

static bool
StartsWith(const char *text, const char *start)
{
	return pg_strncasecmp(text, start, strlen(start)) == 0;
}

/*
 * RequestIsMail tells whether a request is for SMTP.
 */
bool
RequestIsMail(const TransferRequest *request)
{
	return StartsWith(request->endpoint, "smtp://") ||
		StartsWith(request->endpoint, "smtps://");
}

static bool in_name[UCHAR_MAX + 1];	/* what the name of a header consists of */

static void
FillInName(void)
{
	static const char bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	"0123456789!#$%&'*+-.^_`|~";

	for (const char *c = bytes; *c; c++)
		in_name[(unsigned char) *c] = true;
}

/* Why a header cannot be sent, NULL if it can.  Each byte is looked up once. */
static const char *
CheckHeader(const char *header)
{
	static const char bad_form[] = "a header is not of the form \"Name: value\"";
	static const char bad_byte[] =
		"a header contains a character that may not be there, such as a line break";
	static const char *const own[] = {"Content-Length", "Transfer-Encoding", "Expect"};
	const char *colon = header;

	if (!in_name['a'])
		FillInName();
	while (in_name[(unsigned char) *colon])
		colon++;
	if (*colon != ':' || colon == header)
	{
		const char *first = strchr(header, ':');

		return first == NULL || first == header ? bad_form : bad_byte;
	}
	for (const unsigned char *c = (const unsigned char *) colon; *c; c++)
	{
		if ((*c < ' ' && *c != '\t') || *c == 0x7f)
			return bad_byte;
	}
	for (int i = 0; i < lengthof(own); i++)
	{
		if (strlen(own[i]) == colon - header && StartsWith(header, own[i]))
			return "the headers Content-Length, Transfer-Encoding and Expect cannot be set";
	}
	return NULL;
}

/* The same of an address of the envelope. */
static const char *
CheckMailAddress(const char *address)
{
	for (const char *c = address; *c; c++)
	{
		if ((unsigned char) *c <= ' ' || *c == 0x7f || *c == '<' || *c == '>')
			return "a mail address contains a character that may not be there, such as a line break";
	}
	return NULL;
}

/*
 * RequestCheck returns why a request cannot be sent, NULL if it can.
 */
const char *
RequestCheck(const TransferRequest *request)
{
	const char *why = NULL;

	if (RequestIsMail(request))
	{
		if (request->mail_to == NULL || request->mail_to[0] == NULL)
			return "the mail has no recipient";
		if (request->mail_from)
			why = CheckMailAddress(request->mail_from);
		for (int i = 0; request->mail_to[i] && !why; i++)
			why = request->mail_to[i][0] == '\0' ? "the mail has no recipient" :
				CheckMailAddress(request->mail_to[i]);
		return why;
	}
	if (!StartsWith(request->endpoint, "http://") &&
		!StartsWith(request->endpoint, "https://"))
		return "the endpoint does not begin with http://, https://, smtp:// or smtps://";
	for (int i = 0; request->headers && request->headers[i] && !why; i++)
		why = CheckHeader(request->headers[i]);
	return why;
}

#define SET(option, value) \
	do { \
		if (code == CURLE_OK) \
			code = curl_easy_setopt(easy, option, value); \
	} while (0)

/* What holds for every transfer. */
static CURLcode
SetForAll(CURL *easy, Transfer *transfer, const char *ca_file)
{
	CURLcode	code = CURLE_OK;

#if LIBCURL_VERSION_NUM >= 0x075500
	SET(CURLOPT_PROTOCOLS_STR, "http,https,smtp,smtps");
#else
	SET(CURLOPT_PROTOCOLS, (long) (CURLPROTO_HTTP | CURLPROTO_HTTPS |
								   CURLPROTO_SMTP | CURLPROTO_SMTPS));
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
	SET(CURLOPT_QUICK_EXIT, 1L);	/* or a timeout waits for the resolver's thread */
	SET(CURLOPT_CA_CACHE_TIMEOUT, 600L);
#endif
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_PRIVATE, (void *) transfer);
	SET(CURLOPT_ERRORBUFFER, transfer->failure);
	SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_PROXY, "");		/* nor that of the environment */
	SET(CURLOPT_NOPROXY, "*");
	SET(CURLOPT_NETRC, (long) CURL_NETRC_IGNORED);
	SET(CURLOPT_SSL_VERIFYPEER, 1L);
	SET(CURLOPT_SSL_VERIFYHOST, 2L);
	if (ca_file[0] != '\0')
		SET(CURLOPT_CAINFO, ca_file);
	SET(CURLOPT_OPENSOCKETFUNCTION, SocketsOpen);
	SET(CURLOPT_OPENSOCKETDATA, (void *) transfer);
	SET(CURLOPT_CLOSESOCKETFUNCTION, SocketsClose);
	SET(CURLOPT_PREREQFUNCTION, AnswerBegins);
	SET(CURLOPT_PREREQDATA, (void *) transfer);
	SET(CURLOPT_HEADERFUNCTION, AnswerHeader);
	SET(CURLOPT_HEADERDATA, (void *) transfer);
	SET(CURLOPT_WRITEFUNCTION, AnswerBody);
	SET(CURLOPT_WRITEDATA, (void *) transfer);
	return code;
}

/* What holds for every transfer of one protocol. */
static CURLcode
SetForProtocol(CURL *easy, Transfer *transfer)
{
	CURLcode	code = CURLE_OK;

	if (transfer->mail)
	{
		SET(CURLOPT_UPLOAD, 1L);
		SET(CURLOPT_READFUNCTION, AnswerWantsMail);
		SET(CURLOPT_READDATA, (void *) transfer);
	}
	else
	{
		SET(CURLOPT_POST, 1L);
		SET(CURLOPT_HTTPAUTH, (long) CURLAUTH_BASIC);
		SET(CURLOPT_HTTP09_ALLOWED, 0L);
		/*
		 * Not HTTP/2: with many streams on a connection libcurl 7.88 now and then overlooks
		 * that an answer is complete, until the request times out.
		 */
		SET(CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
		/* Answers are short, and it is allocated for each transfer. */
		SET(CURLOPT_BUFFERSIZE, 1024L);
	}
	return code;
}

/*
 * RequestPrepare sets what holds for every transfer of a handle.
 */
CURLcode
RequestPrepare(Transfer *transfer, const char *ca_file)
{
	CURLcode	code = SetForAll(transfer->easy, transfer, ca_file);

	return code == CURLE_OK ? SetForProtocol(transfer->easy, transfer) : code;
}

/*
 * Copy body and list into the buffer.  libcurl neither copies nor frees them.
 * Returns the list.
 */
static struct curl_slist *
FillBuffer(Transfer *transfer, const TransferRequest *request,
		   MemoryContext context)
{
	static char expect[] = "Expect:";	/* never wait for a 100 */
	const char *const *texts = transfer->mail ? request->mail_to : request->headers;
	struct curl_slist *nodes;
	Size		size = request->body_length;
	char	   *end;
	int			n = 0;

	for (; texts && texts[n]; n++)
		size += strlen(texts[n]) + 1;
	size += (n + 1) * sizeof(struct curl_slist);
	if (size > transfer->buffer_size)
	{
		if (transfer->buffer)
			pfree(transfer->buffer);
		transfer->buffer = NULL;
		transfer->buffer_size = 0;
		transfer->buffer = MemoryContextAllocExtended(context, size, MCXT_ALLOC_HUGE);
		transfer->buffer_size = size;
	}

	nodes = (struct curl_slist *) transfer->buffer;
	end = (char *) (nodes + n + 1);
	for (int i = 0; i < n; i++)
	{
		nodes[i].data = end;
		nodes[i].next = &nodes[i + 1];
		end = stpcpy(end, texts[i]) + 1;
	}
	nodes[n].data = expect;
	nodes[n].next = NULL;
	if (transfer->mail)
		nodes[n - 1].next = NULL;
	if (request->body_length > 0)
		memcpy(end, request->body, request->body_length);
	transfer->body = end;
	transfer->body_length = request->body_length;
	return nodes;
}

/* Whether the host of a URL is this machine, whatever the network says. */
static bool
IsLoopback(const char *endpoint)
{
	CURLU	   *url = curl_url();
	char	   *host = NULL;
	bool		answer = false;

	if (url && curl_url_set(url, CURLUPART_URL, endpoint, 0) == CURLUE_OK &&
		curl_url_get(url, CURLUPART_HOST, &host, 0) == CURLUE_OK)
	{
		struct sockaddr_storage address;

		answer = pg_strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
			(AddressFromText(host, &address) && address.ss_family == AF_INET &&
			 *(uint8 *) &((struct sockaddr_in *) &address)->sin_addr == 127);
	}
	curl_free(host);
	curl_url_cleanup(url);
	return answer;
}

/*
 * The URL is parsed only where it differs from that of the handle's last
 * request; one that cannot be parsed is given to libcurl as it is, which then
 * says why.
 */
static CURLcode
ApplyEndpoint(Transfer *transfer, const char *endpoint, MemoryContext context)
{
	CURL	   *easy = transfer->easy;
	CURLcode	code = CURLE_OK;
	bool		parsed;

	if (transfer->endpoint != NULL && strcmp(transfer->endpoint, endpoint) == 0)
		return CURLE_OK;
	if (transfer->endpoint)
		pfree(transfer->endpoint);
	transfer->endpoint = NULL;
	parsed = curl_url_set(transfer->url, CURLUPART_URL, endpoint,
						  CURLU_DISALLOW_USER) == CURLUE_OK;
	SET(CURLOPT_CURLU, parsed ? transfer->url : NULL);
	SET(CURLOPT_URL, parsed ? NULL : endpoint);
	if (code == CURLE_OK)
		transfer->endpoint = MemoryContextStrdup(context, endpoint);
	return code;
}

/*
 * RequestApply sets what only this transfer has.  It raises an error if there
 * is no memory.
 */
CURLcode
RequestApply(Transfer *transfer, const TransferRequest *request, MemoryContext context)
{
	struct curl_slist *list = FillBuffer(transfer, request, context);
	CURL	   *easy = transfer->easy;
	CURLcode	code = ApplyEndpoint(transfer, request->endpoint, context);

	SET(CURLOPT_USERNAME, request->username);
	SET(CURLOPT_PASSWORD, request->password);
	SET(CURLOPT_TIMEOUT_MS, (long) Max(request->timeout, 1));	/* 0 is for ever */
	if (transfer->mail)
	{
		bool		secret = request->username && !IsLoopback(request->endpoint);

		SET(CURLOPT_USE_SSL, (long) (secret || request->require_tls ? CURLUSESSL_ALL : CURLUSESSL_TRY));
		SET(CURLOPT_MAIL_FROM, request->mail_from ? request->mail_from : "");
		SET(CURLOPT_MAIL_RCPT, list);
		SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t) transfer->body_length);
	}
	else
	{
		SET(CURLOPT_HTTPHEADER, list);
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) transfer->body_length);
		SET(CURLOPT_POSTFIELDS, transfer->body);
	}
	return code;
}
