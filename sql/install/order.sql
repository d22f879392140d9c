-- The life of a coupon in an order

CREATE FUNCTION @extschema@.coupon_quote(user_id bigint, amount numeric, shop_number bigint DEFAULT NULL,
                             items jsonb DEFAULT NULL, page_size int DEFAULT 50)
    RETURNS TABLE (user_coupon_id bigint, template_id bigint, name text, usable boolean, reason text,
                   discount numeric, payable numeric, short_by numeric, use_end timestamptz)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20
    AS 'MODULE_PATHNAME', 'coupon_quote';
COMMENT ON FUNCTION @extschema@.coupon_quote(bigint, numeric, bigint, jsonb, int) IS
    'the coupons of a user and what each would take off an order, the best first, then those that it cannot use and why';

CREATE FUNCTION @extschema@.coupon_lock(user_coupon_id bigint, user_id bigint, order_id text, amount numeric,
                            shop_number bigint DEFAULT NULL, items jsonb DEFAULT NULL,
                            ttl interval DEFAULT '15 min', combine boolean DEFAULT false)
    RETURNS TABLE (code int, outcome text, discount numeric, payable numeric,
                   locked_until timestamptz, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_lock';
COMMENT ON FUNCTION @extschema@.coupon_lock(bigint, bigint, text, numeric, bigint, jsonb, interval, boolean) IS
    'keeps a coupon for an order until it is paid, at most for ttl; the discount is fixed';

CREATE FUNCTION @extschema@.coupon_use(user_id bigint, order_id text, user_coupon_id bigint DEFAULT NULL,
                           amount numeric DEFAULT NULL, shop_number bigint DEFAULT NULL,
                           items jsonb DEFAULT NULL)
    RETURNS TABLE (user_coupon_id bigint, code int, outcome text, discount numeric, payable numeric,
                   repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_use';
COMMENT ON FUNCTION @extschema@.coupon_use(bigint, text, bigint, numeric, bigint, jsonb) IS
    'an order is paid: uses what it has locked, or a coupon without a lock before';

CREATE FUNCTION @extschema@.coupon_release(user_id bigint, order_id text, user_coupon_id bigint DEFAULT NULL)
    RETURNS TABLE (user_coupon_id bigint, code int, outcome text, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_release';
COMMENT ON FUNCTION @extschema@.coupon_release(bigint, text, bigint) IS
    'an order is not paid: what it has locked is free again';

CREATE FUNCTION @extschema@.coupon_refund(user_id bigint, order_id text, user_coupon_id bigint DEFAULT NULL)
    RETURNS TABLE (user_coupon_id bigint, code int, outcome text, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_refund';
COMMENT ON FUNCTION @extschema@.coupon_refund(bigint, text, bigint) IS
    'an order is refunded: what it has used is given back as the refund policy of the template says';

CREATE FUNCTION @extschema@.coupon_revoke(user_coupon_id bigint, user_id bigint, reason text DEFAULT NULL)
    RETURNS TABLE (code int, outcome text, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_revoke';
COMMENT ON FUNCTION @extschema@.coupon_revoke(bigint, bigint, text) IS
    'takes a coupon from a user unless it has been used, also one that an order has locked; no stock comes back';

CREATE FUNCTION @extschema@.coupon_wallet_hide(user_coupon_id bigint, user_id bigint)
    RETURNS TABLE (code int, outcome text, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_wallet_hide';
COMMENT ON FUNCTION @extschema@.coupon_wallet_hide(bigint, bigint) IS
    'takes a coupon that cannot be used any more out of the list that coupon_wallet answers';
