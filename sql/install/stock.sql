-- Stock: what has been issued, durably

CREATE TABLE @extschema@.coupon_stock (
    template_id bigint NOT NULL,
    holder      int NOT NULL CHECK (holder BETWEEN 0 AND 1023),
    quota       bigint CHECK (quota BETWEEN 0 AND 1000000000000000),
    folded      bigint NOT NULL DEFAULT 0 CHECK (folded >= 0),
    PRIMARY KEY (template_id, holder),
    CONSTRAINT coupon_stock_quota CHECK ((holder = 0) = (quota IS NULL))
);
COMMENT ON TABLE @extschema@.coupon_stock IS 'stock per template and holder; no row: the whole total, nothing folded';
COMMENT ON COLUMN @extschema@.coupon_stock.holder IS '0: this database, 1: a Redis tier, 2: codes, 3: imported by coupon_stock_adopt';
COMMENT ON COLUMN @extschema@.coupon_stock.quota IS 'what another holder may issue; this database has the rest of the total';
COMMENT ON COLUMN @extschema@.coupon_stock.folded IS 'coupons issued with ids up to the watermark of the holder';

CREATE TABLE @extschema@.coupon_watermark (
    holder int PRIMARY KEY CHECK (holder BETWEEN 0 AND 1023),
    upto   bigint NOT NULL CHECK (upto >= 0),
    restored boolean NOT NULL DEFAULT true
);
COMMENT ON TABLE @extschema@.coupon_watermark IS 'coupons with ids up to here are folded into coupon_stock';
COMMENT ON COLUMN @extschema@.coupon_watermark.restored IS 'written by something other than a fold, a restore perhaps; then coupons with ids up to here, which are folded, may still come';

-- The coupons themselves

CREATE FUNCTION @extschema@.user_coupon_sane(id bigint, user_id bigint, receive_seq int, status smallint,
                                 source text, use_start timestamptz, use_end timestamptz, holder int,
                                 order_id text, order_amount numeric, locked_until timestamptz,
                                 used_at timestamptz, discount numeric)
    RETURNS boolean
    LANGUAGE C IMMUTABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'user_coupon_sane';
COMMENT ON FUNCTION @extschema@.user_coupon_sane(bigint, bigint, int, smallint, text, timestamptz, timestamptz, int, text,
                                     numeric, timestamptz, timestamptz, numeric) IS
    'the CHECK of user_coupon: true, or an error that names the column and the rule';

CREATE TABLE @extschema@.user_coupon (
    id           bigint NOT NULL DEFAULT @extschema@.coupon_next_id(),
    user_id      bigint NOT NULL,
    template_id  bigint NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT statement_timestamp(),
    use_start    timestamptz NOT NULL DEFAULT statement_timestamp(),
    use_end      timestamptz NOT NULL,
    receive_seq  int NOT NULL DEFAULT 1,
    holder       int,
    status       smallint NOT NULL DEFAULT 0,
    source       text NOT NULL DEFAULT 'platform',
    order_id     text,
    order_amount numeric(16,2),
    locked_until timestamptz,
    used_at      timestamptz,
    discount     numeric(16,2),
    hidden       boolean,
    request_id   text,
    PRIMARY KEY (user_id, id),
    CONSTRAINT user_coupon_sane CHECK (@extschema@.user_coupon_sane(
        id, user_id, receive_seq, status, source, use_start, use_end, holder,
        order_id, order_amount, locked_until, used_at, discount))
) PARTITION BY HASH (user_id);
COMMENT ON TABLE @extschema@.user_coupon IS 'one row per coupon that a user holds';
COMMENT ON COLUMN @extschema@.user_coupon.receive_seq IS 'n-th coupon of this template for this user';
COMMENT ON COLUMN @extschema@.user_coupon.holder IS 'whose stock it came from (coupon_stock); null: none, inserted by hand';
COMMENT ON COLUMN @extschema@.user_coupon.status IS '0 unused, 1 locked, 2 used, 3 expired, 4 revoked, as stored: coupon_held tells it as of now';
COMMENT ON COLUMN @extschema@.user_coupon.order_id IS 'the order that has it; a lease that has run out leaves it here';
COMMENT ON COLUMN @extschema@.user_coupon.order_amount IS 'amount of that order, before any discount';
COMMENT ON COLUMN @extschema@.user_coupon.locked_until IS 'end of the lease; judged when it is read';
COMMENT ON COLUMN @extschema@.user_coupon.discount IS 'what it takes off that order';
COMMENT ON COLUMN @extschema@.user_coupon.hidden IS 'true: its user has taken it out of the list';

CREATE UNIQUE INDEX user_coupon_limit ON @extschema@.user_coupon (template_id, user_id, receive_seq);
-- Coupons of another system, before and after coupon_stock_adopt, are not in it: their ids
-- say nothing of when they came.
CREATE INDEX user_coupon_fold ON @extschema@.user_coupon (id) WHERE holder <> 3;

CREATE FUNCTION @extschema@.coupon_stock_guard() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_stock_guard';
COMMENT ON FUNCTION @extschema@.coupon_stock_guard() IS 'keeps the shared cache right when quotas or folded counts change';
CREATE FUNCTION @extschema@.coupon_watermark_guard() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_watermark_guard';
COMMENT ON FUNCTION @extschema@.coupon_watermark_guard() IS 'makes all stock be counted again when the watermark is moved by hand';
CREATE FUNCTION @extschema@.user_coupon_guard() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'user_coupon_guard';
COMMENT ON FUNCTION @extschema@.user_coupon_guard() IS
    'makes stock be counted again when coupons are written past the claim path';

