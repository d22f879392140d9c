/*
 * caller.h
 *		Functions that are not ours run as the caller, also where a statement
 *		of ours runs them as the owner of the extension.
 */
#ifndef COUPON_CALLER_H
#define COUPON_CALLER_H

extern void CallerInit(void);
extern int	CallerBeginScope(Oid caller, int sec_context, const char *path, Oid owner);
extern void CallerEndScope(int scope);
extern bool CallerSqlIsOurs(void);

#endif							/* COUPON_CALLER_H */
