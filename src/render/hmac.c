/*
 * hmac.c
 *		HMAC-SHA256 over a request, as its signature.
 *
 * Every request is signed with the same few keys.  OpenSSL's contexts are kept,
 * with the key worked in: looking up the digest and the key's two blocks cost
 * more than a short body.  pg_hmac_init does them each time, so where PostgreSQL
 * has OpenSSL this calls it directly, as pgcrypto does.
 *
 * It is called outside transactions, where there is no resource owner, while
 * PostgreSQL's contexts want one: a single context, with an owner of its own,
 * serves this process for all its life.
 */
#include "postgres.h"

#ifdef USE_OPENSSL
#include <openssl/evp.h>
#include <openssl/hmac.h>
#else
#include "common/hmac.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#endif

#include "render/hmac.h"

#ifdef USE_OPENSSL

/* Contexts by the place of a secret in its channel; the last is for all others. */
#define KEPT 3

typedef struct Kept
{
	HMAC_CTX   *hmac;
	RenderSecret secret;		/* that is worked in; length 0: none */
} Kept;

static void
Fail(void)
{
	elog(ERROR, "could not compute a signature");
}

/* The context of a secret, ready for a text. */
static HMAC_CTX *
Begin(int place, const RenderSecret *secret)
{
	static Kept kept[KEPT];
	Kept	   *k = &kept[Min(place, KEPT - 1)];

	if (k->hmac == NULL)
		k->hmac = HMAC_CTX_new();
	if (k->hmac == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (k->secret.length == secret->length &&
		memcmp(k->secret.key, secret->key, secret->length) == 0)
	{
		if (HMAC_Init_ex(k->hmac, NULL, 0, NULL, NULL) != 1)
			Fail();
		return k->hmac;
	}
	k->secret.length = 0;
	if (HMAC_Init_ex(k->hmac, secret->key, secret->length, EVP_sha256(), NULL) != 1)
		Fail();
	k->secret = *secret;
	return k->hmac;
}

/*
 * RenderHmac computes the digest of texts, up to a NULL one, with a secret; place
 * is that of the secret in its channel.
 */
void
RenderHmac(int place, const RenderSecret *secret, const RenderBytes *texts,
		   uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	HMAC_CTX   *hmac = Begin(place, secret);

	for (; texts->data != NULL; texts++)
	{
		if (HMAC_Update(hmac, (const uint8 *) texts->data, texts->length) != 1)
			Fail();
	}
	if (HMAC_Final(hmac, digest, NULL) != 1)
		Fail();
}

#else							/* !USE_OPENSSL */

static pg_hmac_ctx *hmac = NULL;

static void
MakeHmac(void)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);
	ResourceOwner old_owner = CurrentResourceOwner;

	CurrentResourceOwner = ResourceOwnerCreate(NULL, "coupon signatures");
	hmac = pg_hmac_create(PG_SHA256);
	CurrentResourceOwner = old_owner;
	MemoryContextSwitchTo(old_context);
	if (hmac == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
}

void
RenderHmac(int place, const RenderSecret *secret, const RenderBytes *texts,
		   uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	bool		good;

	if (hmac == NULL)
		MakeHmac();
	good = pg_hmac_init(hmac, secret->key, secret->length) >= 0;
	for (; texts->data != NULL && good; texts++)
		good = pg_hmac_update(hmac, (const uint8 *) texts->data, texts->length) >= 0;
	if (!good || pg_hmac_final(hmac, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute a signature: %s", pg_hmac_error(hmac));
}

#endif							/* USE_OPENSSL */
