/*
 * catalog.h
 *		Where the extension's own objects are: OIDs of its tables, partitions
 *		and indexes, looked up once per backend and after any change of them.
 */
#ifndef COUPON_CATALOG_H
#define COUPON_CATALOG_H

#include "access/attnum.h"
#include "utils/relcache.h"

#include "base/installed.h"

/* Fixed: a dump must fit the table that it is restored into. */
#define COUPON_PARTITIONS 32

typedef struct Catalog
{
	char		schema[NAMEDATALEN];
	Oid			owner;			/* of coupon_template; SQL runs as this role */
	Oid			template_table;
	Oid			coupon_table;
	Oid			stock_table;
	Oid			watermark_table;
	Oid			role_table;
	Oid			queue_table;	/* coupon_notification */
	Oid			history_table;	/* coupon_notification_history */
	Oid			remind_table;
	Oid			coupon_guard;	/* the function user_coupon_guard() */
	Oid			coupon_sane;	/* user_coupon_sane(), the CHECK of user_coupon */
	Oid			leaf[COUPON_PARTITIONS];	/* by hash remainder */
} Catalog;

/* A partition of user_coupon that is open, and what C code reads of it. */
typedef struct CatalogLeaf
{
	Relation	rel;
	Oid			user_index;		/* unique (template_id, user_id, receive_seq) */
	Oid			id_index;		/* (id) */
	AttrNumber	column[COUPON_COLUMNS + 1]; /* by CouponColumn */
} CatalogLeaf;

extern void CatalogInit(void);
extern const Catalog *CatalogGet(void);
extern uint64 CatalogVersion(void);
extern int	CatalogLeafNumber(int64 user_id);
extern void CatalogOpenLeaf(int number, CatalogLeaf *leaf);
extern Relation CatalogOpenTemplates(Oid *primary_key);
extern bool CatalogLockForInsert(const bool *wanted);

#endif							/* COUPON_CATALOG_H */
