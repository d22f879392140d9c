INSERT INTO coupon_template (id, shop_number, name, total_stock, discount_value, status, category, receive_start, receive_end, per_user_limit) VALUES
    (500, 7, 'shop', 10, 10, 'published', 'promotion', '2020-01-01', 'infinity', 9),
    (501, NULL, 'platform', 1, 10, 'published', 'promotion', '2020-01-01', 'infinity', 1),
    (502, NULL, 'soon', NULL, 10, 'published', 'promotion', '2090-01-01', 'infinity', 1),
    (503, NULL, 'over', NULL, 10, 'published', 'promotion', '2020-01-01', '2021-01-01', 1),
    (504, NULL, 'off', NULL, 10, 'offline', 'promotion', '2020-01-01', 'infinity', 1),
    (505, 8, 'other', NULL, 10, 'published', 'task', '2020-01-01', 'infinity', 1);
SELECT count(*) FROM generate_series(1, 5) g, coupon_receive(500, 42 + g - g);
SELECT code FROM coupon_receive(501, 42);

SELECT id, stock_left, claim_state FROM generate_series(500, 506) g, coupon_template_get(g);
SELECT id, claim_state, stock_left FROM coupon_browse() WHERE id BETWEEN 500 AND 505;
SELECT id FROM coupon_browse('task');
SELECT id FROM coupon_browse(shop_number => 7);
SELECT id FROM coupon_browse(page_size => 2, before_id => 505);
SELECT id FROM coupon_browse(page_size => 2, before_id => 502);

UPDATE user_coupon SET status = 1, locked_until = '2090-01-01', order_id = 1 WHERE user_id = 42 AND template_id = 500 AND receive_seq = 1;
UPDATE user_coupon SET status = 1, locked_until = '2020-01-01', order_id = 2 WHERE user_id = 42 AND template_id = 500 AND receive_seq = 2;
UPDATE user_coupon SET status = 2, used_at = now() WHERE user_id = 42 AND template_id = 500 AND receive_seq = 3;
UPDATE user_coupon SET use_start = '2020-01-01', use_end = '2021-01-01' WHERE user_id = 42 AND template_id = 500 AND receive_seq = 4;
UPDATE user_coupon SET status = 4 WHERE user_id = 42 AND template_id = 500 AND receive_seq = 5;
SELECT name, receive_seq, status FROM coupon_wallet(42);
SELECT name, receive_seq, status FROM coupon_wallet(42, 'unused');
SELECT receive_seq FROM coupon_wallet(42, NULL, 2);
SELECT w.receive_seq FROM coupon_wallet(42, NULL, 2, (SELECT min(user_coupon_id) FROM coupon_wallet(42, NULL, 2))) w;
SELECT * FROM coupon_wallet_count(42);
SELECT * FROM coupon_wallet_count(43);
SELECT count(*) FROM coupon_wallet(43);
SELECT status, shop_number, name FROM coupon_held WHERE user_id = 42 AND template_id = 501;
-- one partition, by an index, newest first
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
EXPLAIN (COSTS OFF) SELECT id FROM user_coupon WHERE user_id = 14 ORDER BY id DESC LIMIT 20;
