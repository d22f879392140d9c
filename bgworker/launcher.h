/*
 * launcher.h
 *		Starts a worker in each database that has the extension.
 */
#ifndef COUPON_LAUNCHER_H
#define COUPON_LAUNCHER_H

extern void LauncherInit(void);
extern PGDLLEXPORT void CouponLauncherMain(Datum arg);

#endif							/* COUPON_LAUNCHER_H */
