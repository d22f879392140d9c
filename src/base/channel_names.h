/*
 * channel_names.h
 *		The channels that notifications go out by.
 */
#ifndef COUPON_CHANNEL_NAMES_H
#define COUPON_CHANNEL_NAMES_H

#define CHANNELS 5
#define CHANNEL_HINT "Use sms, email, app, ch3 or ch4."

extern const char *ChannelName(int channel);
extern int	ChannelOfWord(const char *word, size_t length);
extern int	ChannelOfName(const char *name);
extern int	ChannelRequire(const char *name);

#endif							/* COUPON_CHANNEL_NAMES_H */
