/*
 * guc.h
 *		The settings of coupon.
 */
#ifndef COUPON_GUC_H
#define COUPON_GUC_H

extern PGDLLIMPORT int coupon_batch_size;
extern PGDLLIMPORT int coupon_claimants_memory; /* kB */
extern PGDLLIMPORT char *coupon_databases;
extern PGDLLIMPORT int coupon_gate_timeout; /* ms */
extern PGDLLIMPORT int coupon_holdings_memory; /* kB */
extern PGDLLIMPORT int coupon_keep_coupons; /* days, 0: for ever */
extern PGDLLIMPORT int coupon_keep_tasks;	/* the same */
extern PGDLLIMPORT int coupon_max_templates;
extern PGDLLIMPORT int coupon_node_id;
extern PGDLLIMPORT int coupon_task_share;	/* percent */

extern void GucInit(void);
extern bool GucNamesDatabase(const char *name);

#endif							/* COUPON_GUC_H */
