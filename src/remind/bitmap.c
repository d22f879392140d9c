/*
 * bitmap.c
 *		The type remind_bitmap: 64 bits by value, and all that SQL does with it.
 *
 * One column per user and template holds every reminder, so that merging,
 * cancelling and looking for what is next are one machine instruction each.
 * The text form lists reminders in the order in which they fire, so that it is
 * read as a timetable; there is exactly one for each value.
 *
 * Bits 60 to 63 mean nothing and are refused at every door (text, binary,
 * bigint), so no operator has to mask them.  Values compare, hash and sort as
 * their numbers.
 *
 * What is wrong with a value's text, bytes or number raises the state that
 * types of PostgreSQL raise (22P02, 22P03, 22003); a wrong argument of a
 * function raises VC003.  Everything here is pure: no catalog, no shared
 * memory, no state, so no preloading either.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "utils/builtins.h"
#include "utils/sortsupport.h"
#include "utils/timestamp.h"

#include "base/channel_names.h"
#include "base/compat.h"
#include "base/errors.h"
#include "remind/bitmap.h"

PG_FUNCTION_INFO_V1(remind_bitmap_in);
PG_FUNCTION_INFO_V1(remind_bitmap_out);
PG_FUNCTION_INFO_V1(remind_bitmap_recv);
PG_FUNCTION_INFO_V1(remind_bitmap_send);
PG_FUNCTION_INFO_V1(remind_bitmap_of_bigint);
PG_FUNCTION_INFO_V1(remind_bitmap_to_bigint);
PG_FUNCTION_INFO_V1(remind_bitmap_make);
PG_FUNCTION_INFO_V1(remind_bitmap_or);
PG_FUNCTION_INFO_V1(remind_bitmap_and);
PG_FUNCTION_INFO_V1(remind_bitmap_minus);
PG_FUNCTION_INFO_V1(remind_bitmap_contains);
PG_FUNCTION_INFO_V1(remind_bitmap_contained);
PG_FUNCTION_INFO_V1(remind_bitmap_overlaps);
PG_FUNCTION_INFO_V1(remind_bitmap_eq);
PG_FUNCTION_INFO_V1(remind_bitmap_ne);
PG_FUNCTION_INFO_V1(remind_bitmap_lt);
PG_FUNCTION_INFO_V1(remind_bitmap_le);
PG_FUNCTION_INFO_V1(remind_bitmap_gt);
PG_FUNCTION_INFO_V1(remind_bitmap_ge);
PG_FUNCTION_INFO_V1(remind_bitmap_cmp);
PG_FUNCTION_INFO_V1(remind_bitmap_sortsupport);
PG_FUNCTION_INFO_V1(remind_bitmap_hash);
PG_FUNCTION_INFO_V1(remind_bitmap_hash_extended);
PG_FUNCTION_INFO_V1(remind_bitmap_count);
PG_FUNCTION_INFO_V1(remind_bitmap_slots);

#define SPACES " \t\n\r\f\v"
#define END_OF_WORD SPACES "{}@,"

static const char minutes_detail[] = "Reminders are for a multiple of 5 minutes, from 5 to 60, before the start.";

/* Where reading a text has got to. */
typedef struct Reader
{
	const char *text;
	const char *at;
	Node	   *context;		/* who wants errors without raising, or NULL */
} Reader;

/*
 * RemindCheckMinutes raises VC003 where there is no slot so many minutes before
 * the start.
 */
void
RemindCheckMinutes(int minutes)
{
	if (!RemindIsMinutes(minutes))
		ereport(ERROR,
				(errcode(ERRCODE_COUPON_BAD_ARGUMENT),
				 errmsg("minutes %d out of range", minutes),
				 errdetail("%s", minutes_detail),
				 errhint("Use 5, 10, 15 and so on up to 60.")));
}

static bool
Malformed(const Reader *reader, const char *detail)
{
	CompatInputError(reader->context, false,
					 (errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					  errmsg("invalid input syntax for type %s: \"%s\"",
							 "remind_bitmap", reader->text),
					  errdetail("%s", detail),
					  errhint("Write it like {email@20,sms@10}, and {} for none.")));
}

