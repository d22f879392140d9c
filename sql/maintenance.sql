-- As of now: the status that everybody reads; stored: what coupon_expire writes.
-- What other tests have left is not counted here.
SET client_min_messages = warning;
CALL coupon_expire();
RESET client_min_messages;
INSERT INTO coupon_template (id, name, total_stock, per_user_limit, discount_value, status, receive_start, receive_end) VALUES
    (900, 'running', 100, 5, 10, 'published', '2020-01-01', 'infinity'), (901, 'over', 100, 5, 10, 'published', '2020-01-01', 'infinity'),
    (902, 'offline', 100, 5, 10, 'published', '2020-01-01', 'infinity'), (903, 'just over', 100, 5, 10, 'published', '2020-01-01', 'infinity');
SELECT count(*) FROM generate_series(900, 903) t, coupon_receive_many(t, ARRAY(SELECT generate_series(1, 10)));
-- 1: not over; 2: unused; 3: lease runs; 4: lease has run out; 5: one that never
-- ran; 6: used; 7: revoked; 8: expired already; 9: over for a day only; 10: not over, lease has run out
UPDATE user_coupon SET use_start = now() - interval '50 days', use_end = now() - interval '40 days'
WHERE template_id BETWEEN 900 AND 903 AND user_id BETWEEN 2 AND 8;
UPDATE user_coupon SET use_start = now() - interval '50 days', use_end = now() - interval '1 day'
WHERE template_id BETWEEN 900 AND 903 AND user_id = 9;
UPDATE user_coupon SET status = 1, order_id = '77', order_amount = 5, discount = 1, locked_until = CASE user_id WHEN 3 THEN now() + interval '1 hour'
                                                        WHEN 5 THEN '-infinity' ELSE now() - interval '35 days' END
WHERE template_id BETWEEN 900 AND 903 AND user_id IN (3, 4, 5, 10);
UPDATE user_coupon SET status = CASE user_id WHEN 7 THEN 4 ELSE 3 END
WHERE template_id BETWEEN 900 AND 903 AND user_id IN (7, 8);
UPDATE user_coupon SET status = 2, order_id = '66', order_amount = 5, discount = 1, used_at = now() - interval '45 days'
WHERE template_id BETWEEN 900 AND 903 AND user_id = 6;
CREATE TEMP TABLE before AS SELECT id, status FROM coupon_held WHERE template_id BETWEEN 900 AND 903;

CALL coupon_expire();
SELECT user_id, min(c.status) AS stored, max(c.status) AS "the same", min(h.status) AS now, min(h.order_id) AS order_id
FROM user_coupon c JOIN coupon_held h USING (id, user_id) WHERE c.template_id BETWEEN 900 AND 903 GROUP BY user_id ORDER BY user_id;
SELECT count(*) FROM before b JOIN coupon_held h USING (id) WHERE b.status <> h.status;
CALL coupon_expire();
-- a small batch, looked at again until all are done
UPDATE user_coupon SET status = 0 WHERE template_id BETWEEN 900 AND 903 AND status = 3;
SET coupon.batch_size = 1;
CALL coupon_expire();
RESET coupon.batch_size;
SELECT status, count(*) FROM user_coupon WHERE template_id BETWEEN 900 AND 903 GROUP BY status ORDER BY status;
-- no unit comes back
SELECT template_id, coupons, row_count, ok, coupon_stock_left(template_id) FROM coupon_verify() WHERE template_id BETWEEN 900 AND 903 ORDER BY 1;

-- coupon_purge: by default coupons are kept for ever
SHOW coupon.keep_coupons;
CALL coupon_purge();
SET coupon.keep_coupons = 30;
-- nobody is done with a template that can be claimed
CALL coupon_purge();
UPDATE coupon_template SET receive_end = now() - interval '31 days' WHERE id = 901;
UPDATE coupon_template SET status = 'offline' WHERE id = 902;
UPDATE coupon_template SET receive_end = now() - interval '1 hour' WHERE id = 903;
-- nor with what is not folded; what never came from the stock need not be
CALL coupon_purge();
INSERT INTO user_coupon (user_id, template_id, use_start, use_end, holder) VALUES
    (20, 901, '2020-01-01', '2020-01-02', NULL), (21, 999, '2020-01-01', '2020-01-02', NULL), (22, 901, '2020-01-01', '2020-01-02', 1);
