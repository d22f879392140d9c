-- Sets of reminders

CREATE TYPE @extschema@.remind_bitmap;

CREATE FUNCTION @extschema@.remind_bitmap_in(cstring) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_in';
COMMENT ON FUNCTION @extschema@.remind_bitmap_in(cstring) IS 'reads text such as {email@20,sms@10}';

CREATE FUNCTION @extschema@.remind_bitmap_out(@extschema@.remind_bitmap) RETURNS cstring
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_out';
COMMENT ON FUNCTION @extschema@.remind_bitmap_out(@extschema@.remind_bitmap) IS 'writes text, farthest from the start first, then by channel';

CREATE FUNCTION @extschema@.remind_bitmap_recv(internal) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_recv';
COMMENT ON FUNCTION @extschema@.remind_bitmap_recv(internal) IS 'reads the bytes of a bigint';

CREATE FUNCTION @extschema@.remind_bitmap_send(@extschema@.remind_bitmap) RETURNS bytea
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_send';
COMMENT ON FUNCTION @extschema@.remind_bitmap_send(@extschema@.remind_bitmap) IS 'writes the bytes of a bigint';

CREATE TYPE @extschema@.remind_bitmap (
    INPUT = @extschema@.remind_bitmap_in,
    OUTPUT = @extschema@.remind_bitmap_out,
    RECEIVE = @extschema@.remind_bitmap_recv,
    SEND = @extschema@.remind_bitmap_send,
    LIKE = bigint
);
COMMENT ON TYPE @extschema@.remind_bitmap IS
    'reminders of one user and template: five channels, 5 to 60 minutes before the start, such as {email@20,sms@10}';

-- Making and reading

CREATE FUNCTION @extschema@.remind_bitmap(channel text, minutes int) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_make';
COMMENT ON FUNCTION @extschema@.remind_bitmap(text, int) IS 'one reminder';

CREATE FUNCTION @extschema@.remind_bitmap_count(@extschema@.remind_bitmap) RETURNS int
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_count';
COMMENT ON FUNCTION @extschema@.remind_bitmap_count(@extschema@.remind_bitmap) IS 'how many reminders there are';

CREATE FUNCTION @extschema@.remind_bitmap_slots(reminders @extschema@.remind_bitmap, start_time timestamptz)
    RETURNS TABLE (remind_at timestamptz, channel text, minutes int)
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 2
    AS 'MODULE_PATHNAME', 'remind_bitmap_slots';
COMMENT ON FUNCTION @extschema@.remind_bitmap_slots(@extschema@.remind_bitmap, timestamptz) IS
    'lists the reminders for a start in the order in which they fire';

-- Casts, both explicit: a number says nothing about channels

CREATE FUNCTION @extschema@.remind_bitmap_of_bigint(bigint) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_of_bigint';
COMMENT ON FUNCTION @extschema@.remind_bitmap_of_bigint(bigint) IS 'behind the cast from bigint';

CREATE FUNCTION @extschema@.remind_bitmap_to_bigint(@extschema@.remind_bitmap) RETURNS bigint
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_to_bigint';
COMMENT ON FUNCTION @extschema@.remind_bitmap_to_bigint(@extschema@.remind_bitmap) IS 'behind the cast to bigint';

CREATE CAST (bigint AS @extschema@.remind_bitmap) WITH FUNCTION @extschema@.remind_bitmap_of_bigint(bigint);
COMMENT ON CAST (bigint AS @extschema@.remind_bitmap) IS 'refuses bits 60 to 63';
CREATE CAST (@extschema@.remind_bitmap AS bigint) WITH FUNCTION @extschema@.remind_bitmap_to_bigint(@extschema@.remind_bitmap);
COMMENT ON CAST (@extschema@.remind_bitmap AS bigint) IS 'bit = channel * 12 + minutes / 5 - 1';

-- Sets