static bool
UnknownChannel(const Reader *reader, const char *word, int length)
{
	CompatInputError(reader->context, false,
					 (errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					  errmsg("invalid input syntax for type %s: \"%s\"",
							 "remind_bitmap", reader->text),
					  errdetail("\"%.*s\" is not a channel.", length, word),
					  errhint(CHANNEL_HINT)));
}

/* Take a character with the white space around it, if it is next. */
static bool
Take(Reader *reader, char wanted)
{
	reader->at += strspn(reader->at, SPACES);
	if (*reader->at != wanted)
		return false;
	reader->at++;
	reader->at += strspn(reader->at, SPACES);
	return true;
}

/*
 * Read minutes.  One value has one text: no plus sign, no leading zero.  What
 * is a number, but not one of ours, is another mistake than what is none.
 */
static bool
ReadMinutes(Reader *reader, int *minutes)
{
	const char *word = reader->at;
	int			length = (int) strcspn(word, END_OF_WORD);
	int			sign = word[0] == '-' ? 1 : 0;
	int			ndigits = length - sign;

	reader->at += length;
	if (ndigits == 0 || strspn(word + sign, "0123456789") < ndigits ||
		(word[sign] == '0' && ndigits > 1))
		return Malformed(reader,
						 psprintf("\"%.*s\" is not a number of minutes.", length, word));

	*minutes = word[0] - '0';
	if (ndigits == 2)
		*minutes = *minutes * 10 + word[1] - '0';
	if (sign != 0 || ndigits > 2 || !RemindIsMinutes(*minutes))
		CompatInputError(reader->context, false,
						 (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
						  errmsg("minutes %.*s out of range for type %s",
								 length, word, "remind_bitmap"),
						  errdetail("%s", minutes_detail),
						  errhint("Use 5, 10, 15 and so on up to 60.")));
	return true;
}

static bool
ReadReminder(Reader *reader, RemindBitmap *bitmap)
{
	const char *word = reader->at;
	int			length = (int) strcspn(word, END_OF_WORD);
	int			channel;
	int			minutes;
	RemindBitmap bit;

	if (length == 0 || word[length] != '@')
		return Malformed(reader, "Each reminder is a channel, \"@\" and minutes, without spaces.");
	channel = ChannelOfWord(word, length);
	if (channel < 0)
		return UnknownChannel(reader, word, length);
	reader->at += length + 1;
	if (!ReadMinutes(reader, &minutes))
		return false;

	bit = RemindBit(channel, minutes);
	if (*bitmap & bit)
		return Malformed(reader,
						 psprintf("%s@%d is there twice.", ChannelName(channel), minutes));
	*bitmap |= bit;
	return true;
}

/* A reminder twice is an error, so even a long text is read in 61 steps. */
static bool
ReadBitmap(Reader *reader, RemindBitmap *bitmap)
{
	*bitmap = 0;
	if (!Take(reader, '{'))
		return Malformed(reader, "It must begin with \"{\".");
	if (!Take(reader, '}'))
	{
		do
		{
			if (!ReadReminder(reader, bitmap))
				return false;
		} while (Take(reader, ','));
		if (!Take(reader, '}'))
			return Malformed(reader, "After a reminder comes \",\" or \"}\".");
	}
	if (*reader->at != '\0')
		return Malformed(reader, "Nothing may come after \"}\".");
	return true;
}

/*
 * remind_bitmap_in(cstring) → remind_bitmap
 */
Datum
remind_bitmap_in(PG_FUNCTION_ARGS)
{
	Reader		reader = {0};
	RemindBitmap bitmap;

	reader.text = reader.at = PG_GETARG_CSTRING(0);
	reader.context = fcinfo->context;
	if (!ReadBitmap(&reader, &bitmap))
		PG_RETURN_NULL();
	PG_RETURN_REMIND_BITMAP(bitmap);
}

/*
 * remind_bitmap_out(remind_bitmap) → cstring: farthest first, then by channel.
 */
Datum
remind_bitmap_out(PG_FUNCTION_ARGS)
{
	RemindBitmap rest = PG_GETARG_REMIND_BITMAP(0);
	StringInfoData text;
	const char *before = "{";
	int			channel;
	int			minutes;

	initStringInfo(&text);
	if (rest == 0)
		appendStringInfoChar(&text, '{');
	while (RemindTakeFirst(&rest, &channel, &minutes))
	{
		appendStringInfo(&text, "%s%s@%d", before, ChannelName(channel), minutes);
		before = ",";
	}
	appendStringInfoChar(&text, '}');
	PG_RETURN_CSTRING(text.data);
}

