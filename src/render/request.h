/*
 * request.h
 *		What a notification looks like on the wire.
 *
 * Pure text work: no SQL, no network.  RenderRequest and RenderMail may be
 * called outside a transaction; all that they read is UTF-8, see RenderUtf8.
 */
#ifndef COUPON_REQUEST_H
#define COUPON_REQUEST_H

#include "datatype/timestamp.h"
#include "lib/stringinfo.h"

#define RENDER_MAX_KEY 64		/* bytes of a secret */

typedef struct RenderRecipient
{
	int64		user_id;
	const char *address;		/* NULL: the user id */
	bool		muted;			/* he wants nothing: see coupon_contact_mute */
} RenderRecipient;

/* What notifications tell of: many share it. */
typedef struct RenderEvent
{
	const char *kind;			/* "reminder", "coupon" or "test" */
	const char *channel;
	int64		template_id;	/* 0: none */
	bool		template_found; /* its row is there */
	bool		published;
	const char *name;			/* of the template; NULL: none */
	int64		shop_number;	/* 0: none */
	bool		has_start;
	TimestampTz start;
	int			minutes;		/* 0: none */
	int64		task_id;		/* 0: none */
	const char *subject;		/* of coupon_message; NULL: the built-in text */
	const char *body;			/* the same */
	const char *json;			/* what is the same in all bodies; NULL: not known */
	int			json_length;
} RenderEvent;

typedef struct RenderNotification
{
	int64		id;
	RenderEvent *event;			/* RenderRequest keeps its json, in the current
								 * context */
	const RenderRecipient *recipients;
	int			nrecipients;
} RenderNotification;

/* How a value is written into a body_template. */
typedef enum RenderEscape
{
	RENDER_RAW,
	RENDER_JSON,
	RENDER_FORM,
	RENDER_XML
} RenderEscape;

typedef struct RenderSecret
{
	int			length;
	uint8		key[RENDER_MAX_KEY];
} RenderSecret;

/* A channel, taken apart once; it lives where RenderChannelMake was called. */
typedef struct RenderChannel
{
	const char *body_template;	/* NULL: Standard Webhooks */
	const char *mail_from;
	int			nsecrets;
	RenderSecret *secrets;
	int			nheaders;
	const char **headers;		/* "Name: value", the same in every request */
	int			nown;			/* so many of them, at the end, are not the
								 * channel's but ours */
	RenderEscape escape;
} RenderChannel;

/* render/channel.c: in a transaction */
extern RenderChannel *RenderChannelMake(const char *secret, const char *headers,
										const char *body_template,
										const char *mail_from);
extern const char *RenderUtf8(const char *text);
extern bool RenderIsMailAddress(const char *address);

/* render/request.c */
extern void RenderRequest(const RenderNotification *notification, const RenderChannel *channel,
						  TimestampTz now, StringInfo body, const char ***headers);

/* render/text.c */
extern void RenderTexts(const RenderNotification *notification, StringInfo subject,
						StringInfo body);
extern bool RenderPlaceholder(const char *text, bool in_message,
							  const char **name, int *length, bool *known);
extern const char *RenderPlaceholderList(bool in_message);

/* render/mail.c */
extern void RenderMail(const RenderNotification *notification, const RenderChannel *channel,
					   TimestampTz now, StringInfo mail);

#endif							/* COUPON_REQUEST_H */
