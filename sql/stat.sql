INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (700, 'seen', 3, 10, 'published');
SELECT count(*) FROM coupon_receive_many(700, '{1,2}');
SELECT code FROM coupon_receive(700, 1);
SELECT code FROM coupon_receive(700, 3);
SELECT code FROM coupon_receive(700, 4);
SELECT code FROM coupon_receive(700, 5);
BEGIN; UPDATE coupon_template SET total_stock = 4 WHERE id = 700; SELECT code FROM coupon_receive(700, 6); ROLLBACK;
SELECT template_id, name, quota, issued, in_flight, stock_left, claims, claims_per_second >= 0 AS rate, refused, returned FROM coupon_stat WHERE template_id = 700;
SELECT capacity, entries > 0 AS entries, lookups > 0 AS lookups, loads > 0 AS loads, hit_rate BETWEEN 0 AND 1 AS rate FROM coupon_stat_cache;
SELECT check_name, status, advice FROM coupon_health WHERE check_name NOT IN ('clock', 'cache', 'durability');
ALTER TABLE user_coupon_3 DISABLE TRIGGER zz_user_coupon_insert;
ALTER TABLE coupon_template ENABLE TRIGGER zz_coupon_template_guard;
SELECT status, detail FROM coupon_health WHERE check_name = 'triggers';
ALTER TABLE user_coupon_3 ENABLE ALWAYS TRIGGER zz_user_coupon_insert;
ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_guard;
SET synchronous_commit = off;
SELECT status <> 'ok' AS noticed, advice FROM coupon_health WHERE check_name = 'durability';
RESET synchronous_commit;
-- everything has a comment
SELECT count(*) FROM pg_depend d WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'coupon') AND d.deptype = 'e'
  AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_type'::regclass)
  AND NOT (d.classid = 'pg_class'::regclass AND d.objid::regclass::text ~ '^user_coupon_\d+$')
  AND NOT (d.classid = 'pg_type'::regclass AND (SELECT t.typelem <> 0 OR t.typrelid IN (SELECT oid FROM pg_class WHERE relkind IN ('r', 'p', 'v')) FROM pg_type t WHERE t.oid = d.objid))
  AND obj_description(d.objid, d.classid::regclass::name) IS NULL;
