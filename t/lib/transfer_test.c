/*
 * transfer_test.c
 *		Transfers from SQL, for t/015_transfer.pl, which compiles it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "bgworker/curl/transfer.h"
#include "src/base/compat.h"

PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(transfer_test);

static char *
Text(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

/* An array of texts, with a NULL at its end; NULL for NULL. */
static const char **
Texts(FunctionCallInfo fcinfo, int i, int *count)
{
	Datum	   *datums;
	bool	   *nulls;
	const char **texts;

	if (PG_ARGISNULL(i))
		return NULL;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(i), TEXTOID, -1, false, TYPALIGN_INT,
					  &datums, &nulls, count);
	texts = palloc0((*count + 1) * sizeof(char *));
	for (int n = 0; n < *count; n++)
		texts[n] = TextDatumGetCString(datums[n]);
	return texts;
}

static double
Milliseconds(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_MILLISEC(now);
}

static void
Start(TransferRequest *request, const char *body, int64 number)
{
	MemoryContext own = AllocSetContextCreate(CurrentMemoryContext, "start",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(own);

	request->body = psprintf("%s%lld\r\n", body, (long long) number);
	request->body_length = strlen(request->body);
	TransferStart(request, (void *) (intptr_t) number);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(own);	/* everything was copied */
}

static void
Put(ReturnSetInfo *set, const TransferResult *result, double ms)
{
	Datum		values[6];
	bool		nulls[6] = {false};

	values[0] = Int64GetDatum((intptr_t) result->owner);
	values[1] = Int32GetDatum(result->status);
	values[2] = BoolGetDatum(result->sent_nothing);
	values[3] = Int64GetDatum(result->retry_after);
	values[4] = CStringGetTextDatum(result->error);
	values[5] = Float8GetDatum(ms);
	tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
}

static void
Wait(void)
{
	WaitEventSet *set = CompatCreateWaitEventSet(CurrentMemoryContext, 3);
	WaitEvent	event;

	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	if (IsUnderPostmaster)		/* or single-user mode, for valgrind */
		AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(set, WL_SOCKET_READABLE, TransferSocket(), NULL, NULL);
	WaitEventSetWait(set, TransferTimeout(), &event, 1, PG_WAIT_EXTENSION);
	FreeWaitEventSet(set);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * n transfers, to the endpoints in turn, so many at a time; number i has the
 * body followed by i.  Returns (number, status, sent_nothing, retry_after,
 * error, ms since the start of all).
 */
Datum
transfer_test(PG_FUNCTION_ARGS)
{
	int			endpoints = 0;
	int			ignored;
	const char **endpoint = Texts(fcinfo, 0, &endpoints);
	int			n = PG_GETARG_INT32(1);
	int			in_flight = PG_GETARG_INT32(2);
	char	   *body = Text(fcinfo, 3);
	TransferRequest request = {.timeout = PG_GETARG_INT32(4)};
	double		began = Milliseconds();
	int			started = 0;

	request.headers = (const char *const *) Texts(fcinfo, 5, &ignored);
	request.username = Text(fcinfo, 6);
	request.password = Text(fcinfo, 7);
	request.mail_from = Text(fcinfo, 8);
	request.mail_to = (const char *const *) Texts(fcinfo, 9, &ignored);
	InitMaterializedSRF(fcinfo, 0);

	PG_TRY();
	{
		while (started < n || TransferInFlight() > 0)
		{
			TransferResult result;

			for (; started < n && TransferInFlight() < in_flight; started++)
			{
				request.endpoint = endpoint[started % endpoints];
				Start(&request, body, started);
			}
			TransferDrive();
			while (TransferNext(&result))
			{
				Put((ReturnSetInfo *) fcinfo->resultinfo, &result, Milliseconds() - began);
				free(result.body);
			}
			if (TransferInFlight() > 0 && (started == n || TransferInFlight() == in_flight))
				Wait();
		}
	}
	PG_FINALLY();
	{
		TransferForgetAll();
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}
