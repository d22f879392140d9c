-- Sets of reminders

CREATE TYPE remind_bitmap;

CREATE FUNCTION remind_bitmap_in(cstring) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_in';
COMMENT ON FUNCTION remind_bitmap_in(cstring) IS 'reads text such as {email@20,sms@10}';

CREATE FUNCTION remind_bitmap_out(remind_bitmap) RETURNS cstring
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_out';
COMMENT ON FUNCTION remind_bitmap_out(remind_bitmap) IS 'writes text, farthest from the start first, then by channel';

CREATE FUNCTION remind_bitmap_recv(internal) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_recv';
COMMENT ON FUNCTION remind_bitmap_recv(internal) IS 'reads the bytes of a bigint';

CREATE FUNCTION remind_bitmap_send(remind_bitmap) RETURNS bytea
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_send';
COMMENT ON FUNCTION remind_bitmap_send(remind_bitmap) IS 'writes the bytes of a bigint';

CREATE TYPE remind_bitmap (
    INPUT = remind_bitmap_in,
    OUTPUT = remind_bitmap_out,
    RECEIVE = remind_bitmap_recv,
    SEND = remind_bitmap_send,
    LIKE = bigint
);
COMMENT ON TYPE remind_bitmap IS
    'reminders of one user and template: five channels, 5 to 60 minutes before the start, such as {email@20,sms@10}';

-- Making and reading

CREATE FUNCTION remind_bitmap(channel text, minutes int) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_make';
COMMENT ON FUNCTION remind_bitmap(text, int) IS 'one reminder';

CREATE FUNCTION remind_bitmap_count(remind_bitmap) RETURNS int
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_count';
COMMENT ON FUNCTION remind_bitmap_count(remind_bitmap) IS 'how many reminders there are';

CREATE FUNCTION remind_bitmap_slots(reminders remind_bitmap, start_time timestamptz)
    RETURNS TABLE (remind_at timestamptz, channel text, minutes int)
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 2
    AS 'MODULE_PATHNAME', 'remind_bitmap_slots';
COMMENT ON FUNCTION remind_bitmap_slots(remind_bitmap, timestamptz) IS
    'lists the reminders for a start in the order in which they fire';

-- Casts, both explicit: a number says nothing about channels

CREATE FUNCTION remind_bitmap_of_bigint(bigint) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_of_bigint';
COMMENT ON FUNCTION remind_bitmap_of_bigint(bigint) IS 'behind the cast from bigint';

CREATE FUNCTION remind_bitmap_to_bigint(remind_bitmap) RETURNS bigint
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_to_bigint';
COMMENT ON FUNCTION remind_bitmap_to_bigint(remind_bitmap) IS 'behind the cast to bigint';

CREATE CAST (bigint AS remind_bitmap) WITH FUNCTION remind_bitmap_of_bigint(bigint);
COMMENT ON CAST (bigint AS remind_bitmap) IS 'refuses bits 60 to 63';
CREATE CAST (remind_bitmap AS bigint) WITH FUNCTION remind_bitmap_to_bigint(remind_bitmap);
COMMENT ON CAST (remind_bitmap AS bigint) IS 'bit = channel * 12 + minutes / 5 - 1';

-- Sets

CREATE FUNCTION remind_bitmap_or(remind_bitmap, remind_bitmap) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_or';
COMMENT ON FUNCTION remind_bitmap_or(remind_bitmap, remind_bitmap) IS 'implementation of | operator';

CREATE OPERATOR | (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_or,
    COMMUTATOR = |
);
COMMENT ON OPERATOR | (remind_bitmap, remind_bitmap) IS 'merges';

CREATE FUNCTION remind_bitmap_and(remind_bitmap, remind_bitmap) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_and';
COMMENT ON FUNCTION remind_bitmap_and(remind_bitmap, remind_bitmap) IS 'implementation of & operator';

CREATE OPERATOR & (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_and,
    COMMUTATOR = &
);
COMMENT ON OPERATOR & (remind_bitmap, remind_bitmap) IS 'keeps what is in both';

