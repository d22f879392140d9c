-- defaults: name, stock and value are enough for a sale that is open now
INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
VALUES (100, '10 off', 100, 10, 'published');
SELECT issuer, category, open_to, per_user_limit, discount_kind, threshold_amount, use_validity, receive_end
FROM coupon_template WHERE id = 100;
SELECT code, outcome, receive_seq, repeated FROM coupon_receive(100, 1);

-- nonsense is refused
\set VERBOSITY terse
INSERT INTO coupon_template (name, discount_value) VALUES ('', 1);
INSERT INTO coupon_template (name, discount_value) VALUES ('x', 0);
INSERT INTO coupon_template (name, discount_value) VALUES ('x', -5);
INSERT INTO coupon_template (name, discount_value, discount_kind) VALUES ('x', 101, 'percent');
INSERT INTO coupon_template (name, discount_value, total_stock) VALUES ('x', 1, -1);
INSERT INTO coupon_template (name, discount_value, per_user_limit) VALUES ('x', 1, 0);
INSERT INTO coupon_template (name, discount_value, receive_start, receive_end) VALUES ('x', 1, '2030-01-02', '2030-01-01');
INSERT INTO coupon_template (name, discount_value, use_start, use_end) VALUES ('x', 1, '2030-01-02', '2030-01-01');
INSERT INTO coupon_template (name, discount_value, use_start) VALUES ('x', 1, '2030-01-02');
INSERT INTO coupon_template (name, discount_value, use_end) VALUES ('x', 1, '2000-01-01');
INSERT INTO coupon_template (name, discount_value, use_validity) VALUES ('x', 1, '0');
INSERT INTO coupon_template (name, discount_value, use_validity) VALUES ('x', 1, '-11 mons 331 days');
INSERT INTO coupon_template (name, discount_value, use_validity) VALUES ('x', 1, '101 years');
INSERT INTO coupon_template (name, discount_value) VALUES ('x', 'NaN');
INSERT INTO coupon_template (name, discount_value, threshold_amount) VALUES ('x', 1, 'NaN');
INSERT INTO coupon_template (name, discount_value, max_discount) VALUES ('x', 1, 'NaN');
INSERT INTO coupon_template (name, discount_value, max_discount) VALUES ('x', 1, 0);
INSERT INTO coupon_template (name, discount_value, threshold_amount) VALUES ('x', 1, -1);
INSERT INTO coupon_template (name, discount_value, goods_ids) VALUES ('x', 1, '{}');
INSERT INTO coupon_template (name, discount_value, goods_ids) VALUES ('x', 1, '{1,NULL}');
INSERT INTO coupon_template (name, discount_value, goods_ids) VALUES ('x', 1, '{1,""}');
INSERT INTO coupon_template (name, discount_value, goods_ids) VALUES ('x', 1, '{{1,2}}');
INSERT INTO coupon_template (name, discount_value, goods_ids) VALUES ('x', 1, ARRAY[repeat('é', 33)]);
INSERT INTO coupon_template (name, discount_value, request_id) VALUES ('x', 1, '');
INSERT INTO coupon_template (name, discount_value, status) VALUES ('x', 1, 'open');
INSERT INTO coupon_template (name, discount_value, category) VALUES ('x', 1, 'x');
INSERT INTO coupon_template (name, discount_value, open_to) VALUES ('x', 1, 'x');
INSERT INTO coupon_template (name, discount_value, category, open_to) VALUES ('x', 1, 'new_user', 'anyone');
INSERT INTO coupon_template (name, discount_value, category, open_to) VALUES ('x', 1, 'task', 'registration');
INSERT INTO coupon_template (name, discount_value, issuer) VALUES ('x', 1, 'shop');
INSERT INTO coupon_template (name, discount_value, refund_policy) VALUES ('x', 1, 'x');
INSERT INTO coupon_template (name, discount_value, shop_number) VALUES ('x', 1, 0);
INSERT INTO coupon_template (name, total_stock) VALUES ('x', 1);

