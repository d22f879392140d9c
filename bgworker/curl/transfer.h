/*
 * transfer.h
 *		Messages on their way through libcurl, many at once.
 *
 * The caller starts transfers, waits until TransferSocket is readable or
 * TransferTimeout has passed, calls TransferDrive, and takes what is over with
 * TransferNext until there is none; then it starts more.  Each transfer that
 * was started comes out of TransferNext exactly once, unless forgotten.
 */
#ifndef COUPON_TRANSFER_H
#define COUPON_TRANSFER_H

/* Everything is copied by TransferStart. */
typedef struct TransferRequest
{
	const char *endpoint;		/* http, https, smtp or smtps URL, no user in it */
	const char *username;		/* NULL: none; HTTP: basic, SMTP: AUTH */
	const char *password;
	int			timeout;		/* ms for the whole transfer */
	bool		require_tls;	/* SMTP: else it is used where it is offered */
	const char *body;			/* of the POST; the mail with its headers, CRLF lines */
	size_t		body_length;
	const char *const *headers; /* HTTP: "Name: value", up to NULL; may be NULL */
	const char *mail_from;		/* SMTP: envelope; NULL or empty: <> */
	const char *const *mail_to; /* SMTP: recipients, up to NULL; all or none get it */
} TransferRequest;

typedef struct TransferResult
{
	void	   *owner;			/* as given to TransferStart */
	int			status;			/* HTTP status, or last reply of SMTP; 0: no answer */
	bool		sent_nothing;	/* surely: not a byte of the request, of the mail */
	bool		shortage;		/* of this server: the receiver was not tried */
	long		retry_after;	/* ms, by Retry-After; -1: not asked for */
	char		error[200];		/* for people, ASCII: why no answer came, else empty */
	char	   *body;			/* HTTP: as much as was kept, NULL: nothing; to be freed by free() */
	size_t		body_length;
} TransferResult;

/* Visible from outside for t/transfer_test.c alone. */
extern PGDLLEXPORT void TransferStart(const TransferRequest *request, void *owner);
extern PGDLLEXPORT bool TransferNext(TransferResult *result);
extern PGDLLEXPORT void TransferDrive(void);
extern PGDLLEXPORT int TransferInFlight(void);
extern int	TransferMost(void);
extern PGDLLEXPORT int TransferSocket(void);
extern PGDLLEXPORT long TransferTimeout(void);
extern PGDLLEXPORT void TransferForgetAll(void);

#endif							/* COUPON_TRANSFER_H */
