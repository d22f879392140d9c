\set coupon random(1, :coupons)
\set order random(1, 1000000000000)
WITH changed AS (
    UPDATE user_coupon SET status = 1, order_id = :order::text, order_amount = 50, discount = 10,
        locked_until = statement_timestamp()
    WHERE user_id = :coupon AND id = :coupon RETURNING id, user_id, template_id)
INSERT INTO coupon_event (kind, user_coupon_id, user_id, template_id, order_id, amount, discount)
SELECT 'lock', id, user_id, template_id, :order::text, 50, 10 FROM changed;
