/*
 * handle.h
 *		What the files of a transfer share; only they know libcurl.
 */
#ifndef COUPON_HANDLE_H
#define COUPON_HANDLE_H

#include <curl/curl.h>

#include "lib/ilist.h"

#include "base/ipaddr.h"
#include "bgworker/curl/transfer.h"

#if LIBCURL_VERSION_NUM < 0x075000
#error "coupon needs libcurl 7.80 or later: only CURLOPT_PREREQFUNCTION tells that a request begins"
#endif

/* One transfer, or one that is over and waits to be used again. */
typedef struct Transfer
{
	dlist_node	node;			/* in unused[mail], in_flight or over */
	CURL	   *easy;
	CURLU	   *url;			/* of the last request, parsed ... */
	char	   *endpoint;		/* ... from this; NULL: of none */
	bool		mail;			/* a handle never changes its protocol */
	int			generation;		/* of the settings that its handle was made with */
	void	   *owner;
	int			timeout;		/* ms, since ... */
	int64		started;		/* ... this moment, by TransferStart's clock */
	CURLcode	code;			/* of one that is over; CURLE_FAILED_INIT: by us */
	char	   *buffer;			/* lists of headers or recipients, texts, body */
	Size		buffer_size;
	const char *body;			/* in the buffer */
	size_t		body_length;
	size_t		body_read;		/* by libcurl, of a mail */

	/* What has happened to it; written by the callbacks. */
	int			begun;			/* how often libcurl was about to send a request */
	bool		began;			/* something of it may have been sent */
	bool		answered;		/* status is final */
	bool		in_status_line; /* the next line has a status */
	int			status;
	size_t		header_bytes;
	size_t		body_bytes;
	char	   *answer;			/* of the body, by malloc; NULL: nothing, or no memory for it */
	size_t		answer_bytes;
	size_t		answer_room;
	char		refused[ADDRESS_TEXT_LENGTH];	/* an address */
	bool		shortage;		/* no descriptor or memory for a connection */
	const char *why;			/* it failed, where libcurl does not know; static */
	char		failure[CURL_ERROR_SIZE];	/* what libcurl says */
} Transfer;

/* bgworker/curl/socket.c */
extern void SocketsInit(void);
extern int	SocketsDescriptor(void);
extern int	SocketsMost(void);
extern void SocketsReserve(void);
extern bool SocketsNotUsed(int fd);
extern curl_socket_t SocketsOpen(void *data, curlsocktype purpose,
								 struct curl_sockaddr *address);
extern int	SocketsClose(void *data, curl_socket_t fd);
extern int	SocketsChanged(CURL *easy, curl_socket_t fd, int what, void *data,
						   void *socket_data);

/* bgworker/curl/mail_process.c */
extern const char *MailBegin(Transfer *transfer, MemoryContext context);
extern bool MailIsPipe(int fd);
extern Transfer *MailNext(TransferResult *result);
extern void MailForgetAll(void);

/* bgworker/curl/request.c */
extern bool RequestIsMail(const TransferRequest *request);
extern const char *RequestCheck(const TransferRequest *request);
extern CURLcode RequestPrepare(Transfer *transfer, const char *ca_file);
extern CURLcode RequestApply(Transfer *transfer, const TransferRequest *request,
							 MemoryContext context);

/* bgworker/curl/answer.c */
extern void AnswerClear(Transfer *transfer);
extern void AnswerDrop(Transfer *transfer);
extern void AnswerJudge(Transfer *transfer, CURLcode code, TransferResult *result);
extern int	AnswerBegins(void *data, char *remote, char *local, int remote_port,
						 int local_port);
extern size_t AnswerWantsMail(char *to, size_t size, size_t count, void *data);
extern size_t AnswerHeader(char *line, size_t size, size_t length, void *data);
extern size_t AnswerBody(char *bytes, size_t size, size_t length, void *data);

#endif							/* COUPON_HANDLE_H */