/*
 * remind_bitmap_recv(internal) → remind_bitmap: the bytes of a bigint.
 */
Datum
remind_bitmap_recv(PG_FUNCTION_ARGS)
{
	RemindBitmap bitmap = (RemindBitmap) pq_getmsgint64((StringInfo) PG_GETARG_POINTER(0));

	if (bitmap & ~REMIND_ALL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("invalid binary value for type %s", "remind_bitmap"),
				 errdetail("Bits 60 to 63 must be 0.")));
	PG_RETURN_REMIND_BITMAP(bitmap);
}

/*
 * remind_bitmap_send(remind_bitmap) → bytea
 */
Datum
remind_bitmap_send(PG_FUNCTION_ARGS)
{
	StringInfoData bytes;

	pq_begintypsend(&bytes);
	pq_sendint64(&bytes, PG_GETARG_REMIND_BITMAP(0));
	PG_RETURN_BYTEA_P(pq_endtypsend(&bytes));
}

/*
 * remind_bitmap_of_bigint(bigint) → remind_bitmap, behind the cast
 */
Datum
remind_bitmap_of_bigint(PG_FUNCTION_ARGS)
{
	int64		number = PG_GETARG_INT64(0);

	if ((RemindBitmap) number & ~REMIND_ALL)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("bigint %lld out of range for type %s",
						(long long) number, "remind_bitmap"),
				 errdetail("Bits 60 to 63 must be 0."),
				 errhint("Use a number from 0 to %lld.", (long long) REMIND_ALL)));
	PG_RETURN_REMIND_BITMAP((RemindBitmap) number);
}

/*
 * remind_bitmap_to_bigint(remind_bitmap) → bigint, behind the cast
 */
Datum
remind_bitmap_to_bigint(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) PG_GETARG_REMIND_BITMAP(0));
}

/*
 * remind_bitmap(channel, minutes) → remind_bitmap of one reminder
 */
Datum
remind_bitmap_make(PG_FUNCTION_ARGS)
{
	int			channel = ChannelRequire(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	int			minutes = PG_GETARG_INT32(1);

	RemindCheckMinutes(minutes);
	PG_RETURN_REMIND_BITMAP(RemindBit(channel, minutes));
}

/*
 * remind_bitmap_or(a, b) merges: operator |, and the steps of
 * remind_bitmap_union.
 */
Datum
remind_bitmap_or(PG_FUNCTION_ARGS)
{
	PG_RETURN_REMIND_BITMAP(PG_GETARG_REMIND_BITMAP(0) | PG_GETARG_REMIND_BITMAP(1));
}

/*
 * remind_bitmap_and(a, b) keeps what is in both: operator &.
 */
Datum
remind_bitmap_and(PG_FUNCTION_ARGS)
{
	PG_RETURN_REMIND_BITMAP(PG_GETARG_REMIND_BITMAP(0) & PG_GETARG_REMIND_BITMAP(1));
}

/*
 * remind_bitmap_minus(a, b) removes from a what is in b: operator -.
 */
Datum
remind_bitmap_minus(PG_FUNCTION_ARGS)
{
	PG_RETURN_REMIND_BITMAP(PG_GETARG_REMIND_BITMAP(0) & ~PG_GETARG_REMIND_BITMAP(1));
}

/*
 * remind_bitmap_contains(a, b): all of b is in a, operator @>.
 */
Datum
remind_bitmap_contains(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL((PG_GETARG_REMIND_BITMAP(1) & ~PG_GETARG_REMIND_BITMAP(0)) == 0);
}

/*
 * remind_bitmap_contained(a, b): all of a is in b, operator <@.
 */
Datum
remind_bitmap_contained(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL((PG_GETARG_REMIND_BITMAP(0) & ~PG_GETARG_REMIND_BITMAP(1)) == 0);
}

/*
 * remind_bitmap_overlaps(a, b): something is in both, operator &&.
 */
Datum
remind_bitmap_overlaps(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL((PG_GETARG_REMIND_BITMAP(0) & PG_GETARG_REMIND_BITMAP(1)) != 0);
}

/*
 * remind_bitmap_eq, ne, lt, le, gt, ge(a, b) compare the numbers.
 */
Datum
remind_bitmap_eq(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_GETARG_REMIND_BITMAP(0) == PG_GETARG_REMIND_BITMAP(1));
}

