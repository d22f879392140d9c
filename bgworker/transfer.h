#ifndef COUPON_TRANSFER_H
#define COUPON_TRANSFER_H
typedef struct TransferRequest {
	const char *endpoint;			/* http, https, smtp or smtps URL */
	const char *username, *password;	/* NULL: none (HTTP: basic auth; SMTP: AUTH) */
	int timeout;					/* ms for the whole transfer */
	const char *body; size_t body_length;	/* POST body, or the whole mail with its headers, CRLF lines */
	const char *const *headers;		/* HTTP: "Name: value", NULL-terminated; may be NULL */
	const char *mail_from;			/* SMTP envelope */
	const char *const *mail_to;		/* SMTP recipients, NULL-terminated */
} TransferRequest;

typedef struct TransferResult {
	void *owner;					/* as given to TransferStart */
	int status;						/* HTTP or SMTP status, 0: none came */
	bool sent_nothing;				/* certain that the receiver got nothing (refused address, DNS failure, connection refused) */
	long retry_after;				/* ms asked for by Retry-After (seconds or HTTP date), -1: not asked */
	char error[200];				/* for people: why it failed; empty if an answer came */
} TransferResult;
extern void TransferStart(const TransferRequest *request, void *owner);
extern bool TransferNext(TransferResult *result);
extern void TransferDrive(void);
extern int  TransferInFlight(void);
extern int  TransferSocket(void);
extern long TransferTimeout(void);
extern void TransferForgetAll(void);
#endif
