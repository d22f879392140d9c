/*
 * shop_role.h
 *		Which shops the current user may see.
 */
#ifndef COUPON_SHOP_ROLE_H
#define COUPON_SHOP_ROLE_H

extern void RoleInit(void);
extern bool RoleIsBound(void);
extern void RoleRequireUnbound(const char *detail);
extern bool RoleSeesShop(bool has_shop, int64 shop_number);
extern void RoleBoundShops(Datum *shops, char *null);

#endif							/* COUPON_SHOP_ROLE_H */
