/*
 * procedure.h
 *		Procedures that commit as they go.
 */
#ifndef COUPON_PROCEDURE_H
#define COUPON_PROCEDURE_H

#include "fmgr.h"

extern void ProcedureBegin(FunctionCallInfo fcinfo, const char *name,
						   const char *instead);
extern void ProcedureNextTransaction(void);
extern void ProcedureEnd(void);

#endif							/* COUPON_PROCEDURE_H */
