-- Tidying: what time has done to coupons, and what is old

-- Neither SECURITY DEFINER nor with SET: such procedures could not commit.
CREATE PROCEDURE coupon_expire()
    LANGUAGE C
    AS 'MODULE_PATHNAME', 'coupon_expire';
COMMENT ON PROCEDURE coupon_expire() IS
    'stores the status "expired" with coupons that are; commits after each batch';

CREATE PROCEDURE coupon_purge()
    LANGUAGE C
    AS 'MODULE_PATHNAME', 'coupon_purge';
COMMENT ON PROCEDURE coupon_purge() IS
    'deletes what is older than coupon.keep_coupons and coupon.keep_tasks; commits after each batch';

