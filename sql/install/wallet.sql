-- Reading: templates and wallets

CREATE VIEW @extschema@.coupon_held WITH (security_barrier) AS
SELECT c.id, c.user_id, c.template_id,
       CASE c.status
           WHEN 2 THEN 'used'
           WHEN 3 THEN 'expired'
           WHEN 4 THEN 'revoked'
           ELSE CASE
               WHEN c.status = 1 AND c.locked_until > statement_timestamp() THEN 'locked'
               WHEN c.use_end <= statement_timestamp() THEN 'expired'
               ELSE 'unused'
           END
       END AS status,
       c.receive_seq, c.source, c.holder, c.received_at, c.use_start, c.use_end,
       c.order_id, c.order_amount, c.locked_until, c.used_at, c.discount, c.hidden IS TRUE AS hidden, c.request_id,
       c.use_start <= statement_timestamp() AND c.use_end > statement_timestamp()
           AND (c.status = 0 OR c.status = 1 AND c.locked_until <= statement_timestamp()) AS usable,
       t.shop_number, t.issuer, t.name, t.category, t.discount_kind,
       t.discount_value, t.threshold_amount, t.max_discount, t.goods_ids,
       t.refund_policy, t.usage_note, t.unmet_note, t.image_url
FROM @extschema@.user_coupon c LEFT JOIN @extschema@.coupon_template t ON t.id = c.template_id
WHERE @extschema@.coupon_shop_allowed(t.shop_number);
COMMENT ON VIEW @extschema@.coupon_held IS 'user_coupon with the status as it is now, and the columns of the template';

CREATE TYPE @extschema@.coupon_template_page AS (
    id bigint, shop_number bigint, issuer text, name text, category text,
    open_to text, status text, receive_start timestamptz, receive_end timestamptz,
    total_stock bigint, stock_left bigint, claim_state text, per_user_limit int,
    discount_kind text, discount_value numeric, threshold_amount numeric,
    max_discount numeric, goods_ids text[], use_validity interval,
    use_start timestamptz, use_end timestamptz, refund_policy text,
    usage_note text, unmet_note text, image_url text,
    created_at timestamptz, updated_at timestamptz
);
COMMENT ON TYPE @extschema@.coupon_template_page IS 'a row of coupon_template_get and coupon_browse';

CREATE FUNCTION @extschema@.coupon_template_get(template_id bigint)
    RETURNS SETOF @extschema@.coupon_template_page
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_template_get';
COMMENT ON FUNCTION @extschema@.coupon_template_get(bigint) IS
    'the template with stock_left and claim_state: upcoming, open, sold_out, ended or offline';

CREATE FUNCTION @extschema@.coupon_browse(category text DEFAULT NULL, shop_number bigint DEFAULT NULL,
                              page_size int DEFAULT 20, before_id bigint DEFAULT NULL,
                              closed boolean DEFAULT false)
    RETURNS SETOF @extschema@.coupon_template_page
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20
    AS 'MODULE_PATHNAME', 'coupon_browse';
COMMENT ON FUNCTION @extschema@.coupon_browse(text, bigint, int, bigint, boolean) IS
    'published templates that can be claimed or will be, newest first; closed: also those that have ended or are sold out; the next page is before_id = the last id of this one';

CREATE FUNCTION @extschema@.coupon_browse_count(category text DEFAULT NULL, shop_number bigint DEFAULT NULL)
    RETURNS bigint
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_browse_count';
COMMENT ON FUNCTION @extschema@.coupon_browse_count(text, bigint) IS
    'how many templates all pages of coupon_browse have together; one that has just been sold out may still be counted';

CREATE TYPE @extschema@.coupon_wallet_page AS (
    user_coupon_id bigint, template_id bigint, shop_number bigint, issuer text,
    name text, category text, status text, discount_kind text,
    discount_value numeric, threshold_amount numeric, max_discount numeric,
    goods_ids text[], receive_seq int, source text, received_at timestamptz,
    use_start timestamptz, use_end timestamptz, usable boolean, order_id text, order_amount numeric,
    locked_until timestamptz, used_at timestamptz, discount numeric,
    usage_note text, unmet_note text, image_url text
);
COMMENT ON TYPE @extschema@.coupon_wallet_page IS 'a row of coupon_wallet';

CREATE FUNCTION @extschema@.coupon_wallet(user_id bigint, status text DEFAULT NULL,
                              page_size int DEFAULT 20, before_id bigint DEFAULT NULL)
    RETURNS SETOF @extschema@.coupon_wallet_page
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20
    AS 'MODULE_PATHNAME', 'coupon_wallet';
COMMENT ON FUNCTION @extschema@.coupon_wallet(bigint, text, int, bigint) IS
    'the coupons of a user, newest first, all that a wallet page shows';

CREATE FUNCTION @extschema@.coupon_wallet_count(user_id bigint)
    RETURNS TABLE (status text, n bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 5
    AS 'MODULE_PATHNAME', 'coupon_wallet_count';
COMMENT ON FUNCTION @extschema@.coupon_wallet_count(bigint) IS 'how many coupons of each status a user has now';