\set VERBOSITY default
-- who may get it follows the category
BEGIN;
INSERT INTO coupon_template (name, discount_value, category) VALUES ('p', 1, 'promotion'), ('n', 1, 'new_user'), ('t', 1, 'task');
INSERT INTO coupon_template (name, discount_value, category, open_to) VALUES ('c', 1, 'new_user', 'code'), ('r', 1, 'promotion', 'registration');
SELECT name, category, open_to FROM coupon_template WHERE id <> 100 ORDER BY id;
ROLLBACK;
-- once issued, what a coupon is worth is frozen; the rest is not
UPDATE coupon_template SET refund_policy = 'keep' WHERE id = 100;
UPDATE coupon_template SET discount_value = 20 WHERE id = 100;
UPDATE coupon_template SET threshold_amount = 5, name = 'x' WHERE id = 100;
UPDATE coupon_template SET goods_ids = '{1}' WHERE id = 100;
UPDATE coupon_template SET shop_number = 7 WHERE id = 100;
UPDATE coupon_template SET discount_value = 10.00, name = 'still 10 off' WHERE id = 100;
UPDATE coupon_template SET id = 101 WHERE id = 100;
DELETE FROM coupon_template WHERE id = 100;
TRUNCATE coupon_template;
SELECT name, discount_value, updated_at > created_at AS stamped FROM coupon_template WHERE id = 100;

-- before, it is not, and a template can be deleted
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (110, 'new', 5, 10, 'published');
SELECT coupon_stock_left(110);
UPDATE coupon_template SET discount_value = 20 WHERE id = 110;
SELECT coupon_stock_left(110), discount_value FROM coupon_template WHERE id = 110;
DELETE FROM coupon_template WHERE id = 110;
SELECT code, outcome FROM coupon_receive(110, 1);
SELECT coupon_stock_left(110);

-- a claim in the same transaction counts as issued
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (111, 'new', 5, 10, 'published');
BEGIN;
SELECT code FROM coupon_receive(111, 1);
DELETE FROM coupon_template WHERE id = 111;
ROLLBACK;
-- a deletion rolled back leaves everything as it was
BEGIN;
DELETE FROM coupon_template WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 1);
ROLLBACK;
SELECT code, outcome FROM coupon_receive(111, 1);
SELECT coupon_stock_left(111);

-- every attribute change is seen by the next claim
UPDATE coupon_template SET status = 'offline' WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 2);
UPDATE coupon_template SET status = 'draft' WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 2);
UPDATE coupon_template SET status = 'published', receive_start = statement_timestamp() + interval '1 day' WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 2);
UPDATE coupon_template SET receive_start = '2020-01-01', receive_end = '2021-01-01' WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 2);
UPDATE coupon_template SET receive_end = 'infinity', use_start = '2020-01-01', use_end = '2021-01-01' WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 2);
UPDATE coupon_template SET use_start = '2090-01-01', use_end = '2091-01-01', open_to = 'task' WHERE id = 111;
SELECT code, outcome FROM coupon_receive(111, 2);
UPDATE coupon_template SET open_to = 'anyone' WHERE id = 111;
SELECT code, outcome, use_end = '2091-01-01' AS absolute FROM coupon_receive(111, 2);
SELECT use_start = '2090-01-01' AS use_start FROM user_coupon WHERE template_id = 111 AND user_id = 2;
UPDATE coupon_template SET per_user_limit = 2 WHERE id = 111;
SELECT code, outcome, receive_seq FROM coupon_receive(111, 2);

-- ON CONFLICT DO UPDATE is an update, not a new template
INSERT INTO coupon_template (id, name, total_stock, discount_value) VALUES (111, 'upsert', 5, 10)
ON CONFLICT (id) DO UPDATE SET name = excluded.name;
SELECT coupon_stock_left(111);
SELECT ok, problem FROM coupon_verify() WHERE NOT ok;

-- the verbs of operators
\set VERBOSITY terse
SELECT code, outcome, repeated, template_id AS made FROM coupon_template_create('verbs', 10, 2.5,
    '{"status": "published", "category": "task", "goods_ids": ["A-1", "7"], "use_validity": "3 days", "threshold_amount": 30}', 'once') \gset
