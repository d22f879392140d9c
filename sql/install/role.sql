-- Roles

CREATE TABLE @extschema@.coupon_role (
    role        regrole NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('application', 'operator', 'monitor')),
    shop_number bigint CHECK (shop_number > 0),
    id          bigint PRIMARY KEY DEFAULT @extschema@.coupon_next_id(),
    UNIQUE NULLS NOT DISTINCT (role, kind, shop_number)
);
COMMENT ON TABLE @extschema@.coupon_role IS 'what coupon_grant has given; a shop number binds the role to that shop';
COMMENT ON COLUMN @extschema@.coupon_role.shop_number IS 'null: every shop';

CREATE FUNCTION @extschema@.coupon_role_changed() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_role_changed';
COMMENT ON FUNCTION @extschema@.coupon_role_changed() IS 'makes every session look at coupon_role again';

CREATE TRIGGER coupon_role_changed
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON @extschema@.coupon_role
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.coupon_role_changed();
ALTER TABLE @extschema@.coupon_role ENABLE ALWAYS TRIGGER coupon_role_changed;

CREATE FUNCTION @extschema@.coupon_shop_operated(shop_number bigint) RETURNS boolean
    LANGUAGE C STABLE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_shop_operated';
COMMENT ON FUNCTION @extschema@.coupon_shop_operated(bigint) IS
    'tells whether the current user is an operator of a shop (null: of the platform)';

CREATE FUNCTION @extschema@.coupon_shop_allowed(shop_number bigint) RETURNS boolean
    LANGUAGE C STABLE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_shop_allowed';
COMMENT ON FUNCTION @extschema@.coupon_shop_allowed(bigint) IS
    'tells whether the current user is an operator or monitor of a shop (null: of the platform)';

