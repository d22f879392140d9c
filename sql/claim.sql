INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit, open_to, receive_start, receive_end) VALUES
    (200, 'three', 3, 10, 'published', 1, 'anyone', '2020-01-01', 'infinity'),
    (201, 'two each', 10, 10, 'published', 2, 'anyone', '2020-01-01', 'infinity'),
    (202, 'unlimited', NULL, 10, 'published', 1, 'anyone', '2020-01-01', 'infinity'),
    (203, 'draft', 10, 10, 'draft', 1, 'anyone', '2020-01-01', 'infinity'),
    (204, 'early', 10, 10, 'published', 1, 'anyone', '2090-01-01', 'infinity'),
    (205, 'late', 10, 10, 'published', 1, 'anyone', '2020-01-01', '2021-01-01'),
    (206, 'by code', 10, 10, 'published', 1, 'code', '2020-01-01', 'infinity'),
    (207, 'welcome', 2, 10, 'published', 5, 'registration', '2020-01-01', 'infinity'),
    (208, 'welcome, closed', 2, 10, 'published', 1, 'registration', '2020-01-01', '2021-01-01'),
    (209, 'nothing', 0, 10, 'published', 1, 'anyone', '2020-01-01', 'infinity'),
    (210, 'welcome, offline', 2, 10, 'offline', 1, 'registration', '2020-01-01', 'infinity');

-- the codes
SELECT code, outcome, user_coupon_id > 0 AS id, receive_seq, use_end > now() AS use_end, repeated FROM coupon_receive(200, 1);
SELECT * FROM coupon_receive(200, 1);
SELECT * FROM coupon_receive(999, 1);
SELECT * FROM coupon_receive(-1, 1);
SELECT * FROM coupon_receive(203, 1);
SELECT * FROM coupon_receive(204, 1);
SELECT * FROM coupon_receive(205, 1);
SELECT * FROM coupon_receive(206, 1);
SELECT * FROM coupon_receive(207, 1);
SELECT * FROM coupon_receive(209, 1);

-- n-th coupon of a user
SELECT code, receive_seq FROM coupon_receive(201, 1);
SELECT code, receive_seq FROM coupon_receive(201, 1);
SELECT code, outcome FROM coupon_receive(201, 1);

-- one call, one coupon, also when expanded into columns
SELECT (coupon_receive(201, 2)).*  \gset x_
SELECT :x_code AS code, count(*) FROM user_coupon WHERE template_id = 201 AND user_id = 2;

-- unlimited: counted, never refused for stock
SELECT count(*) FILTER (WHERE r.code = 0) AS ok FROM generate_series(1, 500) u, coupon_receive(202, u) r;
SELECT coupon_stock_left(202), coupons FROM coupon_verify(202);

-- request id: a retry gets the first answer, also after sell-out, limit and end
SELECT code, repeated, user_coupon_id AS first FROM coupon_receive(200, 2, 'req-1') \gset
SELECT code, repeated, user_coupon_id = :first AS same, receive_seq FROM coupon_receive(200, 2, 'req-1');
SELECT code, outcome, repeated FROM coupon_receive(200, 2, 'req-2');
SELECT code FROM coupon_receive(200, 3);
SELECT code, outcome FROM coupon_receive(200, 4);
SELECT code, outcome FROM coupon_receive(200, 4, 'req-4');
SELECT code, repeated, user_coupon_id = :first AS same FROM coupon_receive(200, 2, 'req-1');
UPDATE coupon_template SET status = 'offline' WHERE id = 200;
SELECT code, repeated, user_coupon_id = :first AS same FROM coupon_receive(200, 2, 'req-1');
UPDATE coupon_template SET status = 'published' WHERE id = 200;
-- the owner of a sold-out coupon is told so
SELECT code, outcome FROM coupon_receive(200, 3);

-- a refusal takes no transaction id
BEGIN;
SELECT count(DISTINCT r.code) AS kinds FROM unnest(ARRAY[200, 200, 203, 204, 205, 206, 209, 999], ARRAY[1, 77, 1, 1, 1, 1, 1, 1]) AS x (t, u), coupon_receive(t, u) r;
SELECT count(*) FROM coupon_receive_many(209, ARRAY(SELECT generate_series(1, 200)));
SELECT pg_current_xact_id_if_assigned() IS NULL AS none;
COMMIT;

