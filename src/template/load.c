/*
 * load.c
 *		Bring a template into the shared cache: attributes, quota and count in
 *		one snapshot, by one loader at a time.
 *
 * Single flight.  The loader holds a heavyweight lock, so that waiters are
 * seen by the deadlock detector, can be cancelled, and go on when the loader
 * fails.  (A condition variable would hang where a waiter holds the lock that
 * the loader needs.)
 *
 * Overtaken loaders.  An entry exists, as CACHE_LOADING at least, before the
 * snapshot is taken.  A writer that commits after the snapshot finds it and
 * gives it a new generation; the loader, which remembers the old one, then
 * reads again.  Nothing is remembered about templates that do not exist.
 *
 * Exactness.  At a load nobody has a reservation, since entries with pending
 * units never leave the cache.  An entry whose count is due lets nobody make
 * one; if some are open still, the gate waits for them.  So folded count and
 * rows past the watermark are all there is.
 *
 * A transaction that has itself changed the template would read its own,
 * uncommitted attributes: it publishes the count alone and leaves the entry
 * stale, for the next one to fill in.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "storage/lock.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/catalog.h"
#include "base/count_snapshot.h"
#include "base/errors.h"
#include "base/locks.h"
#include "base/owner_query.h"
#include "stock/cache.h"
#include "stock/xact_changes.h"
#include "store/rows.h"
#include "store/user_filter.h"
#include "template/template.h"

/*
 * Up to so many folded coupons, all rows of the template are read to count
 * those past the watermark; above, all rows past the watermark are, of
 * whatever template.  So a cold template does not pay for the last seconds'
 * claims of a hot one, nor a hot one for its whole campaign.
 */
#define COUNT_BY_ID_FROM 1000

/*
 * Up to so many coupons, their holders are read into the user
 * filter, from the index alone: some ten milliseconds at most.
 */
#define FILTER_UPTO 100000

static OwnerQuery read_template = {
	"SELECT t.status, t.open_to, t.shop_number, t.receive_start, t.receive_end,"
	" t.per_user_limit, t.total_stock, t.use_validity, t.use_start, t.use_end,"
	" (SELECT pg_catalog.sum(s.quota)::pg_catalog.int8 FROM %1$s.coupon_stock s"
	"   WHERE s.template_id OPERATOR(pg_catalog.=) t.id"
	"   AND s.holder OPERATOR(pg_catalog.<>) 0),"
	" (SELECT s.folded FROM %1$s.coupon_stock s"
	"   WHERE s.template_id OPERATOR(pg_catalog.=) t.id"
	"   AND s.holder OPERATOR(pg_catalog.=) 0),"
	" (SELECT w.upto FROM %1$s.coupon_watermark w"
	"   WHERE w.holder OPERATOR(pg_catalog.=) 0)"
	" FROM %1$s.coupon_template t WHERE t.id OPERATOR(pg_catalog.=) $1",
	1, {INT8OID}
};

static int64
ColumnInt8(int column, int64 if_null)
{
	bool		isnull;
	Datum		value = QueryValue(0, column, &isnull);

	return isnull ? if_null : DatumGetInt64(value);
}

static TimestampTz
ColumnTime(int column, TimestampTz if_null)
{
	bool		isnull;
	Datum		value = QueryValue(0, column, &isnull);

	return isnull ? if_null : DatumGetTimestampTz(value);
}

static void
RefuseColumns(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_COUPON_NOT_INSTALLED),
			 errmsg("the columns of \"coupon_template\" are not as they were installed"),
			 errhint("Undo what was changed with ALTER TABLE.")));
}

/* First letter of a text column that a CHECK keeps to known words. */
static char
ColumnLetter(int column)
{
	bool		isnull;
	Datum		value = QueryValue(0, column, &isnull);
	text	   *word;

	if (isnull)
		RefuseColumns();
	word = DatumGetTextPP(value);
	return VARSIZE_ANY_EXHDR(word) > 0 ? *VARDATA_ANY(word) : '\0';
}

/* ALTER TABLE may have changed the types of what read_template reads. */
static void
CheckColumns(void)
{
	static const Oid types[] = {
		TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT8OID,
		INTERVALOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, INT8OID
	};

	for (int i = 0; i < lengthof(types); i++)
	{
		if (SPI_gettypeid(SPI_tuptable->tupdesc, i + 1) != types[i])
			RefuseColumns();
	}
}

