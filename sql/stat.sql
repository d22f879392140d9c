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
-- pushes that wait; no worker runs here
SELECT kind, database, queue_depth, lateness FROM coupon_stat_worker;
INSERT INTO coupon_channel (channel, endpoint) VALUES ('sms', 'http://127.0.0.1:9/'), ('app', 'http://127.0.0.1:9/');
INSERT INTO coupon_notification (id, channel, kind, user_ids, due_at, next_at, leased_until)
VALUES (1, 'sms', 'test', '{0}', now() - interval '3 h', now() + interval '1 h', NULL),
       (2, 'sms', 'test', '{0}', now() - interval '3 h', now() - interval '3 h', now() + interval '1 h'),
       (3, 'app', 'test', '{0}', now(), now(), NULL);
SELECT status, detail, advice FROM coupon_health WHERE check_name = 'late_pushes';
UPDATE coupon_notification SET leased_until = now() WHERE id = 2;
SELECT status, regexp_replace(detail, ' hours.*\)', ' hours)') AS detail, advice FROM coupon_health WHERE check_name = 'late_pushes';
UPDATE coupon_channel SET enabled = false WHERE channel = 'sms';
SELECT check_name, status, detail FROM coupon_health WHERE check_name IN ('late_pushes', 'channels');
DELETE FROM coupon_notification;
DELETE FROM coupon_channel;
-- everything has a comment
SELECT count(*) FROM pg_depend d WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'coupon') AND d.deptype = 'e'
  AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_type'::regclass)
  AND NOT (d.classid = 'pg_class'::regclass AND d.objid::regclass::text ~ '^user_coupon_\d+$')
  AND NOT (d.classid = 'pg_type'::regclass AND (SELECT t.typelem <> 0 OR t.typrelid IN (SELECT oid FROM pg_class WHERE relkind IN ('r', 'p', 'v')) FROM pg_type t WHERE t.oid = d.objid))
  AND obj_description(d.objid, d.classid::regclass::name) IS NULL;
