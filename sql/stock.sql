-- what other tests have left is folded, so that what is folded below is of this one
SELECT upto > 0 AS upto FROM coupon_fold();
-- what is said of a coupon, without its id
CREATE FUNCTION refused(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RETURN 'not refused';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || regexp_replace(SQLERRM, 'coupon \d+', 'coupon N');
END $$;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES
    (400, 'a', 10, 10, 'published'), (401, 'b', NULL, 10, 'published'), (402, 'c', 10, 10, 'published'),
    (403, 'd', 10, 10, 'published'), (404, 'e', 10, 10, 'published');
SELECT count(*) FROM coupon_receive_many(400, ARRAY(SELECT generate_series(1, 6)));
SELECT count(*) FROM coupon_receive_many(401, ARRAY(SELECT generate_series(1, 50)));

-- the total never falls below what was issued
UPDATE coupon_template SET total_stock = 5 WHERE id = 400;
UPDATE coupon_template SET total_stock = 6 WHERE id = 400;
SELECT coupon_stock_left(400);
SELECT code FROM coupon_receive(400, 7);
UPDATE coupon_template SET total_stock = 8 WHERE id = 400;
SELECT coupon_stock_left(400);
SELECT code FROM coupon_receive(400, 7);
-- lowered and raised in one transaction, with claims between, and rolled back
BEGIN;
UPDATE coupon_template SET total_stock = 7 WHERE id = 400;
SELECT coupon_stock_left(400), r.code FROM coupon_receive(400, 8) r;
UPDATE coupon_template SET total_stock = 9 WHERE id = 400;
SELECT r.code FROM coupon_receive(400, 8) r;
UPDATE coupon_template SET total_stock = 8 WHERE id = 400;
SELECT coupon_stock_left(400);
UPDATE coupon_template SET total_stock = 7 WHERE id = 400;
ROLLBACK;
SELECT coupon_stock_left(400);
BEGIN;
SAVEPOINT a;
UPDATE coupon_template SET total_stock = 7 WHERE id = 400;
ROLLBACK TO a;
SELECT coupon_stock_left(400);
SELECT r.code FROM coupon_receive(400, 8) r;
COMMIT;
SELECT coupon_stock_left(400);
-- a total for an unlimited template, and none for a limited one
UPDATE coupon_template SET total_stock = 49 WHERE id = 401;
UPDATE coupon_template SET total_stock = 51 WHERE id = 401;
SELECT coupon_stock_left(401);
UPDATE coupon_template SET total_stock = NULL WHERE id = 401;
SELECT coupon_stock_left(401);
SELECT user_id, code FROM coupon_receive_many(401, '{51,52}');

-- folding moves counts, not stock
SELECT upto > 0 AS upto, templates, coupons FROM coupon_fold();
SELECT template_id, coupons, folded, row_count, ok FROM coupon_verify() WHERE template_id BETWEEN 400 AND 404;
SELECT templates, coupons FROM coupon_fold();
SELECT r.code FROM coupon_receive(402, 1) r;
SELECT templates, coupons FROM coupon_fold();
SELECT coupon_stock_left(402);
SELECT coupon_stock_rebuild(402);
SELECT template_id, coupons, folded, ok FROM coupon_verify(402);

-- coupons written past the claim path
INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (900, 402, 'infinity');
SELECT coupon_stock_left(402);
SELECT code, outcome FROM coupon_receive(402, 900);
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (901, 402, 'infinity', 0), (902, 402, 'infinity', 0);
SELECT coupon_stock_left(402);
BEGIN;
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (903, 402, 'infinity', 0);
ROLLBACK;
SELECT coupon_stock_left(402);
-- deleting one that is not folded would give its unit back
SELECT refused($$DELETE FROM user_coupon WHERE template_id = 402 AND user_id = 901$$);
SELECT templates, coupons FROM coupon_fold();
DELETE FROM user_coupon WHERE template_id = 402 AND user_id = 901;
SELECT coupon_stock_left(402);
SELECT coupons, folded, row_count, ok FROM coupon_verify(402);
-- revoked and expired coupons are issued coupons
UPDATE user_coupon SET status = 4 WHERE template_id = 402 AND user_id = 1;
SELECT coupon_stock_rebuild(402);
-- which stock a coupon came from does not change
UPDATE user_coupon SET template_id = 403 WHERE template_id = 402 AND user_id = 900;
SELECT refused($$UPDATE user_coupon SET template_id = 403 WHERE template_id = 402 AND user_id = 902$$);
SELECT refused($$UPDATE user_coupon SET holder = 0 WHERE template_id = 403 AND user_id = 900$$);
SELECT refused($$UPDATE user_coupon SET holder = NULL WHERE template_id = 402 AND user_id = 902$$);
UPDATE user_coupon SET holder = 0, template_id = 402, order_id = '5' WHERE template_id = 402 AND user_id = 902;
SELECT coupon_stock_left(403);

-- quota of another holder comes out of ours
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (404, 1, 4);
SELECT coupon_stock_left(404);
SELECT count(*) FILTER (WHERE code = 0) FROM coupon_receive_many(404, ARRAY(SELECT generate_series(1, 10)));
UPDATE coupon_stock SET quota = 5 WHERE template_id = 404;
UPDATE coupon_stock SET quota = 3 WHERE template_id = 404;
SELECT coupon_stock_left(404);
DELETE FROM coupon_stock WHERE template_id = 404 AND holder = 1;
SELECT coupon_stock_left(404);
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (404, 0, 4);
UPDATE coupon_template SET total_stock = 5 WHERE id = 404;

INSERT INTO coupon_stock (template_id, holder, quota) VALUES (404, 1, 2);
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (404, 1, 4) ON CONFLICT (template_id, holder) DO UPDATE SET quota = excluded.quota;
SELECT coupon_stock_left(404);
UPDATE coupon_stock SET template_id = 400 WHERE template_id = 404 AND holder = 1;
UPDATE coupon_stock SET holder = 2 WHERE template_id = 404 AND holder = 1;
-- all units of an unlimited template, taken out more than once
INSERT INTO coupon_template (id, name, discount_value, status) VALUES (405, 'unlimited', 10, 'published');
SELECT coupon_stock_left(405);
BEGIN;
UPDATE coupon_template SET discount_value = 5 WHERE id = 405;
UPDATE coupon_template SET discount_value = 6 WHERE id = 405;
UPDATE coupon_template SET total_stock = 50 WHERE id = 405;
SELECT code, outcome FROM coupon_receive(405, 1);
UPDATE coupon_template SET discount_value = 7 WHERE id = 405;
ROLLBACK;
SELECT code, outcome FROM coupon_receive(405, 1);
-- a transaction that has moved counts must not show them to others
SELECT count(*) FROM coupon_receive_many(403, ARRAY(SELECT generate_series(1, 9)));
BEGIN;
UPDATE coupon_stock SET folded = folded - 5 WHERE template_id = 403;
TRUNCATE coupon_watermark;
SELECT coupon_stock_rebuild(403);
ROLLBACK;
SELECT coupon_stock_left(403);
BEGIN;
SELECT upto > 0 AS folded FROM coupon_fold();
DELETE FROM user_coupon WHERE template_id = 403 AND user_id = 1;
ROLLBACK;
SELECT refused($$DELETE FROM user_coupon WHERE template_id = 403 AND user_id = 1$$);
-- in one message, whose transactions have one start
CREATE TABLE counted (n int);
\set VERBOSITY sqlstate
BEGIN \; SELECT upto > 0 AS folded FROM coupon_fold() \; DELETE FROM user_coupon WHERE template_id = 403 AND user_id = 1 \; ROLLBACK \; BEGIN \; INSERT INTO counted VALUES (1) \; INSERT INTO counted VALUES (1) \; INSERT INTO counted VALUES (1) \; DELETE FROM user_coupon WHERE template_id = 403 AND user_id = 1 \; COMMIT;
ROLLBACK;
\set VERBOSITY default
DROP TABLE counted;
SELECT coupon_stock_left(403);
-- tampered counts are noticed
UPDATE coupon_stock SET folded = folded - 2 WHERE template_id = 402 AND holder = 0;
SELECT ok, problem FROM coupon_verify(402);
UPDATE coupon_stock SET folded = folded + 2 WHERE template_id = 402 AND holder = 0;
SELECT ok, problem FROM coupon_verify(402);
UPDATE coupon_stock SET folded = folded + 100 WHERE template_id = 402 AND holder = 0;
SELECT ok, problem FROM coupon_verify(402);
SELECT code, outcome FROM coupon_receive(402, 950);
UPDATE coupon_stock SET folded = folded - 100 WHERE template_id = 402 AND holder = 0;
SELECT code, outcome FROM coupon_receive(402, 950);

-- recounting in a transaction that has claims of its own
BEGIN;
SELECT code FROM coupon_receive(402, 951);
SELECT coupon_stock_rebuild(402);
ROLLBACK;

-- TRUNCATE of coupons is seen at once
SELECT coupon_stock_left(403);
TRUNCATE user_coupon, coupon_stock, coupon_watermark;
SELECT coupon_stock_left(403), coupon_stock_left(400);
SELECT code FROM coupon_receive(400, 1);
TRUNCATE user_coupon_0;
SELECT template_id, problem FROM coupon_verify() WHERE NOT ok;
SELECT template_id, problem FROM coupon_verify() WHERE NOT ok;
TRUNCATE user_coupon;
TRUNCATE coupon_template;
SELECT code, outcome FROM coupon_receive(400, 1);
SELECT count(*) FROM coupon_verify();

-- what is written by hand with a holder is counted, or refused
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (420, 'imports', 6, 1, 'published'), (421, 'no total', NULL, 1, 'published');
SELECT count(*) FROM generate_series(4201, 4203) u, coupon_receive(420, u) WHERE code = 0;
SELECT upto > 0 FROM coupon_fold();
SELECT restored FROM coupon_watermark WHERE holder = 0;
\set VERBOSITY sqlstate
INSERT INTO user_coupon (id, user_id, template_id, use_end, holder) VALUES (42001, 4211, 420, 'infinity', 0);
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (4212, 420, 'infinity', 0);
SELECT coupon_stock_left(420);
DELETE FROM user_coupon WHERE template_id = 420 AND user_id = 4212;
\set VERBOSITY default
-- a restored watermark: what is folded is still to come
BEGIN;
UPDATE coupon_watermark SET upto = upto WHERE holder = 0;
SELECT restored FROM coupon_watermark WHERE holder = 0;
INSERT INTO user_coupon (id, user_id, template_id, use_end, holder) VALUES (42001, 4211, 420, 'infinity', 0);
ROLLBACK;

-- imports: without a holder first, whatever their ids, then adopted
INSERT INTO user_coupon (id, user_id, template_id, use_end) VALUES (1, 4221, 420, 'infinity'), (4000000000000000000, 4222, 420, 'infinity'), (9223372036854775807, 4223, 420, 'infinity');
SELECT coupon_next_id() < 4000000000000000000 AS "ids stay ours";
SELECT coupon_stock_left(420);
SELECT * FROM coupon_stock_adopt(420);
SELECT count(*) FROM user_coupon WHERE template_id = 420 AND holder = 3;
DELETE FROM user_coupon WHERE template_id = 420 AND user_id = 4223;
SELECT * FROM coupon_stock_adopt(420);
SELECT holder, quota, folded FROM coupon_stock WHERE template_id = 420 AND holder = 3;
SELECT coupon_stock_left(420), (SELECT outcome FROM coupon_receive(420, 4230));
SELECT ok, problem FROM coupon_verify(420);
SELECT * FROM coupon_stock_adopt(420);
SELECT outcome FROM coupon_receive(420, 4221);
UPDATE coupon_template SET total_stock = 5 WHERE id = 420;
UPDATE coupon_template SET total_stock = NULL WHERE id = 420;
UPDATE coupon_template SET total_stock = 7 WHERE id = 420;
SELECT outcome FROM coupon_receive(420, 4231);
SELECT outcome FROM coupon_receive(420, 4232);
-- what was imported is not given back, by hand either
UPDATE coupon_stock SET quota = 1 WHERE template_id = 420 AND holder = 3;
DELETE FROM coupon_stock WHERE template_id = 420 AND holder = 3;
INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (4241, 421, 'infinity'), (4242, 421, 'infinity');
SELECT * FROM coupon_stock_adopt(421);
SELECT coupon_stock_left(421), (SELECT outcome FROM coupon_receive(421, 4243));
UPDATE coupon_template SET total_stock = 100 WHERE id = 421;
SELECT * FROM coupon_stock_adopt(1);
SELECT coupon_stock_adopt(NULL);

-- a holder gives back what it has not issued
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (422, 'two holders', 10, 1, 'published');
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (422, 1, 4);
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (4251, 422, 'infinity', 1), (4252, 422, 'infinity', 1), (4253, 422, 'infinity', 1);
UPDATE coupon_stock SET quota = 2 WHERE template_id = 422 AND holder = 1;
DELETE FROM coupon_stock WHERE template_id = 422 AND holder = 1;
UPDATE coupon_stock SET quota = 3 WHERE template_id = 422 AND holder = 1;
SELECT coupon_stock_left(422);

-- a trigger that takes claimed coupons away gives no unit back
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (423, 'taken away', 2, 1, 'published');
CREATE FUNCTION takes_away() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM user_coupon WHERE template_id = 423 AND id <= NEW.id; RETURN NULL; END';
CREATE TRIGGER takes_away AFTER INSERT ON user_coupon FOR EACH ROW WHEN (NEW.user_id = 4262) EXECUTE FUNCTION takes_away();
SELECT outcome FROM coupon_receive(423, 4261);
SELECT refused('SELECT coupon_receive(423, 4262)');
SELECT upto > 0 FROM coupon_fold();
SELECT refused('SELECT coupon_receive(423, 4262)');
DROP TRIGGER takes_away ON user_coupon;
DROP FUNCTION takes_away();
SELECT outcome FROM coupon_receive(423, 4263);
SELECT outcome FROM coupon_receive(423, 4264);

-- a total and a frozen column in one statement: judged as by themselves
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (424, 'both', 10, 1, 'published');
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (424, 1, 5);
SELECT refused('UPDATE coupon_template SET total_stock = 3, discount_value = 7 WHERE id = 424');
SELECT refused('UPDATE coupon_template SET total_stock = NULL, discount_value = 7 WHERE id = 424');
UPDATE coupon_template SET total_stock = 6, discount_value = 7 WHERE id = 424;
SELECT coupon_stock_left(424);
-- one's own rows by hand are counted by nobody before the commit
BEGIN;
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (4271, 424, 'infinity', 0);
SAVEPOINT a;
SELECT outcome FROM coupon_receive(424, 4272);
ROLLBACK TO a;
UPDATE coupon_template SET total_stock = 5 WHERE id = 424;
ROLLBACK TO a;
UPDATE coupon_stock SET quota = 6 WHERE template_id = 424;
ROLLBACK TO a;
COMMIT;
SELECT coupon_stock_left(424), (SELECT outcome FROM coupon_receive(424, 4272));
-- coupons of another holder stay: they are counted by their rows
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (4273, 424, 'infinity', 1);
SELECT upto > 0 FROM coupon_fold();
SELECT refused('DELETE FROM user_coupon WHERE template_id = 424 AND holder = 1');
-- an UPDATE that moves nothing licenses no row that is not counted
UPDATE user_coupon SET receive_seq = receive_seq, user_id = user_id WHERE template_id = 424 AND holder = 0 AND user_id = 4271;
SELECT left(refused('INSERT INTO user_coupon (id, user_id, template_id, use_end, holder) SELECT id, 4274, 424, use_end, 0 FROM user_coupon WHERE template_id = 424 AND user_id = 4271'), 5);

-- more coupons of another holder than its quota are noticed
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (428, 'divided', 4, 1, 'published');
INSERT INTO coupon_stock (template_id, holder, quota) VALUES (428, 1, 1);
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (4281, 428, 'infinity', 1);
SELECT ok, problem FROM coupon_verify(428);
INSERT INTO user_coupon (user_id, template_id, use_end, holder) VALUES (4282, 428, 'infinity', 1);
SELECT ok, problem FROM coupon_verify(428);
UPDATE coupon_stock SET quota = 2 WHERE template_id = 428 AND holder = 1;
SELECT ok, problem, coupon_stock_left(428) FROM coupon_verify(428);
UPDATE coupon_template SET status = 'offline' WHERE id = 428;