SELECT :'outcome' AS outcome, :'repeated' AS repeated;
SELECT shop_number, issuer, name, category, open_to, status, total_stock, per_user_limit, discount_value, threshold_amount, goods_ids, use_validity
FROM coupon_template WHERE id = :made;
SELECT template_id = :made AS same, repeated FROM coupon_template_create('verbs', 10, 2.5, '{}', 'once');
SELECT template_id <> :made AS another, repeated FROM coupon_template_create('verbs', 10, 2.5, '{"shop_number": "7"}', 'once');
SELECT outcome FROM coupon_template_change(:made, '{"total_stock": null, "name": "changed", "goods_ids": null}');
SELECT name, total_stock, goods_ids FROM coupon_template WHERE id = :made;
SELECT outcome FROM coupon_template_change(1, '{"name": "x"}');
SELECT outcome FROM coupon_template_copy(1);
SELECT outcome FROM coupon_template_delete(1);
SELECT outcome, copy_id AS copy FROM coupon_template_copy(:made, '{"name": "a copy"}') \gset
SELECT name, category, open_to, status, total_stock, discount_value, threshold_amount, use_validity, request_id FROM coupon_template WHERE id = :copy;
SELECT outcome FROM coupon_template_delete(:copy);
SELECT coupon_template_create(NULL, 1, 1);
SELECT coupon_template_create('x', 1, NULL);
SELECT coupon_template_create('x', 1, 1, NULL);
SELECT coupon_template_create('x', -1, 1);
SELECT coupon_template_create('x', 1, 1, '[]');
SELECT coupon_template_create('x', 1, 1, '"status"');
SELECT coupon_template_create('x', 1, 1, '{"name": "y"}');
SELECT coupon_template_create('x', 1, 1, '{"id": 5}');
SELECT coupon_template_create('x', 1, 1, '{"status; DROP TABLE x": 5}');
SELECT coupon_template_create('x', 1, 1, '{"status": "open"}');
SELECT coupon_template_create('x', 1, 1, '{"receive_end": "tomorrow or so"}');
SELECT coupon_template_create('x', 1, 1, '{"shop_number": 1.5}');
SELECT coupon_template_create('x', 1, 1, '{}', '');
SELECT coupon_template_change(:made, '{}');
SELECT coupon_template_change(:made, '{"id": 9}');
SELECT coupon_template_change(:made, NULL);
SELECT coupon_template_change(NULL, '{"name": "x"}');
SELECT coupon_template_change(:made, '{"name": null}');
SELECT coupon_template_change(100, '{"discount_value": 20}');
SELECT coupon_template_delete(100);
SELECT count(*) FROM coupon_template WHERE name IN ('x', 'y');

-- A shop has so many welcome coupons, not more
BEGIN;
INSERT INTO coupon_template (name, total_stock, discount_value, issuer, shop_number, category, status)
SELECT 'welcome ' || n, 10, 1, 'shop', 71, 'new_user', 'published' FROM generate_series(1, 100) n;
SAVEPOINT a;
SELECT coupon_template_create('one more', 10, 1, '{"shop_number": 71, "category": "new_user", "status": "published"}');
ROLLBACK TO a;
SELECT outcome, template_id AS late FROM coupon_template_create('a draft', 10, 1, '{"shop_number": 71, "category": "new_user"}') \gset
SAVEPOINT b;
SELECT coupon_template_change(:late, '{"status": "published"}') IS NULL;
ROLLBACK TO b;
SELECT outcome FROM coupon_template_create('another shop''s', 10, 1, '{"shop_number": 72, "category": "new_user", "status": "published"}');
SELECT outcome FROM coupon_template_create('another kind', 10, 1, '{"shop_number": 71, "status": "published"}');
UPDATE coupon_template SET status = 'offline' WHERE shop_number = 71 AND name = 'welcome 5';
SELECT outcome FROM coupon_template_change(:late, '{"status": "published"}');
ROLLBACK;

-- No part of use_validity is negative
INSERT INTO coupon_template (name, discount_value, use_validity) VALUES ('x', 1, '1 mon -719:00:00');
INSERT INTO coupon_template (name, discount_value, use_validity) VALUES ('x', 1, '1 hour -1 min');
INSERT INTO coupon_template (name, discount_value, use_validity) VALUES ('x', 1, '1 hour -61 min');
DELETE FROM coupon_template WHERE name = 'x';
