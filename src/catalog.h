/*
 * catalog.h
 *		Where the extension's own objects are: OIDs of its tables, partitions
 *		and indexes, looked up once per backend and after any change of them.
 */
#ifndef COUPON_CATALOG_H
#define COUPON_CATALOG_H

#include "access/attnum.h"

/* Fixed: a dump must fit the table that it is restored into. */
#define COUPON_PARTITIONS 32

#define COUPON_COLUMNS 15		/* of user_coupon as it is installed */

/* One partition of user_coupon and the two indexes that C code reads. */
typedef struct CatalogLeaf
{
	Oid			relation;
	Oid			user_index;		/* unique (template_id, user_id, receive_seq) */
	Oid			id_index;		/* (id) */
	bool		direct;			/* nothing on it needs the executor at insert */
} CatalogLeaf;

typedef struct Catalog
{
	char		schema[NAMEDATALEN];
	Oid			owner;			/* of coupon_template; SQL runs as this role */
	Oid			template_table;
	Oid			template_pkey;
	Oid			coupon_table;
	Oid			stock_table;
	Oid			role_table;
	Oid			queue_table;	/* coupon_notification */
	Oid			history_table;	/* coupon_notification_history */
	Oid			remind_table;
	CatalogLeaf leaf[COUPON_PARTITIONS];	/* by hash remainder */
	uint64		guard;			/* of the triggers on all leaves: another one
								 * after any change; 0: some do not fire */
	uint64		template_guard; /* the same of coupon_template and its file */
	AttrNumber	att_id;			/* columns of user_coupon */
	AttrNumber	att_user_id;
	AttrNumber	att_template_id;
	AttrNumber	att_received_at;
	AttrNumber	att_use_start;
	AttrNumber	att_use_end;
	AttrNumber	att_receive_seq;
	AttrNumber	att_holder;
	AttrNumber	att_status;
	AttrNumber	att_source;
	AttrNumber	att_request_id;
} Catalog;

extern void CatalogInit(void);
extern const Catalog *CatalogGet(void);
extern bool CatalogIsCurrent(void);
extern uint64 CatalogEpoch(void);
extern int	CatalogLeafNumber(int64 user_id);

#endif							/* COUPON_CATALOG_H */
