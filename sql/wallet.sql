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
SELECT id FROM coupon_browse(page_size => 2, before_id => 502) WHERE id >= 500;

UPDATE user_coupon SET status = 1, locked_until = '2090-01-01', order_id = 'A', order_amount = 20, discount = 10 WHERE user_id = 42 AND template_id = 500 AND receive_seq = 1;
UPDATE user_coupon SET status = 1, locked_until = '2020-01-01', order_id = 'B', order_amount = 20, discount = 10 WHERE user_id = 42 AND template_id = 500 AND receive_seq = 2;
UPDATE user_coupon SET status = 2, used_at = now(), order_id = 'C', order_amount = 20, discount = 10 WHERE user_id = 42 AND template_id = 500 AND receive_seq = 3;
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

-- Browsing: what can be claimed or will be; closed: all that are published
INSERT INTO coupon_template (id, shop_number, name, total_stock, discount_value, status, receive_start, receive_end, use_start, use_end) VALUES
    (510, 51, 'open', 10, 10, 'published', '2020-01-01', 'infinity', NULL, NULL), (511, 51, 'one', 1, 10, 'published', '2020-01-01', 'infinity', NULL, NULL),
    (512, 51, 'soon', 1, 10, 'published', '2090-01-01', 'infinity', NULL, NULL), (513, 51, 'over', NULL, 10, 'published', '2020-01-01', '2021-01-01', NULL, NULL),
    (514, 51, 'of no use', NULL, 10, 'published', '2020-01-01', 'infinity', '2020-01-01', '2021-01-01'), (515, 51, 'draft', 1, 10, 'draft', '2020-01-01', 'infinity', NULL, NULL),
    (516, 51, 'no total', NULL, 10, 'published', '2020-01-01', 'infinity', NULL, NULL), (517, 51, 'divided', 3, 10, 'published', '2020-01-01', 'infinity', NULL, NULL);
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (517, 1, 2);
SELECT id, claim_state FROM coupon_browse(shop_number => 51);
INSERT INTO coupon_template (id, shop_number, name, total_stock, discount_value, status, receive_start) VALUES (519, 51, 'none', 0, 10, 'published', '2020-01-01');
SELECT coupon_browse_count(shop_number => 51);
SELECT outcome FROM unnest('{511,517}'::bigint[]) t, coupon_receive(t, 5101);
SELECT id FROM coupon_browse(shop_number => 51);
SELECT coupon_browse_count(shop_number => 51);
SELECT count(*) FROM coupon_fold();
SELECT coupon_browse_count(shop_number => 51);
SELECT id FROM coupon_browse(shop_number => 51, page_size => 2);
SELECT id FROM coupon_browse(shop_number => 51, page_size => 2, before_id => 512);
SELECT id, claim_state FROM coupon_browse(shop_number => 51, closed => true);
SELECT coupon_browse(closed => NULL);

-- Preheating: loads each, once
SELECT loads AS before FROM coupon_stat_cache \gset
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) SELECT n, 'cold', 5, 1, 'published' FROM generate_series(520, 524) n;
SELECT coupon_preheat('{520,521,522,523,524,599,520}');
SELECT outcome FROM coupon_receive(520, 5101);
SELECT loads - :before AS loads FROM coupon_stat_cache;
SELECT coupon_preheat('{}');
SELECT coupon_preheat(NULL);
SELECT coupon_preheat('{1,NULL}');
SELECT coupon_preheat('{{1},{2}}');
