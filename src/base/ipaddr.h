/*
 * ipaddr.h
 *		Internet addresses: which of them are not to be connected to.
 */
#ifndef COUPON_IPADDR_H
#define COUPON_IPADDR_H

#include <sys/socket.h>

/* 10.0.0.0/8: the first "bits" bits of 4 (IPv4) or 16 (IPv6) bytes. */
typedef struct AddressRange
{
	uint8		bytes[16];
	uint8		length;			/* 4 or 16 */
	uint8		bits;
} AddressRange;

#define ADDRESS_TEXT_LENGTH 46	/* INET6_ADDRSTRLEN */

extern bool AddressParseRange(const char *text, size_t length, AddressRange *range);
extern bool AddressIsDenied(const struct sockaddr *address,
							const AddressRange *ranges, int count);
extern bool AddressFromText(const char *text, struct sockaddr_storage *address);
extern void AddressToText(const struct sockaddr *address, char *text);

#endif							/* COUPON_IPADDR_H */
