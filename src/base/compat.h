/*
 * compat.h
 *		Differences between PostgreSQL 15, 16, 17 and 18.  No other file asks
 *		for the version.
 */
#ifndef COUPON_COMPAT_H
#define COUPON_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "common/base64.h"
#include "executor/executor.h"
#include "parser/parse_relation.h"
#include "storage/proc.h"
#include "utils/guc.h"

#if PG_VERSION_NUM < 150000
#error "coupon needs PostgreSQL 15 or later"
#endif

/* Number of this backend among MaxBackends, from 0. */
#if PG_VERSION_NUM >= 170000
#define CompatMyProcNumber()	((int) MyProcNumber)
#else
#define CompatMyProcNumber()	(MyProc->pgprocno)
#endif

/* Which transaction of this backend it is. */
#if PG_VERSION_NUM >= 170000
#define CompatLocalTransactionId()	(MyProc->vxid.lxid)
#else
#define CompatLocalTransactionId()	(MyProc->lxid)
#endif

#if PG_VERSION_NUM >= 180000
#define CompatIndexBeginScan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define CompatIndexBeginScan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/* With "conflict" one with a unique index is reported, speculative, else raised. */
#if PG_VERSION_NUM >= 160000
#define CompatExecInsertIndexTuples(info, slot, estate, conflict) \
	ExecInsertIndexTuples(info, slot, estate, false, (conflict) != NULL, conflict, NIL, false)
#else
#define CompatExecInsertIndexTuples(info, slot, estate, conflict) \
	ExecInsertIndexTuples(info, slot, estate, false, (conflict) != NULL, conflict, NIL)
#endif

/* The range table of a statement that writes one table; "updated" for its triggers. */
static inline void
CompatInitRangeTable(EState *estate, Relation rel, Bitmapset *updated)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
#if PG_VERSION_NUM >= 160000
	{
		List	   *infos = NIL;

		addRTEPermissionInfo(&infos, rte)->updatedCols = updated;
#if PG_VERSION_NUM >= 180000
		ExecInitRangeTable(estate, list_make1(rte), infos, bms_make_singleton(1));
#else
		ExecInitRangeTable(estate, list_make1(rte), infos);
#endif
	}
#else
	rte->updatedCols = updated;
	ExecInitRangeTable(estate, list_make1(rte));
#endif
}

#if PG_VERSION_NUM >= 160000
#define CompatEvalPlanQualInit(epq, estate) EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL)
#else
#define CompatEvalPlanQualInit(epq, estate) EvalPlanQualInit(epq, estate, NULL, NIL, -1)
#endif

#if PG_VERSION_NUM >= 160000
#define CompatDatabaseOwnerCheck(database, role) \
	object_ownercheck(DatabaseRelationId, database, role)
#else
#define CompatDatabaseOwnerCheck(database, role) \
	pg_database_ownercheck(database, role)
#endif

/*
 * How SQL runs as our owner.  From 18 on a deferred trigger runs as the role that
 * queued it, at commit, when nothing of ours is there to switch it (caller.c): a
 * restricted operation refuses to queue one.  Before 18 it runs as the session.
 */
#if PG_VERSION_NUM >= 180000
#define COMPAT_OWNER_CONTEXT (SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION)
#else
#define COMPAT_OWNER_CONTEXT SECURITY_LOCAL_USERID_CHANGE
#endif

#if PG_VERSION_NUM >= 170000
#define CompatCreateWaitEventSet(context, n) CreateWaitEventSet(NULL, n)
#else
#define CompatCreateWaitEventSet(context, n) CreateWaitEventSet(context, n)
#endif

/* Bytes are uint8 from 18 on. */
#if PG_VERSION_NUM >= 180000
#define CompatB64Encode(src, len, dst, dstlen) \
	pg_b64_encode((const uint8 *) (src), len, dst, dstlen)
#define CompatB64Decode(src, len, dst, dstlen) \
	pg_b64_decode(src, len, (uint8 *) (dst), dstlen)
#else
#define CompatB64Encode(src, len, dst, dstlen) \
	pg_b64_encode((const char *) (src), len, dst, dstlen)
#define CompatB64Decode(src, len, dst, dstlen) \
	pg_b64_decode(src, len, (char *) (dst), dstlen)
#endif

/* Memory of a setting: got functions of its own in 16. */
#if PG_VERSION_NUM >= 160000
#define CompatGucMalloc(size)	guc_malloc(LOG, size)
#define CompatGucFree(pointer)	guc_free(pointer)
#else
#define CompatGucMalloc(size)	malloc(size)
#define CompatGucFree(pointer)	free(pointer)
#endif

/* An error of an input function; from 16 on its caller may want it unraised. */
#if PG_VERSION_NUM >= 160000
#define CompatInputError(context, result, ...) ereturn(context, result, __VA_ARGS__)
#else
#define CompatInputError(context, result, ...) ereport(ERROR, __VA_ARGS__)
#endif

/* The module magic got a name in 18. */
#ifdef PG_MODULE_MAGIC_EXT
#define COMPAT_MODULE_MAGIC \
	PG_MODULE_MAGIC_EXT(.name = "coupon", .version = COUPON_VERSION)
#else
#define COMPAT_MODULE_MAGIC PG_MODULE_MAGIC
#endif

#endif							/* COUPON_COMPAT_H */
