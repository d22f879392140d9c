-- Templates

CREATE FUNCTION @extschema@.coupon_goods_sane(goods_ids text[]) RETURNS boolean
    LANGUAGE C IMMUTABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_goods_sane';
COMMENT ON FUNCTION @extschema@.coupon_goods_sane(text[]) IS
    'the CHECK of goods_ids: true, or an error that says what is wrong';

CREATE TABLE @extschema@.coupon_template (
    id               bigint PRIMARY KEY DEFAULT @extschema@.coupon_next_id()
                     CHECK (id > 0),
    shop_number      bigint CHECK (shop_number > 0),
    issuer           text NOT NULL DEFAULT 'platform'
                     CHECK (issuer IN ('platform', 'shop')),
    name             text NOT NULL CHECK (name <> '' AND char_length(name) <= 200),
    category         text NOT NULL DEFAULT 'promotion'
                     CHECK (category IN ('promotion', 'new_user', 'task')),
    open_to          text NOT NULL
                     CHECK (open_to IN ('anyone', 'registration', 'task', 'code')),
    status           text NOT NULL DEFAULT 'draft'
                     CHECK (status IN ('draft', 'published', 'offline')),
    receive_start    timestamptz NOT NULL DEFAULT statement_timestamp(),
    receive_end      timestamptz NOT NULL DEFAULT 'infinity',
    total_stock      bigint CHECK (total_stock BETWEEN 0 AND 1000000000000000),
    per_user_limit   int NOT NULL DEFAULT 1 CHECK (per_user_limit BETWEEN 1 AND 1000000),
    discount_kind    text NOT NULL DEFAULT 'amount'
                     CHECK (discount_kind IN ('amount', 'percent')),
    discount_value   numeric(16,2) NOT NULL CHECK (discount_value > 0 AND discount_value <> 'NaN'),
    threshold_amount numeric(16,2) NOT NULL DEFAULT 0 CHECK (threshold_amount >= 0 AND threshold_amount <> 'NaN'),
    max_discount     numeric(16,2) CHECK (max_discount > 0 AND max_discount <> 'NaN'),
    goods_ids        text[] CHECK (@extschema@.coupon_goods_sane(goods_ids)),
    use_validity     interval NOT NULL DEFAULT '30 days'
                     CHECK (use_validity > '0' AND use_validity <= '100 years'
                            AND date_part('month', use_validity) >= 0
                            AND date_part('day', use_validity) >= 0
                            AND date_part('hour', use_validity) >= 0
                            AND date_part('minute', use_validity) >= 0
                            AND date_part('second', use_validity) >= 0),
    use_start        timestamptz,
    use_end          timestamptz,
    refund_policy    text NOT NULL DEFAULT 'return_if_valid'
                     CHECK (refund_policy IN ('return', 'return_if_valid', 'keep')),
    usage_note       text CHECK (char_length(usage_note) <= 4000),
    unmet_note       text CHECK (char_length(unmet_note) <= 4000),
    image_url        text CHECK (char_length(image_url) <= 2000),
    created_at       timestamptz NOT NULL DEFAULT statement_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT statement_timestamp(),
    request_id       text CHECK (octet_length(request_id) BETWEEN 1 AND 128),
    CONSTRAINT coupon_template_open_to_of_category
        CHECK (category = 'promotion' OR open_to = 'code'
               OR open_to = CASE category WHEN 'new_user' THEN 'registration' ELSE 'task' END),
    CONSTRAINT coupon_template_receive_start
        CHECK (receive_start = '-infinity' OR receive_start >= '1970-01-01 00:00:00+00'),
    CONSTRAINT coupon_template_receive_window CHECK (receive_end > receive_start),
    CONSTRAINT coupon_template_use_window CHECK (use_end > COALESCE(use_start, '-infinity')),
    CONSTRAINT coupon_template_use_start_needs_end CHECK (use_start IS NULL OR use_end IS NOT NULL),
    CONSTRAINT coupon_template_use_after_receive CHECK (use_end > receive_start),
    CONSTRAINT coupon_template_percent CHECK (discount_kind <> 'percent' OR discount_value <= 100),
    CONSTRAINT coupon_template_shop_has_number CHECK (issuer <> 'shop' OR shop_number IS NOT NULL)
);
COMMENT ON TABLE @extschema@.coupon_template IS 'what can be claimed';
COMMENT ON COLUMN @extschema@.coupon_template.shop_number IS 'null: of the platform, for every shop';
COMMENT ON COLUMN @extschema@.coupon_template.open_to IS 'who may get it how: anyone by coupon_receive, the others by their own verb; left out, it follows the category';
COMMENT ON COLUMN @extschema@.coupon_template.receive_start IS 'the window [receive_start, receive_end) in which it can be claimed';
COMMENT ON COLUMN @extschema@.coupon_template.total_stock IS 'null: unlimited';
COMMENT ON COLUMN @extschema@.coupon_template.discount_value IS 'an amount of money, or per cent of the price';
COMMENT ON COLUMN @extschema@.coupon_template.threshold_amount IS 'smallest order that may use it; 0: any';
COMMENT ON COLUMN @extschema@.coupon_template.max_discount IS 'null: no cap';
COMMENT ON COLUMN @extschema@.coupon_template.use_validity IS 'how long a coupon can be used after the claim, where use_end is null';
COMMENT ON COLUMN @extschema@.coupon_template.use_end IS 'last moment of use for every coupon; use_validity is ignored then';

