-- Coupons whose id is their user, and wallets of three sizes.
INSERT INTO coupon_template (id, name, discount_value, per_user_limit, status, receive_start, refund_policy)
VALUES (1, 'order', 10, 1000000, 'published', '2020-01-01', 'return');
INSERT INTO user_coupon (id, user_id, template_id, use_start, use_end)
SELECT u, u, 1, '2020-01-01', '2090-01-01' FROM generate_series(1, :coupons) u;
INSERT INTO user_coupon (id, user_id, template_id, receive_seq, use_start, use_end)
SELECT :coupons * 20 + n * 10000 + s, :coupons * 10 + n, 1, s, '2020-01-01', '2090-01-01'
FROM unnest('{20,200,2000}'::bigint[]) n, generate_series(1, n) s;
VACUUM ANALYZE user_coupon;