CREATE TRIGGER zz_coupon_stock_guard BEFORE INSERT OR UPDATE OR DELETE ON @extschema@.coupon_stock
    FOR EACH ROW EXECUTE FUNCTION @extschema@.coupon_stock_guard();
CREATE TRIGGER zz_coupon_stock_truncate BEFORE TRUNCATE ON @extschema@.coupon_stock
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.coupon_stock_guard();
ALTER TABLE @extschema@.coupon_stock
    ENABLE ALWAYS TRIGGER zz_coupon_stock_guard,
    ENABLE ALWAYS TRIGGER zz_coupon_stock_truncate;

CREATE TRIGGER zz_coupon_watermark_guard
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON @extschema@.coupon_watermark
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.coupon_watermark_guard();
CREATE TRIGGER zz_coupon_watermark_restored BEFORE INSERT OR UPDATE ON @extschema@.coupon_watermark
    FOR EACH ROW EXECUTE FUNCTION @extschema@.coupon_watermark_guard();
ALTER TABLE @extschema@.coupon_watermark
    ENABLE ALWAYS TRIGGER zz_coupon_watermark_guard,
    ENABLE ALWAYS TRIGGER zz_coupon_watermark_restored;

-- Row triggers reach the partitions by themselves; the one for TRUNCATE, which
-- a partition can meet alone, is made on each.
DO $$
BEGIN
    FOR i IN 0..31 LOOP
        EXECUTE format('CREATE TABLE @extschema@.user_coupon_%s PARTITION OF @extschema@.user_coupon'
                       ' FOR VALUES WITH (MODULUS 32, REMAINDER %s)', i, i);
        EXECUTE format('CREATE TRIGGER zz_user_coupon_truncate BEFORE TRUNCATE ON @extschema@.user_coupon_%s'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.user_coupon_guard()', i);
        EXECUTE format('ALTER TABLE @extschema@.user_coupon_%s ENABLE ALWAYS TRIGGER zz_user_coupon_truncate', i);
    END LOOP;
END
$$;
CREATE TRIGGER zz_user_coupon_truncate BEFORE TRUNCATE ON @extschema@.user_coupon
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.user_coupon_guard();
CREATE TRIGGER zz_user_coupon_insert BEFORE INSERT OR DELETE ON @extschema@.user_coupon
    FOR EACH ROW EXECUTE FUNCTION @extschema@.user_coupon_guard();
CREATE TRIGGER zz_user_coupon_update
    BEFORE UPDATE OF id, user_id, template_id, receive_seq, holder ON @extschema@.user_coupon
    FOR EACH ROW EXECUTE FUNCTION @extschema@.user_coupon_guard();
ALTER TABLE @extschema@.user_coupon
    ENABLE ALWAYS TRIGGER zz_user_coupon_truncate,
    ENABLE ALWAYS TRIGGER zz_user_coupon_insert,
    ENABLE ALWAYS TRIGGER zz_user_coupon_update;
DO $$
BEGIN
    FOR i IN 0..31 LOOP
        EXECUTE format('ALTER TABLE @extschema@.user_coupon_%s ENABLE ALWAYS TRIGGER zz_user_coupon_insert,'
                       ' ENABLE ALWAYS TRIGGER zz_user_coupon_update', i);
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.coupon_fold(OUT upto bigint, OUT templates bigint, OUT coupons bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_fold';
COMMENT ON FUNCTION @extschema@.coupon_fold() IS
    'folds coupons into coupon_stock, so that a restart counts only those after; call it every few seconds';

CREATE FUNCTION @extschema@.coupon_stock_left(template_id bigint) RETURNS bigint
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_stock_left';
COMMENT ON FUNCTION @extschema@.coupon_stock_left(bigint) IS
    'tells how many can be claimed now; null: unlimited, or no such template';

CREATE FUNCTION @extschema@.coupon_stock_adopt(template_id bigint)
    RETURNS TABLE (code int, outcome text, adopted bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_stock_adopt';
COMMENT ON FUNCTION @extschema@.coupon_stock_adopt(bigint) IS
    'takes coupons that were imported without a holder into the stock of their template, as issued';

CREATE FUNCTION @extschema@.coupon_preheat(template_ids bigint[])
    RETURNS bigint
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_preheat';
COMMENT ON FUNCTION @extschema@.coupon_preheat(bigint[]) IS
    'loads templates into the shared cache before their sale, so that the first claims need not';

CREATE FUNCTION @extschema@.coupon_stock_rebuild(template_id bigint) RETURNS bigint
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_stock_rebuild';
COMMENT ON FUNCTION @extschema@.coupon_stock_rebuild(bigint) IS
    'counts the coupons of a template again, after open claims have ended, and returns the stock left';

CREATE TYPE @extschema@.coupon_verify_row AS (
    template_id bigint, total_stock bigint, quota bigint,
    coupons bigint, folded bigint, row_count bigint,
    memory_issued bigint, memory_in_flight bigint,
    ok boolean, problem text
);
COMMENT ON TYPE @extschema@.coupon_verify_row IS 'a row of coupon_verify';

CREATE FUNCTION @extschema@.coupon_verify(template_id bigint DEFAULT NULL)
    RETURNS SETOF @extschema@.coupon_verify_row
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_verify';
COMMENT ON FUNCTION @extschema@.coupon_verify(bigint) IS
    'recounts coupons and compares tables and shared memory, while claims go on; one row per template';

