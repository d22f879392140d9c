/*
 * guc.c
 *		Every setting of coupon, in alphabetical order.
 *
 * The two settings that size or stamp shared memory can only be defined while
 * shared_preload_libraries is being loaded; a session that loads the library
 * later sees their defaults and no shared memory.
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "guc.h"

int			coupon_batch_size = 5000;
int			coupon_gate_timeout = 10000;
int			coupon_keep_coupons = 0;
int			coupon_keep_tasks = 90;
int			coupon_max_templates = 4096;
int			coupon_node_id = 0;

/*
 * GucInit defines the settings and reserves the prefix "coupon".
 */
void
GucInit(void)
{
	DefineCustomIntVariable("coupon.batch_size",
							"Sets how many rows a procedure handles between two commits.",
							"From 1 to 100000.",
							&coupon_batch_size,
							5000,
							1,
							100000,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.gate_timeout",
							"Sets how long a recount or a smaller total waits for open claims.",
							"New claims of that template wait meanwhile. From 1 ms to one hour.",
							&coupon_gate_timeout,
							10000,
							1,
							3600 * 1000,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	/* Not for operators to set: what is deleted may be another shop's. */
	DefineCustomIntVariable("coupon.keep_coupons",
							"Sets how many days coupon_purge keeps coupons that are over.",
							"0 keeps them for ever. From 0 to 36500.",
							&coupon_keep_coupons,
							0,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("coupon.keep_tasks",
							"Sets how many days coupon_purge keeps tasks that are finished.",
							"0 keeps them for ever. From 0 to 36500.",
							&coupon_keep_tasks,
							90,
							0,
							36500,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
	{
		DefineCustomIntVariable("coupon.max_templates",
								"Sets how many templates the shared cache holds.",
								"A template with open claims keeps its place; others give theirs up. From 16 to 1048576.",
								&coupon_max_templates,
								4096,
								16,
								1024 * 1024,
								PGC_POSTMASTER,
								0,
								NULL, NULL, NULL);

		DefineCustomIntVariable("coupon.node_id",
								"Sets the number of this server in the ids that it makes.",
								"Servers whose rows meet need different numbers. From 0 to 1023.",
								&coupon_node_id,
								0,
								0,
								1023,
								PGC_POSTMASTER,
								0,
								NULL, NULL, NULL);
	}

	MarkGUCPrefixReserved("coupon");
}
