/*
 * hmac.h
 *		HMAC-SHA256 over a request, as its signature.
 */
#ifndef COUPON_HMAC_H
#define COUPON_HMAC_H

#include "common/sha2.h"

#include "render/request.h"

typedef struct RenderBytes
{
	const char *data;
	int			length;
} RenderBytes;

extern void RenderHmac(int place, const RenderSecret *secret, const RenderBytes *texts,
					   uint8 digest[PG_SHA256_DIGEST_LENGTH]);

#endif							/* COUPON_HMAC_H */