COMMENT ON COLUMN @extschema@.coupon_template.goods_ids IS 'the shop''s own ids of goods; null: all goods';
COMMENT ON COLUMN @extschema@.coupon_template.request_id IS 'of the call that made it; a shop has each once';

CREATE UNIQUE INDEX coupon_template_request ON @extschema@.coupon_template (shop_number, request_id)
    NULLS NOT DISTINCT WHERE request_id IS NOT NULL;
CREATE INDEX coupon_template_browse_shop ON @extschema@.coupon_template (shop_number, id)
    WHERE status = 'published';
CREATE INDEX coupon_template_coming ON @extschema@.coupon_template (shop_number, receive_start);
CREATE INDEX coupon_template_registration ON @extschema@.coupon_template (shop_number, id)
    WHERE open_to = 'registration' AND status = 'published';
CREATE INDEX coupon_template_browse_category ON @extschema@.coupon_template (category, id)
    WHERE status = 'published';

CREATE FUNCTION @extschema@.coupon_template_guard() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_template_guard';
COMMENT ON FUNCTION @extschema@.coupon_template_guard() IS
    'keeps the shared cache right, and refuses changes that would break the books';

-- Last of the row triggers by name, so that it sees what is really stored.
CREATE TRIGGER zz_coupon_template_created AFTER INSERT OR UPDATE ON @extschema@.coupon_template
    FOR EACH ROW EXECUTE FUNCTION @extschema@.coupon_template_guard();
CREATE TRIGGER zz_coupon_template_guard BEFORE INSERT OR UPDATE OR DELETE ON @extschema@.coupon_template
    FOR EACH ROW EXECUTE FUNCTION @extschema@.coupon_template_guard();
CREATE TRIGGER zz_coupon_template_truncate BEFORE TRUNCATE ON @extschema@.coupon_template
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.coupon_template_guard();
ALTER TABLE @extschema@.coupon_template
    ENABLE ALWAYS TRIGGER zz_coupon_template_created,
    ENABLE ALWAYS TRIGGER zz_coupon_template_guard,
    ENABLE ALWAYS TRIGGER zz_coupon_template_truncate;

-- What operators have in place of rights to write the table, which would be rights to lock it.
CREATE FUNCTION @extschema@.coupon_template_create(name text, total_stock bigint, discount_value numeric,
                                       details jsonb DEFAULT '{}', request_id text DEFAULT NULL)
    RETURNS TABLE (code int, outcome text, template_id bigint, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_template_create';
COMMENT ON FUNCTION @extschema@.coupon_template_create(text, bigint, numeric, jsonb, text) IS
    'makes a template; details: other columns as a JSON object; total_stock null: unlimited';

CREATE FUNCTION @extschema@.coupon_template_change(template_id bigint, changes jsonb)
    RETURNS TABLE (code int, outcome text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_template_change';
COMMENT ON FUNCTION @extschema@.coupon_template_change(bigint, jsonb) IS
    'sets the columns of a template that a JSON object names';

CREATE FUNCTION @extschema@.coupon_template_copy(template_id bigint, changes jsonb DEFAULT '{}', request_id text DEFAULT NULL)
    RETURNS TABLE (code int, outcome text, copy_id bigint, repeated boolean)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_template_copy';
COMMENT ON FUNCTION @extschema@.coupon_template_copy(bigint, jsonb, text) IS
    'makes a draft like a template, but for the columns that a JSON object names';

CREATE FUNCTION @extschema@.coupon_template_delete(template_id bigint)
    RETURNS TABLE (code int, outcome text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_template_delete';
COMMENT ON FUNCTION @extschema@.coupon_template_delete(bigint) IS
    'deletes a template of which nothing was issued';

-- Operators and monitors that are bound to a shop read the templates of that.
ALTER TABLE @extschema@.coupon_template ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_template_shop ON @extschema@.coupon_template
    USING (@extschema@.coupon_shop_allowed(shop_number))
    WITH CHECK (@extschema@.coupon_shop_allowed(shop_number));