static void
FillAttrs(TemplateAttrs *attrs)
{
	bool		isnull;
	Datum		value;
	char		open_to = ColumnLetter(2);
	char		status = ColumnLetter(1);

	memset(attrs, 0, sizeof(*attrs));
	attrs->status = status == 'p' ? TEMPLATE_PUBLISHED :
		status == 'd' ? TEMPLATE_DRAFT : TEMPLATE_OFFLINE;
	attrs->open_to = open_to == 'a' ? TEMPLATE_ANYONE :
		open_to == 'r' ? TEMPLATE_REGISTRATION :
		open_to == 't' ? TEMPLATE_TASK : TEMPLATE_CODE;
	value = QueryValue(0, 3, &isnull);
	attrs->has_shop = !isnull;
	attrs->shop_number = isnull ? 0 : DatumGetInt64(value);
	attrs->receive_start = ColumnTime(4, DT_NOBEGIN);
	attrs->receive_end = ColumnTime(5, DT_NOEND);
	attrs->per_user_limit = DatumGetInt32(QueryValue(0, 6, &isnull));
	value = QueryValue(0, 8, &isnull);
	if (!isnull)
		attrs->use_validity = *DatumGetIntervalP(value);
	attrs->use_start = ColumnTime(9, DT_NOBEGIN);
	value = QueryValue(0, 10, &isnull);
	attrs->has_use_end = !isnull;
	attrs->use_end = isnull ? DT_NOEND : DatumGetTimestampTz(value);
}

/*
 * TemplateReadRow reads what a claim needs of a template and its stock, in one
 * statement; false where the snapshot shows no such template.
 */
bool
TemplateReadRow(int64 template_id, Snapshot snapshot, TemplateRow *row)
{
	Datum		arg = Int64GetDatum(template_id);
	QueryScope	scope;
	bool		found;

	QueryBegin(&scope);
	found = QueryRunSnapshot(&read_template, &arg, NULL, snapshot) == 1;
	if (found)
	{
		bool		isnull;
		Datum		total;

		CheckColumns();
		FillAttrs(&row->attrs);
		total = QueryValue(0, 7, &isnull);
		row->others = ColumnInt8(11, 0);
		row->quota = isnull ? CACHE_UNLIMITED :
			DatumGetInt64(total) - row->others;
		row->folded = ColumnInt8(12, 0);
		row->watermark = ColumnInt8(13, 0);
	}
	QueryEnd(&scope);
	return found;
}

/*
 * TemplateCountIssued counts what this database has issued, by the tables.
 */
int64
TemplateCountIssued(int64 template_id, const TemplateRow *row,
					Snapshot snapshot)
{
	return row->folded + RowsCountIssued(template_id, row->watermark,
										 row->folded >= COUNT_BY_ID_FROM,
										 snapshot);
}

/*
 * TemplateLockLoader takes the loader lock of a template until the end of the
 * transaction, or TemplateUnlockLoader.
 */
void
TemplateLockLoader(int64 template_id, LOCKMODE mode)
{
	LOCKTAG		tag;

	LockTagOfLoader(&tag, template_id);
	(void) LockAcquire(&tag, mode, false, false);
}

/*
 * TemplateUnlockLoader releases it.
 */
void
TemplateUnlockLoader(int64 template_id, LOCKMODE mode)
{
	LOCKTAG		tag;

	LockTagOfLoader(&tag, template_id);
	(void) LockRelease(&tag, mode, false);
}

static bool
ChangedHere(int64 template_id)
{
	return ChangesHas(CHANGE_EDITED, template_id) ||
		ChangesHas(CHANGE_CREATED, template_id);
}

/* Whether the entry already has what this transaction may use of it. */
static bool
IsLoaded(const CacheKey *key)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;
	bool		loaded;

	LWLockAcquire(lock, LW_SHARED);
	entry = CacheFind(key);
	loaded = entry != NULL && entry->state == CACHE_READY &&
		!CacheCanRecount(entry);
	if (loaded && entry->stale)
		loaded = ChangedHere(key->template_id);
	LWLockRelease(lock);
	return loaded;
}

/* The template is gone: so is its entry, unless someone is using it. */
static void
Forget(const CacheKey *key)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	if (entry != NULL && !entry->gated &&
		pg_atomic_read_u64(&entry->pending) == 0)
		CacheRemove(entry);
	LWLockRelease(lock);
}

/*
 * TemplateNoteCreated notes that this transaction has inserted a template.  Under an
 * id that was in use before there may be an entry, whose numbers mean the last one.
 */
void
TemplateNoteCreated(Oid relation, int64 template_id)
{
	CacheKey	key;

	if (!CacheIsAttached() || ChangesHas(CHANGE_CREATED, template_id))
		return;
	CacheMakeKey(&key, relation, template_id);
	StockShut(&key);
	ChangesAdd(CHANGE_CREATED, relation, template_id);
}

/* Make the entry's place; returns its generation, and whether to count. */
static uint64
ReservePlace(const CacheKey *key, bool *count)
{
	LWLock	   *lock = CachePartitionLock(key);
	CacheEntry *entry = CacheFindOrCreate(key, lock);
	uint64		generation = entry->generation;

	if (entry->state == CACHE_LOADING || CacheCanRecount(entry))
		*count = true;
	LWLockRelease(lock);
	return generation;
}

/*
 * Put all who hold coupons of the template into the filter, if they are not too
 * many; false: the filter does not have them all.  none: the template has no
 * row that the caller's snapshot could see.
 */
