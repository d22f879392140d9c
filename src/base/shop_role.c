/*
 * shop_role.c
 *		Which shops the current user may see.
 *
 * coupon_grant(role, kind, shop) writes a row of coupon_role.  What a function or view
 * shows asks for the kinds of role that it is for.  A user is bound there unless
 * he has the privileges of a row of such a kind without a shop: templates of other
 * shops, and those of the platform, do not exist for him.  An operator of one shop
 * who is an application of another gets no operator of that by it.
 *
 * Superusers and the owner of the extension are not bound.  A user without any row sees no
 * shop, whatever he may execute: rights and rows may part, in a restore where a role is
 * missing, say.
 *
 * PostgreSQL checks rights when a statement or cursor begins, and we look at each
 * call: memberships, grants and the current user may be others by then.  So a user
 * for whom nothing is found sees no shop.
 *
 * The answer is kept per backend for one user, and dropped when coupon_role
 * changes (a trigger sends a relation cache invalidation, which reaches us at
 * its commit), or memberships.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/array.h"
#include "base/catalog.h"
#include "base/owner_query.h"
#include "base/shop_role.h"

PG_FUNCTION_INFO_V1(coupon_role_changed);
PG_FUNCTION_INFO_V1(coupon_shop_allowed);
PG_FUNCTION_INFO_V1(coupon_shop_operated);

typedef struct RoleGrant
{
	RoleKinds	kind;
	bool		has_shop;
	int64		shop_number;
} RoleGrant;

typedef struct RoleBinding
{
	Oid			user;			/* InvalidOid: nothing known */
	int			ngrants;
	RoleGrant  *grants;			/* in role_context */
} RoleBinding;

static RoleBinding binding;
static Oid	binding_table = InvalidOid;
static uint64 invalidations = 0;
static MemoryContext role_context = NULL;

static OwnerQuery shops_of_user = {
	"SELECT r.shop_number, r.kind FROM %1$s.coupon_role r"
	" JOIN pg_catalog.pg_roles p ON p.oid OPERATOR(pg_catalog.=) r.role::pg_catalog.oid"
	" WHERE pg_catalog.pg_has_role($1, p.oid, 'USAGE'::pg_catalog.text)",
	1, {OIDOID}
};

static void
RightsChanged(Datum arg, int cacheid, uint32 hashvalue)
{
	binding.user = InvalidOid;
	invalidations++;
}

static void
RelationChanged(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == binding_table)
	{
		binding.user = InvalidOid;
		invalidations++;
	}
}

/*
 * RoleInit registers the invalidation callbacks; called from _PG_init.
 */
void
RoleInit(void)
{
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, RightsChanged, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, RightsChanged, (Datum) 0);
	CacheRegisterRelcacheCallback(RelationChanged, (Datum) 0);
}

static RoleKinds
KindOfName(const char *name)
{
	if (strcmp(name, "application") == 0)
		return ROLE_APPLICATION;
	return strcmp(name, "operator") == 0 ? ROLE_OPERATOR : ROLE_MONITOR;
}

/*
 * Memberships are looked up in caches that may be told of a change while we read: what
 * was found amid one is good for this call only.
 */
static void
ReadBinding(Oid user)
{
	Datum		arg = ObjectIdGetDatum(user);
	uint64		seen = invalidations;
	QueryScope	scope;
	uint64		rows;

	if (role_context == NULL)
		role_context = AllocSetContextCreate(TopMemoryContext, "coupon role",
											 ALLOCSET_SMALL_SIZES);
	MemoryContextReset(role_context);
	memset(&binding, 0, sizeof(binding));
	QueryBegin(&scope);
	rows = QueryRunLatest(&shops_of_user, &arg, NULL);
	binding.grants = MemoryContextAlloc(role_context, Max(rows, 1) * sizeof(RoleGrant));
	for (uint64 i = 0; i < rows; i++)
	{
		RoleGrant  *grant = &binding.grants[i];
		bool		isnull;
		Datum		shop = QueryValue(i, 1, &isnull);

		grant->has_shop = !isnull;
		grant->shop_number = isnull ? 0 : DatumGetInt64(shop);
		grant->kind = KindOfName(TextDatumGetCString(QueryText(i, 2, &isnull)));
		binding.ngrants++;
	}
	QueryEnd(&scope);
	binding.user = seen == invalidations ? user : InvalidOid;
}

