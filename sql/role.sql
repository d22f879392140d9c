CREATE ROLE regress_app; CREATE ROLE regress_shop; CREATE ROLE regress_operator; CREATE ROLE regress_monitor; CREATE ROLE regress_nobody;
CREATE ROLE regress_shop_clerk IN ROLE regress_shop;
INSERT INTO coupon_template (id, shop_number, name, total_stock, discount_value, status) VALUES
    (600, 71, 'seven', 10, 10, 'published'), (601, 72, 'eight', 10, 10, 'published'), (602, NULL, 'platform', 10, 10, 'published');

-- nothing to PUBLIC
SELECT count(*) AS types, count(*) FILTER (WHERE has_type_privilege('public', t.oid, 'USAGE')) AS open
FROM pg_type t JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'coupon'
WHERE d.deptype = 'e' AND t.typelem = 0;
SELECT count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'coupon') AND has_function_privilege('regress_nobody', p.oid, 'EXECUTE');
SELECT count(*) FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e'
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'coupon') AND c.relkind IN ('r', 'p', 'v')
  AND has_table_privilege('regress_nobody', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE');
SET ROLE regress_nobody;
SELECT coupon_receive(600, 1);
SELECT * FROM coupon_template;
SELECT coupon_grant('regress_nobody', 'application');
RESET ROLE;

SELECT coupon_grant('regress_app', 'application');
SELECT coupon_grant('regress_app', 'application');
SELECT coupon_grant('regress_shop', 'application', 71);
SELECT coupon_grant('regress_operator', 'operator', 71);
SELECT coupon_grant('regress_monitor', 'monitor');
SELECT coupon_grant('regress_app', 'king');
SELECT coupon_grant(0::regrole, 'monitor');
SELECT coupon_grant('regress_app', 'monitor', -1);
SELECT role, kind, shop_number FROM coupon_role ORDER BY role::text, kind;

SET ROLE regress_app;
SELECT code FROM generate_series(600, 602) t, coupon_receive(t, 1);
SELECT count(*) FROM coupon_wallet(1);
SELECT * FROM user_coupon;
INSERT INTO coupon_template (name, discount_value) VALUES ('x', 1);
SELECT coupon_verify();
RESET ROLE;

-- bound to a shop: other templates do not exist, by any argument
SET ROLE regress_shop;
SELECT code, outcome FROM coupon_receive(600, 2);
SELECT code, outcome FROM coupon_receive(601, 2);
SELECT code, outcome FROM coupon_receive(602, 2);
SELECT code, outcome FROM coupon_receive(601, 1, 'r');
SELECT user_id, code FROM coupon_receive_many(601, '{2,3}');
SELECT count(*) FROM coupon_template_get(601);
SELECT coupon_stock_left(600), coupon_stock_left(601);
SELECT id FROM coupon_browse();
SELECT id FROM coupon_browse(shop_number => 72);
SELECT template_id FROM coupon_wallet(1);
SELECT * FROM coupon_wallet_count(1) WHERE n > 0;
RESET ROLE;
SET ROLE regress_shop_clerk;
SELECT code, outcome FROM coupon_receive(601, 3);
SELECT code, outcome FROM coupon_receive(600, 3);
RESET ROLE;
SET ROLE regress_operator;
SELECT id FROM coupon_template ORDER BY id;
-- no right to write the table, or to lock it
INSERT INTO coupon_template (shop_number, name, discount_value) VALUES (71, 'ours', 1);
UPDATE coupon_template SET name = 'mine now' WHERE id = 600;
DELETE FROM coupon_template WHERE id = 600;
TRUNCATE coupon_template;
SELECT id FROM coupon_template WHERE id = 600 FOR UPDATE;
BEGIN; LOCK TABLE coupon_template IN ROW SHARE MODE; ROLLBACK;
-- but verbs, for templates of the shop alone
SELECT code, outcome FROM coupon_template_change(601, '{"name": "mine now"}');
SELECT code, outcome FROM coupon_template_change(602, '{"name": "mine now"}');
SELECT code, outcome FROM coupon_template_delete(601);
SELECT code, outcome, copy_id FROM coupon_template_copy(601);
SELECT coupon_template_create('theirs', 1, 1, '{"shop_number": 72}');
SELECT coupon_template_create('the platform''s', 1, 1, '{"shop_number": null}');
SELECT code, outcome, repeated, template_id AS ours FROM coupon_template_create('ours', 5, 1, request_id => 'r1') \gset
SELECT :'outcome' AS outcome, :'repeated' AS repeated;
SELECT template_id = :ours AS same, repeated FROM coupon_template_create('ours', 5, 1, request_id => 'r1');
SELECT shop_number, issuer, name, status, total_stock, discount_value FROM coupon_template WHERE id = :ours;
-- a draft is not for applications
SELECT count(*) FROM coupon_template_get(:ours);
RESET ROLE;
SET ROLE regress_shop;
SELECT count(*) FROM coupon_template_get(:ours);
SELECT coupon_template_change(:ours, '{"name": "x"}');
RESET ROLE;
SET ROLE regress_operator;
SELECT coupon_template_change(:ours, '{"shop_number": 72}');
SELECT outcome FROM coupon_template_change(:ours, '{"total_stock": 4, "name": "renamed"}');
SELECT code, copy_id AS copy FROM coupon_template_copy(:ours, '{"total_stock": null, "discount_value": 7}', 'r1') \gset
SELECT code, copy_id = :ours AS "the first answer", repeated FROM coupon_template_copy(:ours, '{}', 'r1');
SELECT code, copy_id AS copy FROM coupon_template_copy(:ours, '{"total_stock": null, "discount_value": 7}') \gset
SELECT shop_number, issuer, name, status, total_stock, discount_value FROM coupon_template WHERE id = :copy;
SELECT outcome FROM coupon_template_delete(:ours);
SELECT outcome FROM coupon_template_delete(:ours);
SELECT outcome FROM coupon_template_delete(:copy);
SELECT template_id, ok FROM coupon_verify();
SELECT template_id FROM coupon_stat ORDER BY 1;
SELECT DISTINCT shop_number FROM coupon_held;
SELECT template_id FROM coupon_stat_entries() WHERE template_id < 1000 ORDER BY 1;
CREATE FUNCTION pg_temp.leak(text) RETURNS boolean COST 0.0000001 LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'sees %', $1; RETURN true; END $$;
SELECT count(*) FROM coupon_held WHERE pg_temp.leak(name);
SELECT count(*) FROM coupon_stat WHERE pg_temp.leak(name);
RESET ROLE;
SET ROLE regress_monitor;
SELECT count(*) > 0 FROM coupon_stat;
SELECT count(*) FROM coupon_health;
SELECT capacity > 0 FROM coupon_stat_cache;
SELECT count(*) > 0 FROM coupon_held;
SELECT coupon_receive(600, 9);
RESET ROLE;

-- what a role may in one shop as an operator it may not in another as an application
SELECT coupon_grant('regress_operator', 'application', 72);
SET ROLE regress_operator;
SELECT outcome FROM coupon_receive(601, 800);
SELECT outcome FROM coupon_receive(600, 800);
SELECT outcome FROM coupon_template_change(601, '{"name": "mine now"}');
SELECT coupon_template_create('theirs', 1, 1, '{"shop_number": 72}');
SELECT id FROM coupon_template ORDER BY id;
SELECT DISTINCT shop_number FROM coupon_held;
SELECT coupon_stock_rebuild(601);
SELECT task_id FROM coupon_task_create('theirs', 601);
RESET ROLE;
SELECT coupon_grant('regress_operator', 'application');
SET ROLE regress_operator;
SELECT outcome FROM coupon_receive(602, 800);
SELECT outcome FROM coupon_template_change(602, '{"name": "mine now"}');
SELECT coupon_channel_enable('app', true);
RESET ROLE;
SELECT coupon_grant_revoke('regress_operator', 'application'), coupon_grant_revoke('regress_operator', 'application', 72);

-- nor does a new name loosen the binding
ALTER ROLE regress_shop RENAME TO regress_shop_2;
SET ROLE regress_shop_2;
SELECT code, outcome FROM coupon_receive(601, 2);
RESET ROLE;
ALTER ROLE regress_shop_2 RENAME TO regress_shop;
-- the binding follows the table at once
SELECT coupon_grant('regress_shop', 'application', 72);
SET ROLE regress_shop;
SELECT code FROM coupon_receive(601, 4);
RESET ROLE;
SELECT coupon_grant_revoke('regress_shop', 'application', 72);
SET ROLE regress_shop;
SELECT code, outcome FROM coupon_receive(601, 5);
SELECT code FROM coupon_receive(600, 5);
RESET ROLE;
SELECT coupon_grant_revoke('regress_shop', 'application', 71);
SET ROLE regress_shop;
SELECT coupon_receive(600, 6);
RESET ROLE;
SELECT coupon_grant_revoke('regress_shop', 'application', 71);

-- a caller's search path changes nothing: his operators are found, but not by ours
CREATE SCHEMA hostile;
GRANT USAGE ON SCHEMA hostile TO regress_app;
CREATE FUNCTION hostile.eq(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'run as %', current_user; RETURN true; END $$;
CREATE OPERATOR hostile.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = hostile.eq);
SELECT coupon_grant('regress_app', 'operator');
SET ROLE regress_app;
SET search_path = hostile, public, pg_catalog;
SELECT 1::bigint = 2::bigint;
SELECT code FROM coupon_receive(600, 700);
SELECT count(*) FROM coupon_wallet(700);
SELECT n FROM coupon_wallet_count(700) WHERE status OPERATOR(pg_catalog.=) 'unused';
SELECT id FROM coupon_browse(shop_number => 72);
SELECT ok FROM coupon_verify(600);
RESET search_path;
RESET ROLE;
DROP SCHEMA hostile CASCADE;
DROP OWNED BY regress_app, regress_shop, regress_operator, regress_monitor, regress_nobody;
DELETE FROM coupon_role;
DROP ROLE regress_app, regress_shop, regress_shop_clerk, regress_operator, regress_monitor, regress_nobody;

-- Columns of text that a role may read, of which the planner samples values: EXPLAIN shows them.
SELECT a.attrelid::regclass AS "table", string_agg(a.attname, ' ' ORDER BY a.attnum) AS columns
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e'
WHERE c.relkind = 'r' AND NOT c.relispartition AND a.attnum > 0 AND a.atttypid IN ('text'::regtype, 'bigint[]'::regtype) AND COALESCE(a.attstattarget, -1) <> 0
  AND (SELECT bool_or(g.object ~ ('\.' || c.relname || '$')) FROM unnest('{operator,monitor}'::text[]) k, coupon_grant_objects(k) g)
GROUP BY 1 ORDER BY 1::text;
