/*
 * shop_role.h
 *		Which shops the current user may see.
 */
#ifndef COUPON_SHOP_ROLE_H
#define COUPON_SHOP_ROLE_H

/* Kinds of role, as coupon_grant gives them: a set. */
typedef enum RoleKinds
{
	ROLE_APPLICATION = 1,
	ROLE_OPERATOR = 2,
	ROLE_MONITOR = 4,
	ROLE_OFFICE = ROLE_OPERATOR | ROLE_MONITOR,
	ROLE_ANY = ROLE_APPLICATION | ROLE_OFFICE
} RoleKinds;

extern void RoleInit(void);
extern bool RoleIsBound(RoleKinds kinds);
extern void RoleRequireUnbound(RoleKinds kinds, const char *detail);
extern bool RoleSeesShop(RoleKinds kinds, bool has_shop, int64 shop_number);
extern void RoleBoundShops(RoleKinds kinds, Datum *shops, char *null);

#endif							/* COUPON_SHOP_ROLE_H */