/*
 * RoleIsBound tells whether the current user, in one of these kinds of role, is
 * bound to certain shops, or to none.
 */
bool
RoleIsBound(RoleKinds kinds)
{
	Oid			user = GetUserId();
	const Catalog *cat = CatalogGet();

	/* First, and without forgetting the user on whose behalf it acts. */
	if (user == cat->owner || superuser_arg(user))
		return false;
	if (binding.user != user || binding_table != cat->role_table)
	{
		binding_table = cat->role_table;
		ReadBinding(user);
	}
	for (int i = 0; i < binding.ngrants; i++)
	{
		if ((binding.grants[i].kind & kinds) != 0 && !binding.grants[i].has_shop)
			return false;
	}
	return true;
}

/*
 * RoleRequireUnbound raises 42501, with the detail given, for a user who, in one of
 * these kinds of role, is bound to certain shops.
 */
void
RoleRequireUnbound(RoleKinds kinds, const char *detail)
{
	if (RoleIsBound(kinds))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("a role that is bound to a shop cannot do this"),
				 errdetail_internal("%s", detail),
				 errhint("Ask somebody whose grant has no shop number.")));
}

/*
 * RoleSeesShop tells whether templates of a shop (has_shop false: of the
 * platform) exist for the current user in one of these kinds of role.
 */
bool
RoleSeesShop(RoleKinds kinds, bool has_shop, int64 shop_number)
{
	if (!RoleIsBound(kinds))
		return true;
	for (int i = 0; has_shop && i < binding.ngrants; i++)
	{
		if ((binding.grants[i].kind & kinds) != 0 && binding.grants[i].shop_number == shop_number)
			return true;
	}
	return false;
}

/*
 * RoleBoundShops returns the shops of a bound user as an array, null for a
 * user who is not bound: a parameter of statements that run as the owner.
 */
void
RoleBoundShops(RoleKinds kinds, Datum *shops, char *null)
{
	int64	   *numbers;
	int			n = 0;

	*null = 'n';
	*shops = (Datum) 0;
	if (!RoleIsBound(kinds))
		return;
	numbers = palloc(Max(binding.ngrants, 1) * sizeof(int64));
	for (int i = 0; i < binding.ngrants; i++)
	{
		if ((binding.grants[i].kind & kinds) != 0)
			numbers[n++] = binding.grants[i].shop_number;
	}
	*shops = ArrayOfInt8(numbers, n);
	*null = ' ';
}

/*
 * coupon_shop_allowed(shop_number) → boolean, for views and row security, which are
 * for operators and monitors.
 */
Datum
coupon_shop_allowed(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(RoleSeesShop(ROLE_OFFICE, false, 0));
	PG_RETURN_BOOL(RoleSeesShop(ROLE_OFFICE, true, PG_GETARG_INT64(0)));
}

/*
 * coupon_shop_operated(shop_number) → boolean, for what operators alone see.
 */
Datum
coupon_shop_operated(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(RoleSeesShop(ROLE_OPERATOR, false, 0));
	PG_RETURN_BOOL(RoleSeesShop(ROLE_OPERATOR, true, PG_GETARG_INT64(0)));
}

/*
 * coupon_role_changed(): statement trigger on coupon_role.
 */
Datum
coupon_role_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "coupon_role_changed: not called as a trigger");
	CacheInvalidateRelcache(trigdata->tg_relation);
	return PointerGetDatum(NULL);
}
