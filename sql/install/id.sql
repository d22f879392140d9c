-- Ids

CREATE FUNCTION @extschema@.coupon_next_id() RETURNS bigint
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_next_id';
COMMENT ON FUNCTION @extschema@.coupon_next_id() IS
    'makes a time-ordered id: 41 bits of milliseconds since 2024-01-01 UTC, 10 bits node, 12 bits sequence';

