/*
 * channel_names.c
 *		The channels that notifications go out by.
 *
 * Their numbers are stored, as bits of remind_bitmap: new ones come last.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "base/channel_names.h"
#include "base/errors.h"

PG_FUNCTION_INFO_V1(coupon_channel_names);

static const char *const names[CHANNELS] = {
	"sms", "email", "app", "ch3", "ch4"
};

/*
 * ChannelName returns the name of a channel by its number, from 0.
 */
const char *
ChannelName(int channel)
{
	Assert(channel >= 0 && channel < CHANNELS);
	return names[channel];
}

/*
 * ChannelOfWord returns the number of the channel that these bytes name, -1 if
 * they name none.
 */
int
ChannelOfWord(const char *word, size_t length)
{
	for (int channel = 0; channel < CHANNELS; channel++)
	{
		if (strlen(names[channel]) == length && memcmp(names[channel], word, length) == 0)
			return channel;
	}
	return -1;
}

/*
 * ChannelOfName is ChannelOfWord for a string.
 */
int
ChannelOfName(const char *name)
{
	return ChannelOfWord(name, strlen(name));
}

/*
 * ChannelRequire returns the number of a channel; raises VC003 if none has the
 * name.
 */
int
ChannelRequire(const char *name)
{
	int			channel = ChannelOfName(name);

	if (channel < 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("\"%s\" is not a channel", name),
				 errhint(CHANNEL_HINT)));
	return channel;
}

/*
 * coupon_channel_names() → text[]: all channels, in the order of their numbers.
 */
Datum
coupon_channel_names(PG_FUNCTION_ARGS)
{
	Datum		elements[CHANNELS];

	for (int channel = 0; channel < CHANNELS; channel++)
		elements[channel] = CStringGetTextDatum(names[channel]);
	PG_RETURN_ARRAYTYPE_P(construct_array(elements, CHANNELS, TEXTOID, -1, false,
										  TYPALIGN_INT));
}