CREATE FUNCTION remind_bitmap_minus(remind_bitmap, remind_bitmap) RETURNS remind_bitmap
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_minus';
COMMENT ON FUNCTION remind_bitmap_minus(remind_bitmap, remind_bitmap) IS 'implementation of - operator';

CREATE OPERATOR - (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_minus
);
COMMENT ON OPERATOR - (remind_bitmap, remind_bitmap) IS 'removes what is in the second';

CREATE FUNCTION remind_bitmap_contains(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_contains';
COMMENT ON FUNCTION remind_bitmap_contains(remind_bitmap, remind_bitmap) IS 'implementation of @> operator';

CREATE OPERATOR @> (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_contains,
    COMMUTATOR = <@,
    RESTRICT = matchingsel, JOIN = matchingjoinsel
);
COMMENT ON OPERATOR @> (remind_bitmap, remind_bitmap) IS 'contains all of the second';

CREATE FUNCTION remind_bitmap_contained(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_contained';
COMMENT ON FUNCTION remind_bitmap_contained(remind_bitmap, remind_bitmap) IS 'implementation of <@ operator';

CREATE OPERATOR <@ (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_contained,
    COMMUTATOR = @>,
    RESTRICT = matchingsel, JOIN = matchingjoinsel
);
COMMENT ON OPERATOR <@ (remind_bitmap, remind_bitmap) IS 'is contained in the second';

CREATE FUNCTION remind_bitmap_overlaps(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_overlaps';
COMMENT ON FUNCTION remind_bitmap_overlaps(remind_bitmap, remind_bitmap) IS 'implementation of && operator';

CREATE OPERATOR && (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_overlaps,
    COMMUTATOR = &&,
    RESTRICT = matchingsel, JOIN = matchingjoinsel
);
COMMENT ON OPERATOR && (remind_bitmap, remind_bitmap) IS 'has something in common';

CREATE AGGREGATE remind_bitmap_union(remind_bitmap) (
    SFUNC = remind_bitmap_or,
    STYPE = remind_bitmap,
    COMBINEFUNC = remind_bitmap_or,
    PARALLEL = SAFE
);
COMMENT ON AGGREGATE remind_bitmap_union(remind_bitmap) IS 'merges all that are not null; null if there are none';

-- Comparison, as numbers

CREATE FUNCTION remind_bitmap_eq(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_eq';
COMMENT ON FUNCTION remind_bitmap_eq(remind_bitmap, remind_bitmap) IS 'implementation of = operator';

CREATE OPERATOR = (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_eq,
    COMMUTATOR = =, NEGATOR = <>, RESTRICT = eqsel, JOIN = eqjoinsel, HASHES, MERGES
);
COMMENT ON OPERATOR = (remind_bitmap, remind_bitmap) IS 'equal';

CREATE FUNCTION remind_bitmap_ne(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_ne';
COMMENT ON FUNCTION remind_bitmap_ne(remind_bitmap, remind_bitmap) IS 'implementation of <> operator';

CREATE OPERATOR <> (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_ne,
    COMMUTATOR = <>, NEGATOR = =, RESTRICT = neqsel, JOIN = neqjoinsel
);
COMMENT ON OPERATOR <> (remind_bitmap, remind_bitmap) IS 'not equal';

CREATE FUNCTION remind_bitmap_lt(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_lt';
COMMENT ON FUNCTION remind_bitmap_lt(remind_bitmap, remind_bitmap) IS 'implementation of < operator';

CREATE OPERATOR < (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_lt,
    COMMUTATOR = >, NEGATOR = >=, RESTRICT = scalarltsel, JOIN = scalarltjoinsel
);
COMMENT ON OPERATOR < (remind_bitmap, remind_bitmap) IS 'less than';

CREATE FUNCTION remind_bitmap_le(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_le';
COMMENT ON FUNCTION remind_bitmap_le(remind_bitmap, remind_bitmap) IS 'implementation of <= operator';

CREATE OPERATOR <= (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_le,
    COMMUTATOR = >=, NEGATOR = >, RESTRICT = scalarlesel, JOIN = scalarlejoinsel
);
COMMENT ON OPERATOR <= (remind_bitmap, remind_bitmap) IS 'less than or equal';

CREATE FUNCTION remind_bitmap_gt(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_gt';
COMMENT ON FUNCTION remind_bitmap_gt(remind_bitmap, remind_bitmap) IS 'implementation of > operator';

CREATE OPERATOR > (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_gt,
    COMMUTATOR = <, NEGATOR = <=, RESTRICT = scalargtsel, JOIN = scalargtjoinsel
);
COMMENT ON OPERATOR > (remind_bitmap, remind_bitmap) IS 'greater than';

CREATE FUNCTION remind_bitmap_ge(remind_bitmap, remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_ge';
COMMENT ON FUNCTION remind_bitmap_ge(remind_bitmap, remind_bitmap) IS 'implementation of >= operator';

CREATE OPERATOR >= (
    LEFTARG = remind_bitmap, RIGHTARG = remind_bitmap, FUNCTION = remind_bitmap_ge,
    COMMUTATOR = <=, NEGATOR = <, RESTRICT = scalargesel, JOIN = scalargejoinsel
);
COMMENT ON OPERATOR >= (remind_bitmap, remind_bitmap) IS 'greater than or equal';

CREATE FUNCTION remind_bitmap_cmp(remind_bitmap, remind_bitmap) RETURNS int
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_cmp';
COMMENT ON FUNCTION remind_bitmap_cmp(remind_bitmap, remind_bitmap) IS 'less-equal-greater';

CREATE FUNCTION remind_bitmap_sortsupport(internal) RETURNS void
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_sortsupport';
COMMENT ON FUNCTION remind_bitmap_sortsupport(internal) IS 'sort support';

CREATE FUNCTION remind_bitmap_hash(remind_bitmap) RETURNS int
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_hash';
COMMENT ON FUNCTION remind_bitmap_hash(remind_bitmap) IS 'hash';

CREATE FUNCTION remind_bitmap_hash_extended(remind_bitmap, bigint) RETURNS bigint
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_hash_extended';
COMMENT ON FUNCTION remind_bitmap_hash_extended(remind_bitmap, bigint) IS 'hash with a seed';

-- Equal values are equal bit for bit, so that index entries can be deduplicated.
CREATE OPERATOR FAMILY remind_bitmap_ops USING btree;
COMMENT ON OPERATOR FAMILY remind_bitmap_ops USING btree IS 'order of the numbers';
CREATE OPERATOR CLASS remind_bitmap_ops
    DEFAULT FOR TYPE remind_bitmap USING btree FAMILY remind_bitmap_ops AS
    OPERATOR 1 <,
    OPERATOR 2 <=,
    OPERATOR 3 =,
    OPERATOR 4 >=,
    OPERATOR 5 >,
    FUNCTION 1 remind_bitmap_cmp(remind_bitmap, remind_bitmap),
    FUNCTION 2 remind_bitmap_sortsupport(internal),
    FUNCTION 4 btequalimage(oid);
COMMENT ON OPERATOR CLASS remind_bitmap_ops USING btree IS 'order of the numbers';

CREATE OPERATOR FAMILY remind_bitmap_ops USING hash;
COMMENT ON OPERATOR FAMILY remind_bitmap_ops USING hash IS 'equality';
CREATE OPERATOR CLASS remind_bitmap_ops
    DEFAULT FOR TYPE remind_bitmap USING hash FAMILY remind_bitmap_ops AS
    OPERATOR 1 =,
    FUNCTION 1 remind_bitmap_hash(remind_bitmap),
    FUNCTION 2 remind_bitmap_hash_extended(remind_bitmap, bigint);
COMMENT ON OPERATOR CLASS remind_bitmap_ops USING hash IS 'equality';
