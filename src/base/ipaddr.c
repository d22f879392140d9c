/*
 * ipaddr.c
 *		Internet addresses: which of them are not to be connected to.
 *
 * Pure arithmetic; nothing here allocates or raises an error, since it is
 * called from inside libcurl.
 *
 * An endpoint is chosen by whoever may set up a channel, and a name may
 * resolve to anything.  So the address itself is looked at, when it is about
 * to be connected to: never what the URL looks like, which can be written in
 * many ways.  Refused are addresses that are of this machine's network alone
 * (link-local, which is where clouds keep their metadata and credentials),
 * that are no single receiver (multicast, broadcast), or that stand for "any".
 * Loopback and private networks are where most gateways are, and are allowed;
 * coupon.endpoint_deny adds ranges.
 *
 * An IPv6 address that carries an IPv4 address may be translated on the way,
 * so the one inside is looked at as well.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/ipaddr.h"

#define RANGE4(a, b, c, d, bits) {{a, b, c, d}, 4, bits}

static const AddressRange built_in[] = {
	RANGE4(0, 0, 0, 0, 8),		/* "this network" */
	RANGE4(169, 254, 0, 0, 16), /* link-local, with metadata of most clouds */
	RANGE4(100, 100, 100, 200, 32), /* metadata of others */
	RANGE4(168, 63, 129, 16, 32),
	RANGE4(192, 0, 0, 192, 32),
	RANGE4(224, 0, 0, 0, 4),	/* multicast */
	RANGE4(255, 255, 255, 255, 32), /* broadcast */
	{{0}, 16, 128},				/* :: */
	{{0xfe, 0x80}, 16, 10},		/* link-local */
	{{0xff}, 16, 8},			/* multicast */
	{{0x20, 0x01, 0, 0}, 16, 32},	/* Teredo: a tunnel to any IPv4 address */
	/* Metadata. */
	{{0xfd, 0x00, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x23}, 16, 128},
	{{0xfd, 0x00, 0x00, 0xc1, 0, 0, 0, 0, 0, 0, 0, 0, 0xa9, 0xfe, 0xa9, 0xfe}, 16, 128},
	{{0xfd, 0x00, 0x00, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x42}, 16, 128},
	{{0xfd, 0x00, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54}, 16, 128},
	{{0xfd, 0x20, 0x00, 0xce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54}, 16, 128},
};