-- sources
SELECT code FROM coupon_receive(201, 5, NULL, 'platform');
SELECT code FROM coupon_receive(201, 6, NULL, 'shop');
SELECT user_id, source, holder, status FROM user_coupon WHERE template_id = 201 AND user_id IN (2, 5, 6) ORDER BY user_id;

-- abort, savepoints and EXCEPTION blocks give stock back
SELECT coupon_stock_left(201);
BEGIN; SELECT code FROM coupon_receive(201, 7); SELECT coupon_stock_left(201); ROLLBACK;
SELECT coupon_stock_left(201);
BEGIN;
SELECT code FROM coupon_receive(201, 7);
SAVEPOINT a;
SELECT code FROM coupon_receive(201, 8);
SAVEPOINT b;
SELECT code FROM coupon_receive(201, 9);
RELEASE b;
SELECT coupon_stock_left(201);
ROLLBACK TO a;
SELECT coupon_stock_left(201);
COMMIT;
SELECT coupon_stock_left(201);
SELECT user_id FROM user_coupon WHERE template_id = 201 AND user_id IN (7, 8, 9);
DO $$
BEGIN
    FOR u IN 20..60 LOOP
        BEGIN
            PERFORM coupon_receive(201, u);
            RAISE division_by_zero;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END $$;
SELECT coupon_stock_left(201);
-- coupon_require aborts what a refusal would not
BEGIN;
SELECT coupon_require(code, outcome) FROM coupon_receive(201, 70);
SELECT coupon_require(code, outcome) FROM coupon_receive(205, 70);
ROLLBACK;
SELECT coupon_stock_left(201);

-- many users: once each, in order, what is left goes to the first
SELECT user_id, code, outcome, receive_seq, repeated FROM coupon_receive_many(201, '{104,101,103,102,1,101}');
SELECT user_id, code, outcome FROM coupon_receive_many(201, '{110,109,1,101}');
SELECT user_id, code, outcome FROM coupon_receive_many(999, '{1,2}');
SELECT count(*) FROM coupon_receive_many(201, '{}');
SELECT code, count(*) FROM coupon_receive_many(202, ARRAY(SELECT generate_series(400, 1700))) GROUP BY code ORDER BY code;
SELECT user_id, code, repeated FROM coupon_receive_many(202, '{5001,5002}', 'platform', 'batch-1');
SELECT user_id, code, repeated FROM coupon_receive_many(202, '{5002,5003}', 'platform', 'batch-1');

-- new users: every open registration template once
SELECT template_id, code, outcome, receive_seq, repeated FROM coupon_receive_new_user(1);
SELECT template_id, code, outcome, receive_seq, repeated FROM coupon_receive_new_user(1);
SELECT template_id, code, outcome FROM coupon_receive_new_user(2);
SELECT template_id, code, outcome FROM coupon_receive_new_user(3);
SELECT source, receive_seq FROM user_coupon WHERE template_id = 207 AND user_id = 1;

-- a template of the transaction's own
BEGIN;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (220, 'own', 2, 10, 'published');
SELECT code, outcome FROM coupon_receive(220, 1);
SELECT code, outcome FROM coupon_receive(220, 1);
SAVEPOINT a;
SELECT code, outcome FROM coupon_receive(220, 2);
SELECT code, outcome FROM coupon_receive(220, 3);
ROLLBACK TO a;
SELECT user_id, code FROM coupon_receive_many(220, '{3,4}');
SELECT coupon_stock_left(220);
COMMIT;
SELECT coupon_stock_left(220);
SELECT code, outcome FROM coupon_receive(220, 5);
-- one that a savepoint took back does not exist
BEGIN;
SAVEPOINT a;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (221, 'gone', 2, 10, 'published');
SELECT code FROM coupon_receive(221, 1);
ROLLBACK TO a;
SELECT code, outcome FROM coupon_receive(221, 1);
COMMIT;
-- one whose INSERT has not ended yet
CREATE FUNCTION issue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', (SELECT outcome FROM coupon_receive(NEW.id, 777)); RETURN NULL; END $$;
CREATE TRIGGER a_issue AFTER INSERT ON coupon_template FOR EACH ROW EXECUTE FUNCTION issue();
BEGIN;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (222, 'auto', 2, 10, 'published');
ROLLBACK;
SELECT code, outcome FROM coupon_receive(222, 5);
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (222, 'auto', 2, 10, 'published');
SELECT coupon_stock_left(222);
DROP TRIGGER a_issue ON coupon_template;
-- a change of the transaction's own
BEGIN;
UPDATE coupon_template SET total_stock = 4 WHERE id = 220;
SELECT code, outcome FROM coupon_receive(220, 5);
SELECT coupon_stock_left(220);
SAVEPOINT a;
UPDATE coupon_template SET status = 'offline' WHERE id = 220;
SELECT code, outcome FROM coupon_receive(220, 6);
ROLLBACK TO a;
SELECT code, outcome FROM coupon_receive(220, 6);
SELECT code, outcome FROM coupon_receive(220, 7);
ROLLBACK;
SELECT coupon_stock_left(220);
SELECT code, outcome FROM coupon_receive(220, 5);

