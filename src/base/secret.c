/*
 * secret.c
 *		Writing coupon_secret, the one table of keys and passwords.
 *
 * A secret is read in the statement that reads what it belongs to (SECRET_OF), so that
 * both are of one snapshot.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "base/owner_query.h"
#include "base/secret.h"

static OwnerQuery set_secret = {
	"INSERT INTO %1$s.coupon_secret (kind, name, value) VALUES ($1, $2, $3)"
	" ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value",
	3, {TEXTOID, TEXTOID, TEXTOID}
};

static OwnerQuery delete_secret = {
	"DELETE FROM %1$s.coupon_secret WHERE kind OPERATOR(pg_catalog.=) $1"
	" AND name OPERATOR(pg_catalog.=) $2",
	2, {TEXTOID, TEXTOID}
};

/*
 * SecretSet stores the secret of a kind that belongs to "name"; NULL: there is none.
 * Called within a QueryScope, by whoever holds the row that it belongs to.
 */
void
SecretSet(const char *kind, const char *name, const char *value)
{
	Datum		args[3];

	args[0] = CStringGetTextDatum(kind);
	args[1] = CStringGetTextDatum(name);
	if (value == NULL)
	{
		QueryRun(&delete_secret, args, NULL);
		return;
	}
	args[2] = CStringGetTextDatum(value);
	QueryRun(&set_secret, args, NULL);
}
