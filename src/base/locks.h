/*
 * locks.h
 *		Tags of the heavyweight locks that coupon takes.
 *
 * They look like advisory locks in pg_locks, with an objsubid that SQL cannot
 * produce (pg_advisory_lock uses 1 and 2).  Where two keys share a tag by
 * chance, one waits for the other for a moment; nothing else depends on it.
 *
 * Order: order lock, task lock, then user lock, then loader lock, then LWLocks of the
 * cache.  Nobody who holds a loader lock waits for a user lock or for a row.  A shop lock
 * is held to the end of a transaction that may do anything: two of them that change
 * several templates in different orders are a deadlock, and one ends with an error.
 */
#ifndef COUPON_LOCKS_H
#define COUPON_LOCKS_H

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"

#define LOCK_CLASS_LOADER 0xC001	/* one loader or gate owner per template */
#define LOCK_CLASS_USER 0xC002	/* one claim per template and user */
#define LOCK_CLASS_TASK 0xC003	/* shared by backends that work at a task or load it */
#define LOCK_CLASS_FOLD 0xC004	/* of a holder: shared by those who write its coupons by hand */
#define LOCK_CLASS_SHOP 0xC005	/* one backend counts the templates of a shop and adds to them */
#define LOCK_CLASS_ORDER 0xC006 /* verbs for one user and order take turns */

static inline void
LockTagOfLoader(LOCKTAG *tag, int64 template_id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (template_id >> 32),
						 (uint32) template_id, LOCK_CLASS_LOADER);
}

static inline void
LockTagOfUser(LOCKTAG *tag, int64 template_id, int64 user_id)
{
	uint64		h = hash_combine64(murmurhash32((uint32) template_id) ^
								   (uint64) (template_id >> 32),
								   hash_bytes_extended((unsigned char *) &user_id,
													   sizeof(user_id), 0));

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (h >> 32), (uint32) h,
						 LOCK_CLASS_USER);
}

static inline void
LockTagOfTask(LOCKTAG *tag, int64 task_id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (task_id >> 32),
						 (uint32) task_id, LOCK_CLASS_TASK);
}

static inline void
LockTagOfFold(LOCKTAG *tag, int32 holder)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, (uint32) holder, LOCK_CLASS_FOLD);
}

static inline void
LockTagOfShop(LOCKTAG *tag, int64 shop_number)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (shop_number >> 32),
						 (uint32) shop_number, LOCK_CLASS_SHOP);
}

static inline void
LockTagOfOrder(LOCKTAG *tag, int64 user_id, const char *order_id)
{
	uint64		h = hash_combine64(hash_bytes_extended((const unsigned char *) order_id,
													   strlen(order_id), 0),
								   hash_bytes_extended((unsigned char *) &user_id,
													   sizeof(user_id), 0));

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (h >> 32), (uint32) h,
						 LOCK_CLASS_ORDER);
}

#endif							/* COUPON_LOCKS_H */