-- somebody adds a trigger: rows go through SQL then, with the same answers
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'user % got a coupon', NEW.user_id; RETURN NEW; END $$;
CREATE TRIGGER note AFTER INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION note();
UPDATE coupon_template SET total_stock = 8 WHERE id = 220;
SELECT code, outcome, receive_seq FROM coupon_receive(220, 8);
SELECT code, outcome, receive_seq FROM coupon_receive(220, 8);
SELECT user_id, code, outcome FROM coupon_receive_many(220, '{8,9,10}');
DROP TRIGGER note ON user_coupon;
-- one that claims itself, of a template that nobody else sees yet
CREATE FUNCTION invite() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.user_id < 1000 THEN PERFORM coupon_receive(NEW.template_id, NEW.user_id + 1000); END IF; RETURN NEW; END $$;
CREATE TRIGGER invite BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION invite();
BEGIN;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (223, 'two', 2, 10, 'published'), (224, 'one', 1, 10, 'published');
SELECT code FROM coupon_receive(223, 1);
SELECT count(*) FROM user_coupon WHERE template_id = 223;
SELECT code FROM coupon_receive(224, 1);
ROLLBACK;
DROP TRIGGER invite ON user_coupon;
SELECT code, outcome FROM coupon_receive(220, 11);
-- and a CHECK in the place of ours; without, no statement is prepared for rows
\c -
CREATE VIEW through_sql AS SELECT count(*) FROM pg_backend_memory_contexts WHERE ident LIKE 'INSERT INTO %user_coupon (%';
INSERT INTO coupon_template (id, name, discount_value, status) VALUES (221, 'checked', 1, 'published');
SELECT code, outcome FROM coupon_receive(221, 87014);
TABLE through_sql;
ALTER TABLE user_coupon DROP CONSTRAINT user_coupon_sane, ADD CONSTRAINT user_coupon_sane CHECK (user_id <> 87024);
SELECT code, outcome FROM coupon_receive(221, 87016);
TABLE through_sql;
\set VERBOSITY terse
SELECT code, outcome FROM coupon_receive(221, 87024);
\set VERBOSITY default
ALTER TABLE user_coupon DROP CONSTRAINT user_coupon_sane, ADD CONSTRAINT user_coupon_sane CHECK (
    user_coupon_sane(id, user_id, receive_seq, status, source, use_start, use_end, holder, order_id, order_amount, locked_until, used_at, discount));
\c -
SELECT code, outcome FROM coupon_receive(221, 87024);
TABLE through_sql;
DROP VIEW through_sql;
-- and a column with a default
ALTER TABLE user_coupon ADD COLUMN shard text DEFAULT 'a';
SELECT code, outcome FROM coupon_receive(220, 12);
SELECT user_id, shard FROM user_coupon WHERE template_id = 220 AND user_id = 12;
ALTER TABLE user_coupon DROP COLUMN shard;
-- a default and a constraint
ALTER TABLE user_coupon ALTER discount SET DEFAULT 0;
UPDATE user_coupon SET discount = 0 WHERE discount IS NULL;
ALTER TABLE user_coupon ALTER discount SET NOT NULL;
SELECT code, outcome FROM coupon_receive(220, 13);
SELECT discount FROM user_coupon WHERE template_id = 220 AND user_id = 13;
ALTER TABLE user_coupon ALTER discount DROP NOT NULL, ALTER discount DROP DEFAULT;

-- nothing is claimed where nothing may be written
BEGIN READ ONLY;
SELECT code, outcome FROM coupon_receive(205, 1);
SELECT code, outcome FROM coupon_receive(202, 9001);
ROLLBACK;
-- a validity that adds up to nothing
BEGIN;
ALTER TABLE coupon_template DROP CONSTRAINT coupon_template_use_validity_check;
INSERT INTO coupon_template (id, name, discount_value, status, use_validity) VALUES (230, 'odd', 1, 'published', '-11 mons 331 days');
SELECT code FROM coupon_receive(230, 1);
ROLLBACK;
SELECT template_id, problem FROM coupon_verify() WHERE NOT ok;

