/*
 * rows.h
 *		Reading user_coupon and coupon_template through their indexes, below
 *		the level of SQL.
 */
#ifndef COUPON_ROWS_H
#define COUPON_ROWS_H

#include "datatype/timestamp.h"
#include "utils/snapshot.h"

/* What a user holds of one template. */
typedef struct RowsOfUser
{
	int32		last_seq;		/* highest receive_seq, 0: none */
	bool		repeated;		/* the request id was found: */
	int64		coupon_id;
	int32		receive_seq;
	TimestampTz use_end;
} RowsOfUser;

/* A transaction that has inserted a coupon of the user and is still open. */
typedef struct RowsOpenClaim
{
	TransactionId xid;			/* InvalidTransactionId: there is none */
	uint32		speculative_token;
} RowsOpenClaim;

/* An open partition, for many probes. */
typedef struct RowsLeaf RowsLeaf;

extern void RowsProbe(int64 template_id, int64 user_id, const char *request_id,
					  RowsOfUser *rows, RowsOpenClaim *open);
extern RowsLeaf *RowsOpenLeaf(int number);
extern void RowsProbeLeaf(RowsLeaf *leaf, int64 template_id, int64 user_id,
						  const char *request_id, RowsOfUser *rows,
						  RowsOpenClaim *open);
extern void RowsCloseLeaf(RowsLeaf *leaf);
extern void RowsWaitFor(const RowsOpenClaim *open);
extern int64 RowsCountIssued(int64 template_id, int64 watermark, bool by_id,
							 Snapshot snapshot);
extern int64 RowsLoadUserFilter(int64 template_id, int64 upto);
extern bool RowsTemplateExists(int64 template_id, bool *own);

#endif							/* COUPON_ROWS_H */
