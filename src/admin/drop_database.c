/*
 * drop_database.c
 *		What shared memory has of a database goes when that is dropped.
 *
 * DROP DATABASE calls the hook when it holds the database locked and nobody is in
 * it.  Should it fail after that, what is gone is read again.
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"

#include "admin/drop_database.h"
#include "stock/cache.h"

static object_access_hook_type previous_hook = NULL;

static void
ForgetDatabase(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (previous_hook)
		previous_hook(access, class_id, object_id, sub_id, arg);
	if (access == OAT_DROP && class_id == DatabaseRelationId && CacheIsAttached())
		CacheForgetDatabase(object_id);
}

/*
 * DroppedInit sets the hook; called from _PG_init of the postmaster.
 */
void
DroppedInit(void)
{
	previous_hook = object_access_hook;
	object_access_hook = ForgetDatabase;
}
