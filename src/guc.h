/*
 * guc.h
 *		The settings of coupon.
 */
#ifndef COUPON_GUC_H
#define COUPON_GUC_H

extern PGDLLIMPORT int coupon_batch_size;
extern PGDLLIMPORT int coupon_gate_timeout; /* ms */
extern PGDLLIMPORT int coupon_keep_coupons; /* days, 0: for ever */
extern PGDLLIMPORT int coupon_keep_tasks;	/* the same */
extern PGDLLIMPORT int coupon_max_templates;
extern PGDLLIMPORT int coupon_node_id;

extern void GucInit(void);

#endif							/* COUPON_GUC_H */
