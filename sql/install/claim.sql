-- Claiming

-- A named type instead of RETURNS TABLE: the executor need not make its row
-- type anew for each call, and SELECT (coupon_receive(...)).* still calls it once.
CREATE TYPE @extschema@.coupon_receive_row AS (
    code int, outcome text, user_coupon_id bigint, receive_seq int,
    use_end timestamptz, repeated boolean
);
COMMENT ON TYPE @extschema@.coupon_receive_row IS 'a row of coupon_receive';

CREATE FUNCTION @extschema@.coupon_receive(template_id bigint, user_id bigint,
                               request_id text DEFAULT NULL, source text DEFAULT 'center')
    RETURNS SETOF @extschema@.coupon_receive_row
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_receive';
COMMENT ON FUNCTION @extschema@.coupon_receive(bigint, bigint, text, text) IS
    'claims a coupon for a user; a refusal is a row with a code';

CREATE FUNCTION @extschema@.coupon_receive_many(template_id bigint, user_ids bigint[],
                                    source text DEFAULT 'center', request_id text DEFAULT NULL)
    RETURNS TABLE (user_id bigint, code int, outcome text, user_coupon_id bigint,
                   receive_seq int, use_end timestamptz, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
    AS 'MODULE_PATHNAME', 'coupon_receive_many';
COMMENT ON FUNCTION @extschema@.coupon_receive_many(bigint, bigint[], text, text) IS
    'claims a coupon for each of many users in one transaction; one row per user, in order of user id';

CREATE FUNCTION @extschema@.coupon_receive_new_user(user_id bigint)
    RETURNS TABLE (template_id bigint, code int, outcome text, user_coupon_id bigint,
                   receive_seq int, use_end timestamptz, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 5
    AS 'MODULE_PATHNAME', 'coupon_receive_new_user';
COMMENT ON FUNCTION @extschema@.coupon_receive_new_user(bigint) IS
    'gives a new user all open registration templates, each once';