-- given by the shop: any published template, also before its sale; limit and stock count
INSERT INTO coupon_template (id, name, category, total_stock, discount_value, status, receive_start, receive_end, per_user_limit) VALUES
    (240, 'mission', 'task', 3, 1, 'published', now(), 'infinity', 2), (241, 'later', 'promotion', 3, 1, 'published', now() + interval '1 day', 'infinity', 1),
    (242, 'over', 'promotion', 3, 1, 'published', now() - interval '2 days', now() - interval '1 day', 1), (243, 'draft', 'promotion', 3, 1, 'draft', now(), 'infinity', 1);
SELECT outcome FROM coupon_receive(240, 2401);
SELECT outcome, receive_seq, repeated FROM coupon_give(240, 2401, 'mission 7', 'has walked 10 km');
SELECT outcome, receive_seq, repeated FROM coupon_give(240, 2401, 'mission 7', 'has walked 10 km');
SELECT outcome, receive_seq FROM coupon_give(240, 2401);
SELECT outcome FROM coupon_give(240, 2401);
SELECT outcome FROM coupon_give(240, 2402);
SELECT outcome FROM coupon_give(240, 2403);
SELECT t, outcome FROM generate_series(241, 244) t, coupon_give(t, 2401);
SELECT user_id, source, holder FROM user_coupon WHERE template_id IN (240, 241) ORDER BY template_id, id;
SELECT e.kind, e.user_id, e.template_id, e.reason, e.session_role = session_user AS me, e.user_coupon_id = c.id AS its
FROM coupon_event e JOIN user_coupon c ON c.id = e.user_coupon_id AND c.user_id = e.user_id ORDER BY e.id;
SELECT coupon_give(NULL, 1);
SELECT coupon_give(240, NULL);
SELECT coupon_give(240, -1);
\set VERBOSITY sqlstate
SELECT coupon_give(241, 9, NULL, repeat('x', 1001));
\set VERBOSITY default
SELECT count(*) FROM user_coupon WHERE user_id = 9 AND template_id = 241;
-- request ids that are ours
SELECT coupon_receive(241, 9, 'task 5');
SELECT coupon_receive(241, 9, 'redis:1:2');

-- kept out by a trigger or unique index of the shop's: a row for that user, and the others go on
INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit) VALUES (250, 'picky', 5, 1, 'published', 3);
CREATE FUNCTION picky() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.user_id = 2502 THEN RETURN NULL; END IF; RETURN NEW; END';
CREATE TRIGGER picky BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION picky();
SELECT code, outcome FROM coupon_receive(250, 2502);
SELECT user_id, code, outcome FROM coupon_receive_many(250, '{2501,2502,2503}');
DROP TRIGGER picky ON user_coupon;
DROP FUNCTION picky();
CREATE UNIQUE INDEX one_each ON user_coupon (user_id, template_id) WHERE template_id = 250;
SELECT user_id, code, outcome FROM coupon_receive_many(250, '{2501,2502,2503}');
SELECT code, outcome FROM coupon_receive(250, 2502);
DROP INDEX one_each;
SELECT coupon_stock_left(250), count(*) FROM user_coupon WHERE template_id = 250;

-- the caller's time zone, with 14 days of summer time, adds nothing to a coupon's validity
INSERT INTO coupon_template (id, name, total_stock, discount_value, use_validity, status) VALUES (251, 'a day', 5, 1, '1 day', 'published'), (252, 'a month', 5, 1, '1 mon 2 days 3 hours', 'published');
SELECT set_config('TimeZone', format('AAA-167BBB167,J%s/0,J%s/0', least(extract(doy FROM n), 365), least(extract(doy FROM n + interval '60 days'), 365)), false) ~ 'BBB' AS summer_tomorrow
FROM (SELECT (now() AT TIME ZONE 'UTC') + interval '191 hours' AS n) x;
SELECT now() + interval '1 day' > now() + interval '100 hours' AS a_day_is_longer;
SELECT outcome, use_end - statement_timestamp() AS validity FROM coupon_receive(251, 1);
SET TimeZone = 'Europe/Berlin';
SELECT use_end = (statement_timestamp() AT TIME ZONE 'UTC' + interval '1 mon 2 days 3 hours') AT TIME ZONE 'UTC' AS of_utc FROM coupon_receive(252, 1);
RESET TimeZone;
