/*
 * channel_check.h
 *		What a channel, its texts and addresses may look like.
 */
#ifndef COUPON_CHANNEL_CHECK_H
#define COUPON_CHANNEL_CHECK_H

#include "fmgr.h"
#include "utils/array.h"
#include "utils/date.h"

#include "base/shop_role.h"
#include "render/request.h"

/* A channel as coupon_channel_set is asked for; NULL: not given. */
typedef struct ChannelSpec
{
	char	   *endpoint;
	const char *secret;
	const char *headers;		/* a JSON object that is not empty */
	const char *body_template;
	const char *mail_from;
	const char *username;
	const char *password;
	int			batch_size;
	int			max_in_flight;
	bool		require_tls;
} ChannelSpec;

extern void ChannelRequireUnbound(RoleKinds kinds);
extern const char *ChannelArg(FunctionCallInfo fcinfo, int arg);
extern const char *ChannelKindArg(FunctionCallInfo fcinfo, int arg);
extern const char *ChannelAddressArg(FunctionCallInfo fcinfo, int arg);
extern void ChannelCheckSpec(ChannelSpec *spec);
extern void ChannelCheckPlain(const ChannelSpec *spec, const RenderChannel *channel);
extern void ChannelCheckStatuses(ArrayType *statuses);
extern void ChannelCheckTimeout(Datum timeout);
extern void ChannelCheckRate(int per_second);
extern void ChannelCheckQuiet(bool has_from, bool has_until, TimeADT from, TimeADT until,
							  text *time_zone);
extern void ChannelCheckQuietReminders(const char *what);
extern void ChannelCheckRule(const ChannelSpec *spec, Datum rule);
extern void ChannelCheckMessage(const char *subject, const char *body);

#endif							/* COUPON_CHANNEL_CHECK_H */