Datum
remind_bitmap_ne(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_GETARG_REMIND_BITMAP(0) != PG_GETARG_REMIND_BITMAP(1));
}

Datum
remind_bitmap_lt(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_GETARG_REMIND_BITMAP(0) < PG_GETARG_REMIND_BITMAP(1));
}

Datum
remind_bitmap_le(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_GETARG_REMIND_BITMAP(0) <= PG_GETARG_REMIND_BITMAP(1));
}

Datum
remind_bitmap_gt(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_GETARG_REMIND_BITMAP(0) > PG_GETARG_REMIND_BITMAP(1));
}

Datum
remind_bitmap_ge(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(PG_GETARG_REMIND_BITMAP(0) >= PG_GETARG_REMIND_BITMAP(1));
}

static int
Compare(Datum x, Datum y, SortSupport sort)
{
	RemindBitmap a = DatumGetRemindBitmap(x);
	RemindBitmap b = DatumGetRemindBitmap(y);

	return a < b ? -1 : a > b ? 1 : 0;
}

/*
 * remind_bitmap_cmp(a, b) → -1, 0 or 1: support function of the btree class
 */
Datum
remind_bitmap_cmp(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(Compare(PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), NULL));
}

/*
 * remind_bitmap_sortsupport(internal) lets sorts compare without a call through
 * SQL; where a value is a Datum, by the sort that is made for those.
 */
Datum
remind_bitmap_sortsupport(PG_FUNCTION_ARGS)
{
	SortSupport sort = (SortSupport) PG_GETARG_POINTER(0);

#if SIZEOF_DATUM >= 8
	sort->comparator = ssup_datum_unsigned_cmp;
#else
	sort->comparator = Compare;
#endif
	PG_RETURN_VOID();
}

/*
 * remind_bitmap_hash(remind_bitmap) → integer.  Not as bigint hashes: that
 * folds the halves, and sms@5 would collide with app@45.
 */
Datum
remind_bitmap_hash(PG_FUNCTION_ARGS)
{
	RemindBitmap bitmap = PG_GETARG_REMIND_BITMAP(0);

	return hash_any((const unsigned char *) &bitmap, sizeof(bitmap));
}

/*
 * remind_bitmap_hash_extended(remind_bitmap, seed) → bigint
 */
Datum
remind_bitmap_hash_extended(PG_FUNCTION_ARGS)
{
	RemindBitmap bitmap = PG_GETARG_REMIND_BITMAP(0);

	return hash_any_extended((const unsigned char *) &bitmap, sizeof(bitmap),
							 PG_GETARG_INT64(1));
}

/*
 * remind_bitmap_count(remind_bitmap) → how many reminders there are
 */
Datum
remind_bitmap_count(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(pg_popcount64(PG_GETARG_REMIND_BITMAP(0)));
}

/* The moment of a reminder.  Infinity stays what it is, as with intervals. */
static TimestampTz
MomentBefore(TimestampTz start, int minutes)
{
	TimestampTz moment;

	if (TIMESTAMP_NOT_FINITE(start))
		return start;
	/* Cannot overflow: timestamps end well above the least int64. */
	moment = start - minutes * USECS_PER_MINUTE;
	if (!IS_VALID_TIMESTAMP(moment))
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range"),
				 errdetail("There is no moment %d minutes before the start.", minutes)));
	return moment;
}

/*
 * remind_bitmap_slots(reminders, start_time) → remind_at, channel, minutes, in
 * the order of firing
 */
Datum
remind_bitmap_slots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	RemindBitmap rest = PG_GETARG_REMIND_BITMAP(0);
	TimestampTz start = PG_GETARG_TIMESTAMPTZ(1);
	int			channel;
	int			minutes;

	InitMaterializedSRF(fcinfo, 0);
	while (RemindTakeFirst(&rest, &channel, &minutes))
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = TimestampTzGetDatum(MomentBefore(start, minutes));
		values[1] = CStringGetTextDatum(ChannelName(channel));
		values[2] = Int32GetDatum(minutes);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