static bool
LoadUserFilter(int64 template_id, int64 folded, bool *none)
{
	int64		rows;

	*none = false;
	if (!UserFilterIsOn() || folded > FILTER_UPTO)
		return false;
	rows = RowsLoadUserFilter(template_id, FILTER_UPTO);
	*none = rows == 0;
	return rows <= FILTER_UPTO;
}

/* Store what was read unless the entry has changed meanwhile. */
static bool
Publish(const CacheKey *key, uint64 generation, const TemplateRow *row,
		bool count, int64 issued, bool filter_complete)
{
	LWLock	   *lock = CachePartitionLock(key);
	bool		attributes = !ChangedHere(key->template_id);
	CacheEntry *entry;
	bool		current;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = CacheFind(key);
	current = entry != NULL && entry->generation == generation;
	if (current)
	{
		if (attributes)
		{
			memcpy(entry->payload, &row->attrs, sizeof(row->attrs));
			entry->quota = row->quota;
			entry->stale = false;
		}
		else if (count)
			entry->stale = true;
		if (count)
		{
			pg_atomic_write_u64(&entry->issued, issued);
			entry->recount = false;
			entry->filter_complete |= filter_complete;
			entry->limit_stamp = CacheNextGeneration();
		}
		entry->state = CACHE_READY;
		entry->generation = CacheNextGeneration();
		CacheCountEvent(count ? CACHE_EVENT_LOAD : CACHE_EVENT_REFRESH);
	}
	LWLockRelease(lock);
	return current;
}

/*
 * Count the coupons of a template, and note their holders; returns how many this
 * database has issued.  filter_complete: the user filter has them all.
 */
static int64
Count(int64 template_id, const TemplateRow *row, Snapshot snapshot, bool *filter_complete)
{
	bool		none;

	/* A template that nobody has claimed is not looked for twice. */
	*filter_complete = LoadUserFilter(template_id, row->folded, &none);
	return none ? row->folded : TemplateCountIssued(template_id, row, snapshot);
}

/* The loader's work, with its lock held; false where there is no template.  own: its row is ours. */
static bool
LoadLocked(const CacheKey *key, bool count_again, bool own)
{
	bool		published = false;
	bool		found = true;

	while (found && !published)
	{
		bool		count = count_again;
		uint64		generation;
		TemplateRow row;
		int64		issued = 0;
		bool		filter_complete = false;
		CountSnapshot now;

		CHECK_FOR_INTERRUPTS();
		generation = ReservePlace(key, &count);
		if (count)
			TemplateRefuseOwnRows(key->template_id);
		CountSnapshotTake(&now, count);
		CountSnapshotRefuseOwnDdl(&now);
		found = TemplateReadRow(key->template_id, now.snapshot, &row);
		if (found && count)
			issued = Count(key->template_id, &row, now.snapshot, &filter_complete);
		CountSnapshotRelease(&now);
		if (found && own && !ChangedHere(key->template_id))
		{
			/*
			 * Inserted by a statement that has not reached its AFTER triggers
			 * yet: ours alone.
			 */
			TemplateNoteCreated(key->relation, key->template_id);
			Forget(key);
			return true;
		}
		if (found)
			published = Publish(key, generation, &row, count, issued, filter_complete);
	}
	if (!found)
		Forget(key);
	return found;
}

static void
RefuseOwnUnits(const CacheKey *key)
{
	StockNumbers numbers;

	if (StockRead(key, &numbers) && numbers.own > 0)
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_IN_TRANSACTION),
				 errmsg("the coupons of template %lld must be counted anew, but this transaction holds some of its stock",
						(long long) key->template_id),
				 errdetail("Coupons were written by hand, or templates deleted or truncated, meanwhile."),
				 errhint("Roll back and try again.")));
}

/*
 * TemplateLoad makes sure that the template is in the cache and fresh; returns
 * false where there is no such template.  With count_again, its coupons are
 * counted anew while the gate is closed.
 *
 * Raises VC004 where the cache is full, VC008 where the gate timed out, VC013 where
 * this transaction holds units of what is to be counted anew: some have rows by now,
 * and some have not.
 */
bool
TemplateLoad(int64 template_id, bool count_again)
{
	TimestampTz deadline = StockGateDeadline();
	CacheKey	key;
	bool		found = true;
	bool		own;

	/* The loader lock does not keep processes of one query from each other. */
	PreventCommandIfParallelMode("loading of a coupon template");
	CacheMakeKey(&key, CatalogGet()->template_table, template_id);
	if (!RowsTemplateExists(template_id, &own))
	{
		if (StockRead(&key, &(StockNumbers) {0}))
			Forget(&key);
		return false;
	}

	TemplateLockLoader(template_id, ExclusiveLock);
	if (count_again || !IsLoaded(&key))
	{
		bool		gated;

		if (count_again)
			RefuseOwnUnits(&key);
		gated = count_again && StockCloseGate(&key, deadline);
		found = LoadLocked(&key, count_again, own);
		if (gated)
			StockOpenGate(&key);
	}
	TemplateUnlockLoader(template_id, ExclusiveLock);
	return found;
}
