/*
 * render_hmac.h
 *		HMAC-SHA256 over a request, as its signature.
 */
#ifndef COUPON_RENDER_HMAC_H
#define COUPON_RENDER_HMAC_H

#include "common/sha2.h"

#include "render.h"

typedef struct RenderBytes
{
	const char *data;
	int			length;
} RenderBytes;

extern void RenderHmac(int place, const RenderSecret *secret, const RenderBytes *texts,
					   uint8 digest[PG_SHA256_DIGEST_LENGTH]);

#endif							/* COUPON_RENDER_HMAC_H */