SELECT upto > 0 AS folded FROM coupon_fold();
SET coupon.batch_size = 2;
CALL coupon_purge();
RESET coupon.batch_size;
SELECT template_id, array_agg(user_id ORDER BY user_id) AS kept FROM user_coupon
WHERE template_id BETWEEN 900 AND 903 OR template_id = 999 GROUP BY template_id ORDER BY template_id;
CALL coupon_purge();
-- the count of what was issued stays, also after a recount
SELECT template_id, coupons, row_count, ok FROM coupon_verify() WHERE template_id BETWEEN 900 AND 903 ORDER BY 1;
SELECT coupon_stock_left(901), coupon_stock_rebuild(901), coupon_stock_left(902), coupon_stock_rebuild(902);
RESET coupon.keep_coupons;

-- refused where a commit is impossible
BEGIN;
CALL coupon_expire();
ROLLBACK;
BEGIN;
CALL coupon_purge();
ROLLBACK;
\set VERBOSITY sqlstate
CREATE FUNCTION in_function() RETURNS void LANGUAGE plpgsql AS 'BEGIN CALL coupon_expire(); END';
SELECT in_function();
DO 'BEGIN CALL coupon_expire(); EXCEPTION WHEN division_by_zero THEN NULL; END';
DROP FUNCTION in_function();
-- not in a block that cannot commit; a plain DO can
DO 'BEGIN CALL coupon_expire(); CALL coupon_purge(); END';
SET coupon.batch_size = 0;
SET coupon.batch_size = 100001;
\set VERBOSITY default

-- the history of coupons
INSERT INTO coupon_event (id, at, kind, user_coupon_id, user_id, template_id)
SELECT n, now() - n * interval '1 day', 'use', 1, 1, 900 FROM generate_series(1, 10) n;
CALL coupon_purge();
SELECT count(*) FROM coupon_event WHERE id <= 10;
SET coupon.keep_events = 5;
SET coupon.batch_size = 2;
CALL coupon_purge();
RESET coupon.batch_size;
RESET coupon.keep_events;
SELECT min(id), max(id) FROM coupon_event WHERE id <= 10;
DELETE FROM coupon_event WHERE id <= 10;

-- roles: an operator may call them, and how long is kept is not for operators
CREATE ROLE regress_tidy_app; CREATE ROLE regress_tidy_operator;
SELECT coupon_grant('regress_tidy_app', 'application'), coupon_grant('regress_tidy_operator', 'operator');
UPDATE user_coupon SET status = 0 WHERE template_id = 900 AND user_id = 2;
SET ROLE regress_tidy_app;
CALL coupon_expire();
CALL coupon_purge();
SET ROLE regress_tidy_operator;
CALL coupon_expire();
SET coupon.keep_coupons = 1;
SET coupon.keep_tasks = 1;
CALL coupon_purge();
-- a caller's search path changes nothing
RESET ROLE;
CREATE SCHEMA regress_evil;
GRANT USAGE ON SCHEMA regress_evil TO PUBLIC;
CREATE FUNCTION regress_evil.evil(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'evil as %', current_user; RETURN true; END $$;
CREATE OPERATOR regress_evil.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = regress_evil.evil);
CREATE OPERATOR regress_evil.< (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = regress_evil.evil);
SET ROLE regress_tidy_operator;
SET search_path = regress_evil, pg_catalog, public;
CALL coupon_expire();
CALL coupon_purge();
RESET search_path;
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA regress_evil CASCADE;
RESET client_min_messages;
SELECT status FROM user_coupon WHERE template_id = 900 AND user_id = 2;
-- not an operator of one shop: triggers of somebody's would show him the rows of all
SELECT coupon_grant_revoke('regress_tidy_operator', 'operator');
SELECT coupon_grant('regress_tidy_operator', 'operator', 71);
SET ROLE regress_tidy_operator;
CALL coupon_expire();
CALL coupon_purge();
RESET ROLE;
SELECT coupon_grant_revoke('regress_tidy_operator', 'operator', 71);
SET ROLE regress_tidy_operator;
CALL coupon_purge();
RESET ROLE;
SELECT count(*) FROM pg_proc WHERE proname IN ('coupon_expire', 'coupon_purge') AND has_function_privilege('public', oid, 'EXECUTE');
DROP OWNED BY regress_tidy_app, regress_tidy_operator;
DELETE FROM coupon_role WHERE role::text LIKE 'regress_tidy%';
DROP ROLE regress_tidy_app, regress_tidy_operator;
