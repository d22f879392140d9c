/*
 * secret.h
 *		Writing coupon_secret.
 */
#ifndef COUPON_SECRET_H
#define COUPON_SECRET_H

/*
 * SQL for the secret of a kind that belongs to "name", null where there is none; both
 * are literals of C, for the text of an OwnerQuery.
 */
#define SECRET_OF(kind, name) \
	"(SELECT s.value FROM %1$s.coupon_secret s" \
	" WHERE s.kind OPERATOR(pg_catalog.=) '" kind "'::pg_catalog.text" \
	" AND s.name OPERATOR(pg_catalog.=) " name ")"

extern void SecretSet(const char *kind, const char *name, const char *value);

#endif							/* COUPON_SECRET_H */
