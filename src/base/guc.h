/*
 * guc.h
 *		The settings of coupon.
 */
#ifndef COUPON_GUC_H
#define COUPON_GUC_H

#include <sys/socket.h>

extern PGDLLIMPORT int coupon_batch_size;
extern PGDLLIMPORT int coupon_user_filter_memory; /* kB */
extern PGDLLIMPORT char *coupon_databases;
extern PGDLLIMPORT char *coupon_endpoint_ca_file;
extern PGDLLIMPORT char *coupon_endpoint_deny;
extern PGDLLIMPORT int coupon_gate_timeout; /* ms */
extern PGDLLIMPORT int coupon_limit_cache_memory; /* kB */
extern PGDLLIMPORT int coupon_keep_coupons; /* days, 0: for ever */
extern PGDLLIMPORT int coupon_keep_events;	/* the same */
extern PGDLLIMPORT int coupon_keep_notifications; /* the same */
extern PGDLLIMPORT int coupon_keep_reminders;	/* the same */
extern PGDLLIMPORT int coupon_keep_tasks;	/* the same */
extern PGDLLIMPORT int coupon_max_attempts;
extern PGDLLIMPORT int coupon_max_templates;
extern PGDLLIMPORT int coupon_max_workers;
extern PGDLLIMPORT int coupon_node_id;
extern PGDLLIMPORT int coupon_task_share;	/* percent */

extern void GucInit(void);
extern bool GucDeniesAddress(const struct sockaddr *address);
extern bool GucNamesDatabase(const char *name);
extern char *GucPreloadCommand(void);
extern void GucRefuseNotPreloaded(const char *what);

#endif							/* COUPON_GUC_H */
