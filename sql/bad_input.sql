-- misuse is an error with a state of its own, and changes nothing
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (300, 'x', 10, 10, 'published');
\set VERBOSITY sqlstate
SELECT coupon_receive(NULL, 1);
SELECT coupon_receive(300, NULL);
SELECT coupon_receive(300, 0);
SELECT coupon_receive(300, -5);
SELECT coupon_receive(300, 1, '');
SELECT coupon_receive(300, 1, repeat('x', 129));
SELECT coupon_receive(300, 1, repeat('x', 1024 * 1024));
SELECT coupon_receive(300, 1, NULL, NULL);
SELECT coupon_receive(300, 1, NULL, 'registration');
SELECT coupon_receive(300, 1, NULL, repeat('x', 1024 * 1024));
SELECT coupon_receive_many(300, NULL);
SELECT coupon_receive_many(NULL, '{1}');
SELECT coupon_receive_many(300, '{1,NULL}');
SELECT coupon_receive_many(300, '{1,-1}');
SELECT coupon_receive_many(300, '{{1,2},{3,4}}');
SELECT coupon_receive_new_user(NULL);
SELECT coupon_receive_new_user(0);
SELECT coupon_wallet(NULL);
SELECT coupon_wallet(1, 'lost');
SELECT coupon_wallet(1, NULL, 0);
SELECT coupon_wallet(1, NULL, 1001);
SELECT coupon_wallet(1, NULL, NULL);
SELECT coupon_browse(page_size => -1);
SELECT coupon_wallet_count(NULL);
\set VERBOSITY default
-- message, detail and hint
SELECT coupon_receive(300, 1, repeat('x', 129));
SELECT coupon_receive(300, 1, NULL, 'registration');
SELECT coupon_receive(300, -5);
-- what is not an error
SELECT coupon_stock_left(NULL), coupon_stock_left(0), coupon_stock_left(-1), coupon_stock_rebuild(0);
SELECT count(*) FROM coupon_verify(-1);
SELECT count(*) FROM coupon_template_get(NULL);
SELECT count(*) FROM coupon_template_get(-1);
SELECT code FROM coupon_receive(9223372036854775807, 9223372036854775807);
SELECT code FROM coupon_receive(-9223372036854775808, 1);
SELECT code, count(*) FROM coupon_receive_many(300, ARRAY(SELECT generate_series(1, 100000))) GROUP BY code ORDER BY code;
SELECT coupon_stock_left(300);
-- a user id at the end of the range
UPDATE coupon_template SET total_stock = 11 WHERE id = 300;
SELECT code FROM coupon_receive(300, 9223372036854775807);
-- refused two-phase commit
BEGIN;
UPDATE coupon_template SET total_stock = 12 WHERE id = 300;
SELECT code FROM coupon_receive(300, 200000);
PREPARE TRANSACTION 'p';
SELECT coupon_stock_left(300);
BEGIN;
UPDATE coupon_template SET name = 'y' WHERE id = 300;
PREPARE TRANSACTION 'p';
BEGIN;
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (300001, 300, 'infinity', 0);
PREPARE TRANSACTION 'p';
-- no business of ours
BEGIN;
CREATE TABLE other (id int);
SELECT code FROM coupon_receive(300, 1);
PREPARE TRANSACTION 'p';
ROLLBACK PREPARED 'p';
-- fold needs snapshots of its own
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT coupon_fold();
ROLLBACK;
SELECT template_id, problem FROM coupon_verify() WHERE NOT ok;
-- texts have bounds
\set VERBOSITY terse
UPDATE coupon_template SET name = repeat('名', 200), usage_note = repeat('x', 4000), unmet_note = repeat('x', 4000), image_url = repeat('x', 2000) WHERE id = 300;
UPDATE coupon_template SET name = repeat('x', 201) WHERE id = 300;
UPDATE coupon_template SET usage_note = repeat('x', 4001) WHERE id = 300;
UPDATE coupon_template SET unmet_note = repeat('x', 4001) WHERE id = 300;
UPDATE coupon_template SET image_url = repeat('x', 2001) WHERE id = 300;
INSERT INTO coupon_template (id, name, discount_value, goods_ids) VALUES (301, 'x', 1, array_fill(1, '{10001}'));
SELECT coupon_task_create(repeat('x', 201), 300);
INSERT INTO coupon_contact VALUES (1, 'sms', repeat('x', 2001));
INSERT INTO coupon_message VALUES ('test', 'sms', repeat('x', 1001), 'x');
INSERT INTO coupon_message VALUES ('test', 'sms', 'x', repeat('x', 102401));
SELECT coupon_channel_set('sms', 'http://127.0.0.1:1/', body_template => repeat('{body}', 17000));
SELECT length(body) FROM coupon_channel_preview('test', 'sms');
SELECT coupon_message_set('test', 'sms', 'x', repeat('x', 100));
SELECT length(body) FROM coupon_channel_preview('test', 'sms');
DELETE FROM coupon_message;
DELETE FROM coupon_channel;
