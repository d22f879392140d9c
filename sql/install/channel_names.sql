-- The channels that notifications go out by

CREATE FUNCTION @extschema@.coupon_channel_names() RETURNS text[]
    LANGUAGE C IMMUTABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_channel_names';
COMMENT ON FUNCTION @extschema@.coupon_channel_names() IS 'lists the channels that notifications go out by';