CREATE FUNCTION @extschema@.remind_bitmap_or(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_or';
COMMENT ON FUNCTION @extschema@.remind_bitmap_or(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of | operator';

CREATE OPERATOR @extschema@.| (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_or,
    COMMUTATOR = OPERATOR(@extschema@.|)
);
COMMENT ON OPERATOR @extschema@.| (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'merges';

CREATE FUNCTION @extschema@.remind_bitmap_and(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_and';
COMMENT ON FUNCTION @extschema@.remind_bitmap_and(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of & operator';

CREATE OPERATOR @extschema@.& (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_and,
    COMMUTATOR = OPERATOR(@extschema@.&)
);
COMMENT ON OPERATOR @extschema@.& (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'keeps what is in both';

CREATE FUNCTION @extschema@.remind_bitmap_minus(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS @extschema@.remind_bitmap
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_minus';
COMMENT ON FUNCTION @extschema@.remind_bitmap_minus(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of - operator';

CREATE OPERATOR @extschema@.- (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_minus
);
COMMENT ON OPERATOR @extschema@.- (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'removes what is in the second';

CREATE FUNCTION @extschema@.remind_bitmap_contains(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_contains';
COMMENT ON FUNCTION @extschema@.remind_bitmap_contains(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of @> operator';

CREATE OPERATOR @extschema@.@> (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_contains,
    COMMUTATOR = OPERATOR(@extschema@.<@),
    RESTRICT = matchingsel, JOIN = matchingjoinsel
);
COMMENT ON OPERATOR @extschema@.@> (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'contains all of the second';

CREATE FUNCTION @extschema@.remind_bitmap_contained(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_contained';
COMMENT ON FUNCTION @extschema@.remind_bitmap_contained(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of <@ operator';

CREATE OPERATOR @extschema@.<@ (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_contained,
    COMMUTATOR = OPERATOR(@extschema@.@>),
    RESTRICT = matchingsel, JOIN = matchingjoinsel
);
COMMENT ON OPERATOR @extschema@.<@ (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'is contained in the second';

CREATE FUNCTION @extschema@.remind_bitmap_overlaps(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_overlaps';
COMMENT ON FUNCTION @extschema@.remind_bitmap_overlaps(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of && operator';

CREATE OPERATOR @extschema@.&& (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_overlaps,
    COMMUTATOR = OPERATOR(@extschema@.&&),
    RESTRICT = matchingsel, JOIN = matchingjoinsel
);
COMMENT ON OPERATOR @extschema@.&& (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'has something in common';

CREATE AGGREGATE @extschema@.remind_bitmap_union(@extschema@.remind_bitmap) (
    SFUNC = @extschema@.remind_bitmap_or,
    STYPE = @extschema@.remind_bitmap,
    COMBINEFUNC = @extschema@.remind_bitmap_or,
    PARALLEL = SAFE
);
COMMENT ON AGGREGATE @extschema@.remind_bitmap_union(@extschema@.remind_bitmap) IS 'merges all that are not null; null if there are none';

-- Comparison, as numbers

CREATE FUNCTION @extschema@.remind_bitmap_eq(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_eq';
COMMENT ON FUNCTION @extschema@.remind_bitmap_eq(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of = operator';

CREATE OPERATOR @extschema@.= (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_eq,
    COMMUTATOR = OPERATOR(@extschema@.=), NEGATOR = OPERATOR(@extschema@.<>), RESTRICT = eqsel, JOIN = eqjoinsel, HASHES, MERGES
);
COMMENT ON OPERATOR @extschema@.= (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'equal';

CREATE FUNCTION @extschema@.remind_bitmap_ne(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_ne';
COMMENT ON FUNCTION @extschema@.remind_bitmap_ne(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of <> operator';

CREATE OPERATOR @extschema@.<> (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_ne,
    COMMUTATOR = OPERATOR(@extschema@.<>), NEGATOR = OPERATOR(@extschema@.=), RESTRICT = neqsel, JOIN = neqjoinsel
);
COMMENT ON OPERATOR @extschema@.<> (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'not equal';

CREATE FUNCTION @extschema@.remind_bitmap_lt(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_lt';
COMMENT ON FUNCTION @extschema@.remind_bitmap_lt(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of < operator';

CREATE OPERATOR @extschema@.< (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_lt,
    COMMUTATOR = OPERATOR(@extschema@.>), NEGATOR = OPERATOR(@extschema@.>=), RESTRICT = scalarltsel, JOIN = scalarltjoinsel
);
COMMENT ON OPERATOR @extschema@.< (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'less than';

CREATE FUNCTION @extschema@.remind_bitmap_le(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_le';
COMMENT ON FUNCTION @extschema@.remind_bitmap_le(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of <= operator';

CREATE OPERATOR @extschema@.<= (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_le,
    COMMUTATOR = OPERATOR(@extschema@.>=), NEGATOR = OPERATOR(@extschema@.>), RESTRICT = scalarlesel, JOIN = scalarlejoinsel
);
COMMENT ON OPERATOR @extschema@.<= (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'less than or equal';

CREATE FUNCTION @extschema@.remind_bitmap_gt(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_gt';
COMMENT ON FUNCTION @extschema@.remind_bitmap_gt(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of > operator';

CREATE OPERATOR @extschema@.> (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_gt,
    COMMUTATOR = OPERATOR(@extschema@.<), NEGATOR = OPERATOR(@extschema@.<=), RESTRICT = scalargtsel, JOIN = scalargtjoinsel
);
COMMENT ON OPERATOR @extschema@.> (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'greater than';

CREATE FUNCTION @extschema@.remind_bitmap_ge(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_ge';
COMMENT ON FUNCTION @extschema@.remind_bitmap_ge(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'implementation of >= operator';

CREATE OPERATOR @extschema@.>= (
    LEFTARG = @extschema@.remind_bitmap, RIGHTARG = @extschema@.remind_bitmap, FUNCTION = @extschema@.remind_bitmap_ge,
    COMMUTATOR = OPERATOR(@extschema@.<=), NEGATOR = OPERATOR(@extschema@.<), RESTRICT = scalargesel, JOIN = scalargejoinsel
);
COMMENT ON OPERATOR @extschema@.>= (@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'greater than or equal';

CREATE FUNCTION @extschema@.remind_bitmap_cmp(@extschema@.remind_bitmap, @extschema@.remind_bitmap) RETURNS int
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_cmp';
COMMENT ON FUNCTION @extschema@.remind_bitmap_cmp(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS 'less-equal-greater';

CREATE FUNCTION @extschema@.remind_bitmap_sortsupport(internal) RETURNS void
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_sortsupport';
COMMENT ON FUNCTION @extschema@.remind_bitmap_sortsupport(internal) IS 'sort support';

CREATE FUNCTION @extschema@.remind_bitmap_hash(@extschema@.remind_bitmap) RETURNS int
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_hash';
COMMENT ON FUNCTION @extschema@.remind_bitmap_hash(@extschema@.remind_bitmap) IS 'hash';

CREATE FUNCTION @extschema@.remind_bitmap_hash_extended(@extschema@.remind_bitmap, bigint) RETURNS bigint
    LANGUAGE C IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'remind_bitmap_hash_extended';
COMMENT ON FUNCTION @extschema@.remind_bitmap_hash_extended(@extschema@.remind_bitmap, bigint) IS 'hash with a seed';

-- Equal values are equal bit for bit, so that index entries can be deduplicated.
CREATE OPERATOR FAMILY @extschema@.remind_bitmap_ops USING btree;
COMMENT ON OPERATOR FAMILY @extschema@.remind_bitmap_ops USING btree IS 'order of the numbers';
CREATE OPERATOR CLASS @extschema@.remind_bitmap_ops
    DEFAULT FOR TYPE @extschema@.remind_bitmap USING btree FAMILY @extschema@.remind_bitmap_ops AS
    OPERATOR 1 @extschema@.<,
    OPERATOR 2 @extschema@.<=,
    OPERATOR 3 @extschema@.=,
    OPERATOR 4 @extschema@.>=,
    OPERATOR 5 @extschema@.>,
    FUNCTION 1 @extschema@.remind_bitmap_cmp(@extschema@.remind_bitmap, @extschema@.remind_bitmap),
    FUNCTION 2 @extschema@.remind_bitmap_sortsupport(internal),
    FUNCTION 4 btequalimage(oid);
COMMENT ON OPERATOR CLASS @extschema@.remind_bitmap_ops USING btree IS 'order of the numbers';

CREATE OPERATOR FAMILY @extschema@.remind_bitmap_ops USING hash;
COMMENT ON OPERATOR FAMILY @extschema@.remind_bitmap_ops USING hash IS 'equality';
CREATE OPERATOR CLASS @extschema@.remind_bitmap_ops
    DEFAULT FOR TYPE @extschema@.remind_bitmap USING hash FAMILY @extschema@.remind_bitmap_ops AS
    OPERATOR 1 @extschema@.=,
    FUNCTION 1 @extschema@.remind_bitmap_hash(@extschema@.remind_bitmap),
    FUNCTION 2 @extschema@.remind_bitmap_hash_extended(@extschema@.remind_bitmap, bigint);
COMMENT ON OPERATOR CLASS @extschema@.remind_bitmap_ops USING hash IS 'equality';