/* IPv6 addresses with an IPv4 address inside, and where that is. */
static const struct
{
	AddressRange range;
	uint8		at[4];
}			carriers[] = {
	{{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 16, 96}, {12, 13, 14, 15}},	/* mapped */
	{{{0}, 16, 96}, {12, 13, 14, 15}},	/* compatible */
	{{{0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0}, 16, 96}, {12, 13, 14, 15}}, /* translated: RFC 2765 */
	{{{0x00, 0x64, 0xff, 0x9b}, 16, 96}, {12, 13, 14, 15}}, /* NAT64 */
	/* NAT64 of one's own: RFC 6052 knows four ways within /48. */
	{{{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 16, 48}, {12, 13, 14, 15}},
	{{{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 16, 48}, {6, 7, 9, 10}},
	{{{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 16, 48}, {7, 9, 10, 11}},
	{{{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 16, 48}, {9, 10, 11, 12}},
	{{{0x20, 0x02}, 16, 16}, {2, 3, 4, 5}}, /* 6to4 */
};

/* ::1 looks like a compatible 0.0.0.1, and is none. */
static const AddressRange loopback6 = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 16, 128};

static bool
IsIn(const uint8 *bytes, int length, const AddressRange *range)
{
	int			whole = range->bits / 8;
	int			rest = range->bits % 8;

	if (length != range->length || memcmp(bytes, range->bytes, whole) != 0)
		return false;
	return rest == 0 || ((bytes[whole] ^ range->bytes[whole]) >> (8 - rest)) == 0;
}

static bool
IsInAny(const uint8 *bytes, int length, const AddressRange *ranges, int count)
{
	for (int i = 0; i < lengthof(built_in); i++)
	{
		if (IsIn(bytes, length, &built_in[i]))
			return true;
	}
	for (int i = 0; i < count; i++)
	{
		if (IsIn(bytes, length, &ranges[i]))
			return true;
	}
	return false;
}

static bool
CarriesDenied(const uint8 *bytes, const AddressRange *ranges, int count)
{
	if (IsIn(bytes, 16, &loopback6))
		return false;
	for (int i = 0; i < lengthof(carriers); i++)
	{
		uint8		inner[4];

		if (!IsIn(bytes, 16, &carriers[i].range))
			continue;
		for (int b = 0; b < 4; b++)
			inner[b] = bytes[carriers[i].at[b]];
		if (IsInAny(inner, 4, ranges, count))
			return true;
	}
	return false;
}

/*
 * AddressIsDenied tells whether an address must not be connected to: by what
 * it is, or by the ranges.  Whatever is no internet address is denied.
 */
bool
AddressIsDenied(const struct sockaddr *address, const AddressRange *ranges, int count)
{
	if (address->sa_family == AF_INET)
	{
		const uint8 *bytes = (const uint8 *) &((const struct sockaddr_in *) address)->sin_addr;

		return IsInAny(bytes, 4, ranges, count);
	}
	if (address->sa_family == AF_INET6)
	{
		const uint8 *bytes = ((const struct sockaddr_in6 *) address)->sin6_addr.s6_addr;

		return IsInAny(bytes, 16, ranges, count) ||
			CarriesDenied(bytes, ranges, count);
	}
	return true;
}

/* 0 to "most", in plain decimal; -1 if it is anything else. */
static int
ParseBits(const char *text, int most)
{
	int			value = 0;

	if (*text == '\0' || strlen(text) > 3 || strspn(text, "0123456789") != strlen(text))
		return -1;
	for (; *text; text++)
		value = value * 10 + (*text - '0');
	return value <= most ? value : -1;
}

/* A range within ::ffff:0:0/96 means IPv4, which is how it is matched. */
static void
UnmapRange(AddressRange *range)
{
	if (range->length != 16 || range->bits < 96 ||
		!IsIn(range->bytes, 16, &carriers[0].range))
		return;
	memmove(range->bytes, range->bytes + 12, 4);
	memset(range->bytes + 4, 0, 12);
	range->length = 4;
	range->bits -= 96;
}

/*
 * AddressParseRange reads "10.0.0.0/8", "fd00::/8" or a single address.  False:
 * it is none, or has bits set after the prefix, and may be a mistake.
 */
bool
AddressParseRange(const char *text, size_t length, AddressRange *range)
{
	char		copy[ADDRESS_TEXT_LENGTH + 4];
	char	   *slash;
	int			bits;

	if (length >= sizeof(copy) || memchr(text, '\0', length) != NULL)
		return false;
	memcpy(copy, text, length);
	copy[length] = '\0';
	slash = strchr(copy, '/');
	if (slash)
		*slash = '\0';

	memset(range, 0, sizeof(*range));
	range->length = strchr(copy, ':') ? 16 : 4;
	if (inet_pton(range->length == 4 ? AF_INET : AF_INET6, copy, range->bytes) != 1)
		return false;
	bits = slash ? ParseBits(slash + 1, range->length * 8) : range->length * 8;
	if (bits < 0)
		return false;
	range->bits = bits;
	for (int i = bits; i < range->length * 8; i++)
	{
		if (range->bytes[i / 8] & (0x80 >> (i % 8)))
			return false;
	}
	UnmapRange(range);
	return true;
}

/*
 * AddressFromText reads an address, without prefix or port.
 */
bool
AddressFromText(const char *text, struct sockaddr_storage *address)
{
	memset(address, 0, sizeof(*address));
	if (inet_pton(AF_INET, text, &((struct sockaddr_in *) address)->sin_addr) == 1)
		address->ss_family = AF_INET;
	else if (inet_pton(AF_INET6, text, &((struct sockaddr_in6 *) address)->sin6_addr) == 1)
		address->ss_family = AF_INET6;
	return address->ss_family != 0;
}

/*
 * AddressToText writes an address, for people; "text" has room for
 * ADDRESS_TEXT_LENGTH.
 */
void
AddressToText(const struct sockaddr *address, char *text)
{
	const void *bytes = address->sa_family == AF_INET ?
		(const void *) &((const struct sockaddr_in *) address)->sin_addr :
		(const void *) &((const struct sockaddr_in6 *) address)->sin6_addr;

	if (inet_ntop(address->sa_family, bytes, text, ADDRESS_TEXT_LENGTH) == NULL)
		strlcpy(text, "unknown", ADDRESS_TEXT_LENGTH);
}
