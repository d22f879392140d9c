/*
 * lease.h
 *		Notifications of the outbox that this process sends: taken for a while, and
 *		what became of them.
 */
#ifndef COUPON_LEASE_H
#define COUPON_LEASE_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

#include "base/owner_query.h"
#include "notification/outbox.h"
#include "render/request.h"

/* A text of coupon_message. */
typedef struct LeaseMessage
{
	const char *kind;
	const char *subject;
	const char *body;
} LeaseMessage;

/* A channel as its rows say; see coupon_channel_set. */
typedef struct LeaseChannel
{
	const char *name;
	const char *endpoint;
	const char *username;		/* NULL: none */
	const char *password;
	bool		is_mail;		/* smtp or smtps */
	bool		require_tls;	/* for mail */
	bool		user_id_is_address; /* of who has no contact */
	bool		enabled;
	int			nrecipient_statuses;
	const int32 *recipient_statuses;	/* about the recipient, not the channel */
	const char *success_when;	/* jsonpath over the body of an answer; NULL: none ... */
	const char *dead_recipients;	/* ... so are these; see answer_body.c */
	const char *retry_recipients;
	int			max_in_flight;
	int			per_second;		/* requests; 0: any number */
	TimestampTz quiet_from;		/* now or next; 0: never */
	TimestampTz quiet_until;
	int			timeout;		/* ms */
	TimestampTz updated_at;
	RenderChannel *render;
	LeaseMessage *messages;
	int			nmessages;
} LeaseChannel;

/* One notification that is ours until the lease runs out. */
typedef struct LeasedNotification
{
	int			attempts;		/* with this one; the fencing number */
	int			tries;			/* the same since the last replay */
	TimestampTz due_at;
	OutboxClass class;
	bool		asynchronous;	/* what it tells of may not be on disk yet */
	const char *broken;			/* why it can never be sent; NULL: it can */
	bool		muted;			/* none of its users wants it */
	RenderNotification notification;
	RenderRecipient *recipients;	/* those of the notification */
} LeasedNotification;

/* What is taken of a channel in one transaction. */
typedef struct Lease
{
	/* private to lease.c */
	const LeaseChannel *channel;
	TimestampTz now;
	TimestampTz until;
	MemoryContext context;		/* of the notifications */
	List	   *notifications;
	List	   *events;			/* that they tell of, each once */
	RowWriter	queue;
	QueryScope	scope;
} Lease;

/* What a lane has for later, where less was taken than there was room for. */
typedef struct LeaseAhead
{
	bool		any_due;		/* some are due that we did not get: they are leased, or held */
	TimestampTz next_at;		/* of the next that is not due; DT_NOEND: none waits */
} LeaseAhead;

typedef enum LeaseVerdict
{
	LEASE_DELIVERED,
	LEASE_DEAD,					/* given up */
	LEASE_MISSED,				/* the sale has begun, or the channel is quiet */
	LEASE_MUTED,				/* none of its users wants it */
	LEASE_GIVE_BACK,			/* to where it came from, as if it had not been put into the outbox */
	LEASE_RETRY					/* at next_at */
} LeaseVerdict;

/* Some of the users of a notification. */
typedef struct LeaseUsers
{
	int			n;
	const int64 *ids;
} LeaseUsers;

typedef struct LeaseAnswer
{
	int64		id;
	int			attempts;
	LeaseVerdict verdict;
	TimestampTz sent_at;
	TimestampTz next_at;		/* of LEASE_RETRY */
	bool		untried;		/* of LEASE_RETRY: for a shortage here; no attempt is counted */
	int			status;			/* 0: none came */
	char		error[200];		/* empty: none */
	bool		gone;			/* the receiver wants nothing more ... */
	const char *channel;		/* ... of this channel */
	TimestampTz version;		/* as it was set then */
	int			tries;			/* of LeasedNotification */
	char	   *body;			/* what the receiver said; NULL: nothing that is kept */
	size_t		body_length;
	bool		body_cut;
	bool		to_judge;		/* delivered, unless the body says otherwise */
	bool		has_place;		/* in flight still: not read yet ... */
	OutboxClass class;			/* ... in this class */
	bool		held;			/* by LeaseRecord: not recorded, others hold it */

	/* In the transaction that records it; see answer_body.c. */
	const char *text;			/* of the body, to be kept; NULL: none */
	LeaseUsers	dead;			/* of a delivered one: who is given up ... */
	LeaseUsers	again;			/* ... and who is tried again, at next_at */
} LeaseAnswer;

/* What became of a notification that is given back; see LeaseRecord. */
typedef enum LeaseGiven
{
	LEASE_GIVEN,
	LEASE_UNKNOWN,				/* nobody has put it there */
	LEASE_HELD					/* others hold the rows that it came from */
} LeaseGiven;

/* What knows of notifications by their ids: where they came from. */
typedef struct LeaseOrigin
{
	/* They are to come again, as if they had not been put into the outbox. */
	LeaseGiven	(*give_back) (int64 id, int64 template_id, const int64 *users, int nusers);
	/* Those of these users are another notification from now on. */
	LeaseGiven	(*move) (int64 id, int64 new_id, int64 template_id, const int64 *users, int nusers);
} LeaseOrigin;

/* channel_load.c */
extern List *LeaseChannels(void);
extern bool LeaseIsQuiet(const LeaseChannel *channel, TimestampTz now);
extern bool LeaseDisable(const char *channel, TimestampTz updated_at, const char *reason);
extern const char *LeaseTextOf(Datum value, MemoryContext context);
extern const char *LeaseText(int row, int column, MemoryContext context);

/* lease.c */
extern void LeaseBegin(Lease *lease, const LeaseChannel *channel, TimestampTz until);
extern int	LeaseLane(Lease *lease, int lane, int limit, TimestampTz *from, LeaseAhead *ahead);
extern List *LeaseEnd(Lease *lease);

/* lease_complete.c */
extern void LeaseRecord(LeaseAnswer *answers, int nanswers, bool careful, const LeaseOrigin *origin);

/* answer_body.c */
extern bool AnswerIsJudged(const LeaseChannel *channel);
extern bool AnswerJudgeBody(const LeaseChannel *channel, LeaseAnswer *answer);
extern void AnswerGiveUpAgain(LeaseAnswer *answer);
extern void AnswerKeepText(const LeaseChannel *channel, LeaseAnswer *answer);

#endif							/* COUPON_LEASE_H */
