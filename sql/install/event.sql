-- What was done with coupons

CREATE TABLE @extschema@.coupon_event (
    id             bigint PRIMARY KEY DEFAULT @extschema@.coupon_next_id(),
    at             timestamptz NOT NULL DEFAULT statement_timestamp(),
    kind           text NOT NULL
                   CHECK (kind IN ('give', 'lock', 'use', 'release', 'refund', 'revoke', 'undo')),
    user_coupon_id bigint NOT NULL,
    user_id        bigint NOT NULL,
    template_id    bigint NOT NULL,
    order_id       text,
    amount         numeric(16,2),
    discount       numeric(16,2),
    reason         text CHECK (char_length(reason) <= 1000),
    session_role   text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE @extschema@.coupon_event IS
    'history of what was done with coupons after they were claimed, and of those that were given; only appended to';
COMMENT ON COLUMN @extschema@.coupon_event.amount IS 'of the order';
COMMENT ON COLUMN @extschema@.coupon_event.reason IS 'as whoever did it has given it';
COMMENT ON COLUMN @extschema@.coupon_event.session_role IS 'who was logged in';
CREATE INDEX coupon_event_coupon ON @extschema@.coupon_event (user_coupon_id);
CREATE INDEX coupon_event_order ON @extschema@.coupon_event (order_id, user_coupon_id);

-- Bound operators and monitors see those of their shop.
ALTER TABLE @extschema@.coupon_event ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_event_shop ON @extschema@.coupon_event
    USING ((SELECT @extschema@.coupon_shop_allowed(NULL::bigint))
           OR EXISTS (SELECT FROM @extschema@.coupon_template t
                      WHERE t.id = template_id AND @extschema@.coupon_shop_allowed(t.shop_number)));

CREATE FUNCTION @extschema@.coupon_give(template_id bigint, user_id bigint,
                            request_id text DEFAULT NULL, reason text DEFAULT NULL)
    RETURNS SETOF @extschema@.coupon_receive_row
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_give';
COMMENT ON FUNCTION @extschema@.coupon_give(bigint, bigint, text, text) IS
    'gives a user a coupon of any published template, for a finished mission or as goodwill; recorded in coupon_event with the reason';
