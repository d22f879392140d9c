-- 800: in half an hour and some seconds; 801: tomorrow; 802: draft; 803: begun; 804: far; 805, 806: of shops
INSERT INTO coupon_template (id, shop_number, name, discount_value, status, receive_start) VALUES
    (800, NULL, 'soon', 1, 'published', now() + '30 min 40 s'), (801, NULL, 'tomorrow', 1, 'published', now() + '1 day'),
    (802, NULL, 'draft', 1, 'draft', now() + '1 day'), (803, NULL, 'begun', 1, 'published', now() - interval '1 s'),
    (804, NULL, 'far', 1, 'published', '2090-01-01'), (805, 81, 'shop', 1, 'published', now() + '1 day'),
    (806, 82, 'other shop', 1, 'published', now() + '1 day');
CREATE VIEW rows AS SELECT user_id, template_id, bitmap, fired, next_minutes, cardinality(notifications) AS ids
FROM coupon_remind ORDER BY template_id, user_id;
CREATE VIEW pushes AS
SELECT 'waiting' AS state, channel, template_id, minutes, user_ids,
       t.receive_start - due_at AS before FROM coupon_notification n JOIN coupon_template t ON t.id = n.template_id WHERE kind = 'reminder'
UNION ALL
SELECT state, channel, template_id, minutes, user_ids, t.receive_start - due_at
FROM coupon_notification_history n JOIN coupon_template t ON t.id = n.template_id WHERE kind = 'reminder'
ORDER BY template_id, minutes DESC, channel, user_ids;

-- the worked example: 10 minutes before by SMS, 20 by mail
SELECT code, outcome, bitmap, t.receive_start - remind_at AS before FROM coupon_template t, coupon_remind_create(801, 42, 'sms', 10) WHERE id = 801;
SELECT code, outcome, bitmap, bitmap::bigint, t.receive_start - remind_at AS before FROM coupon_template t, coupon_remind_create(801, 42, 'email', 20) WHERE id = 801;
-- twice
SELECT code, outcome, bitmap, remind_at IS NOT NULL AS at FROM coupon_remind_create(801, 42, 'sms', 10);
-- the moment has passed, and just not yet
SELECT code, outcome, bitmap, remind_at < now() AS past FROM coupon_remind_create(800, 42, 'sms', 35);
SELECT code, outcome, bitmap, remind_at < now() AS past FROM coupon_remind_create(800, 42, 'sms', 30);
SELECT code, outcome, bitmap FROM coupon_remind_create(800, 42, 'ch4', 5);
SELECT code, outcome, bitmap FROM coupon_remind_create(802, 42, 'sms', 5);
SELECT code, outcome, bitmap FROM coupon_remind_create(803, 42, 'sms', 5);
SELECT code, outcome, bitmap, remind_at FROM coupon_remind_create(804, 42, 'app', 60);
SELECT code, outcome, bitmap, remind_at FROM coupon_remind_create(999, 42, 'sms', 5);
SELECT (coupon_remind_create(800, 43, 'app', 15)).code;
SELECT * FROM rows;

-- bad input
\set VERBOSITY default
SELECT * FROM coupon_remind_create(801, 42, 'sms', 0);
SELECT * FROM coupon_remind_create(801, 42, 'sms', 4);
SELECT * FROM coupon_remind_create(801, 42, 'sms', 7);
SELECT * FROM coupon_remind_create(801, 42, 'sms', 65);
SELECT * FROM coupon_remind_create(801, 42, 'sms', -5);
SELECT * FROM coupon_remind_create(801, 42, 'sms', 2147483647);
SELECT * FROM coupon_remind_create(801, 42, 'pigeon', 10);
SELECT * FROM coupon_remind_create(801, 42, '', 10);
SELECT * FROM coupon_remind_create(801, 42, 'SMS', 10);
SELECT * FROM coupon_remind_create(801, 0, 'sms', 10);
SELECT * FROM coupon_remind_create(801, NULL, 'sms', 10);
SELECT * FROM coupon_remind_create(NULL, 42, 'sms', 10);
SELECT * FROM coupon_remind_create(801, 42, NULL, 10);
SELECT * FROM coupon_remind_create(801, 42, 'sms', NULL);
SELECT * FROM coupon_remind_cancel(801, 42, 'sms', 7);
SELECT * FROM coupon_remind_cancel(801, -1, 'sms', 10);
SELECT * FROM coupon_remind_list(NULL);
SELECT * FROM coupon_remind_list(42, 0);
SELECT * FROM coupon_remind_list(42, 1001);
-- even before the template is looked for
SELECT * FROM coupon_remind_create(999, 42, 'sms', 7);
-- by hand
INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (42, 802, '{sms@10,sms@12}');
INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (42, 802, '{}');
INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (0, 802, '{sms@10}');
INSERT INTO coupon_remind (user_id, template_id, bitmap, fired) VALUES (42, 802, '{sms@10}', '{sms@5}');
INSERT INTO coupon_remind (user_id, template_id, bitmap, next_minutes) VALUES (42, 802, '{sms@10}', 5);
\set VERBOSITY terse

-- taken back; the last one takes the row with it
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 42, 'app', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 43, 'app', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(999, 42, 'app', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(803, 42, 'app', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 42, 'email', 20);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 42, 'sms', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 42, 'sms', 10);
SELECT count(*) FROM coupon_remind WHERE template_id = 801;
BEGIN;
SELECT code FROM coupon_remind_create(801, 42, 'sms', 10);
SAVEPOINT s;
SELECT code FROM coupon_remind_cancel(801, 42, 'sms', 10);
ROLLBACK TO s;
SELECT code, bitmap FROM coupon_remind_create(801, 42, 'sms', 15);
ROLLBACK;
SELECT count(*) FROM coupon_remind WHERE template_id = 801;

-- nothing is due; nor when the sale comes nearer, until a moment is there
SELECT * FROM coupon_remind_tick();
SELECT count(*) FROM generate_series(1, 5) u, coupon_remind_create(801, u, 'sms', 10);
SELECT count(*) FROM generate_series(4, 6) u, coupon_remind_create(801, u, 'email', 10);
SELECT count(*) FROM generate_series(5, 7) u, coupon_remind_create(801, u, 'email', 5);
UPDATE coupon_template SET receive_start = now() + '10 min 30 s' WHERE id = 801;
SELECT * FROM coupon_remind_tick();
-- half of a batch of two
INSERT INTO coupon_channel (channel, endpoint, batch_size) VALUES ('sms', 'http://127.0.0.1:1/', 2);
UPDATE coupon_template SET receive_start = now() + '9 min 59 s' WHERE id = 801;
SELECT * FROM coupon_remind_tick();
SELECT * FROM coupon_remind_tick();
SELECT * FROM rows WHERE template_id = 801;
SELECT * FROM pushes;
SELECT count(*) FROM coupon_notification n JOIN coupon_remind r ON n.id = ANY (r.notifications)
    AND r.user_id = ANY (n.user_ids) AND r.template_id = n.template_id;
SELECT template_id, name, status, bitmap, pending, receive_start - next_at AS before FROM coupon_remind_list(5);
SELECT channel, minutes, l.receive_start - remind_at AS before FROM coupon_remind_list(5) l, remind_bitmap_slots(l.pending, l.receive_start);
SELECT user_id, name, fired, receive_start - next_at AS before FROM coupon_reminders WHERE template_id = 801 AND user_id IN (4, 5) ORDER BY 1;
-- due and not sent yet: taken back from the outbox, alone or out of a batch
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 5, 'email', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 1, 'sms', 10);
SELECT code, outcome, bitmap FROM coupon_remind_create(801, 1, 'sms', 10);
-- on its way, or sent
UPDATE coupon_notification SET leased_until = now() + '1 min' WHERE user_ids = '{2}';
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 2, 'sms', 10);
DELETE FROM coupon_notification WHERE user_ids = '{3,4}';
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 3, 'sms', 10);
SELECT * FROM rows WHERE template_id = 801;
SELECT * FROM pushes;

-- put off: what has fired stays so, until the user asks again
UPDATE coupon_template SET receive_start = now() + '1 day' WHERE id = 801;
SELECT code, outcome, bitmap FROM coupon_remind_create(801, 5, 'sms', 10);
SELECT code, outcome, bitmap FROM coupon_remind_create(801, 5, 'sms', 10);
SELECT code, outcome, bitmap FROM coupon_remind_cancel(801, 3, 'sms', 10);
SELECT pending, receive_start - next_at AS before FROM coupon_remind_list(5);
SELECT * FROM rows WHERE template_id = 801;
-- an earlier one fires after a later one; ids keep the order of the bits
SELECT code, outcome, bitmap FROM coupon_remind_create(801, 5, 'email', 60);
UPDATE coupon_template SET receive_start = now() + '59 min' WHERE id = 801;
SELECT * FROM coupon_remind_tick();
UPDATE coupon_template SET receive_start = now() + '7 min' WHERE id = 801;
SELECT * FROM coupon_remind_tick();
SELECT r.bitmap, r.fired, array_agg(n.channel || '@' || n.minutes ORDER BY o.n) AS by_id
FROM coupon_remind r, unnest(r.notifications) WITH ORDINALITY AS o (id, n) JOIN coupon_notification n ON n.id = o.id
WHERE r.user_id = 5 AND r.template_id = 801 GROUP BY 1, 2;
SELECT code, bitmap FROM coupon_remind_cancel(801, 5, 'email', 60);
SELECT r.bitmap, r.fired, array_agg(n.channel || '@' || n.minutes ORDER BY o.n) AS by_id
FROM coupon_remind r, unnest(r.notifications) WITH ORDINALITY AS o (id, n) JOIN coupon_notification n ON n.id = o.id
WHERE r.user_id = 5 AND r.template_id = 801 GROUP BY 1, 2;
-- everybody again, by hand
UPDATE coupon_remind SET fired = '{}', notifications = NULL WHERE template_id = 801 AND user_id = 4;
-- ids that somebody has lost are those of no notification
UPDATE coupon_remind SET notifications = NULL WHERE template_id = 801 AND user_id = 5;
SELECT code, outcome FROM coupon_remind_cancel(801, 5, 'sms', 10);

-- offline: nothing comes, and what is late comes when it is back
UPDATE coupon_template SET status = 'offline', receive_start = now() + '3 min' WHERE id = 801;
SELECT * FROM coupon_remind_tick();
SELECT pending FROM coupon_remind_list(6);
SELECT code, outcome FROM coupon_remind_cancel(801, 6, 'email', 10);
UPDATE coupon_template SET status = 'published' WHERE id = 801;
SELECT * FROM coupon_remind_tick();
SELECT * FROM rows WHERE template_id = 801;

-- begun: what is left is missed; just now, and long ago
SELECT code FROM coupon_remind_create(804, 42, 'sms', 5);
TRUNCATE coupon_notification, coupon_notification_history;
UPDATE coupon_template SET receive_start = now() WHERE id = 800;
UPDATE coupon_template SET receive_start = now() - interval '2 days', status = 'offline' WHERE id = 804;
SELECT * FROM coupon_remind_tick();
SELECT * FROM coupon_remind_tick();
SELECT * FROM pushes;
SELECT code, outcome FROM coupon_remind_create(804, 42, 'sms', 10);
SELECT code, outcome FROM coupon_remind_cancel(800, 42, 'sms', 30);
SELECT template_id, bitmap, pending, next_at FROM coupon_remind_list(42);
SELECT template_id FROM coupon_remind_list(42, 1);
SELECT template_id FROM coupon_remind_list(42, 1, 804);
SELECT template_id FROM coupon_remind_list(42, 1, 800);
SELECT count(*) FROM coupon_remind_list(99);

-- with a trigger of somebody's; without the index
CREATE FUNCTION after_mark() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    RAISE NOTICE 'marked: %, in the outbox: %', NEW.fired, (SELECT count(*) FROM coupon_notification n WHERE n.id = ANY (NEW.notifications));
    RETURN NULL;
END $$;
INSERT INTO coupon_template (id, name, discount_value, status, receive_start) VALUES (807, 't', 1, 'published', now() + '9 min');
INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (1, 807, '{sms@10}'), (2, 807, '{app@20,sms@10}');
CREATE TRIGGER after_mark AFTER UPDATE ON coupon_remind FOR EACH ROW EXECUTE FUNCTION after_mark();
SELECT * FROM coupon_remind_tick();
DROP FUNCTION after_mark() CASCADE;
DROP INDEX coupon_remind_next;
CREATE INDEX coupon_remind_next ON coupon_remind (template_id, next_minutes DESC);
INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (7, 807, '{sms@10}');
SELECT * FROM coupon_remind_tick();
DROP INDEX coupon_remind_next;
CREATE INDEX coupon_remind_next ON coupon_remind (template_id, next_minutes);
SELECT * FROM coupon_remind_tick();
SELECT fired, next_minutes FROM coupon_remind WHERE user_id = 7 AND template_id = 807;
DELETE FROM coupon_notification WHERE template_id = 807;
DELETE FROM coupon_remind WHERE template_id = 807;
DELETE FROM coupon_template WHERE id = 807;

-- with triggers before each row, whose functions are called for many
CREATE FUNCTION audits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER audits BEFORE UPDATE ON coupon_remind FOR EACH ROW EXECUTE FUNCTION audits();
CREATE TRIGGER audits BEFORE INSERT ON coupon_notification FOR EACH ROW EXECUTE FUNCTION audits();
CREATE TRIGGER audits BEFORE INSERT ON coupon_notification_history FOR EACH ROW EXECUTE FUNCTION audits();
INSERT INTO coupon_template (id, name, discount_value, status, receive_start) VALUES (807, 't', 1, 'published', now() + '9 min'), (808, 't', 1, 'published', now() - interval '1 min');
INSERT INTO coupon_remind (user_id, template_id, bitmap) SELECT u, t, '{sms@10}' FROM generate_series(1, 300) u, generate_series(807, 808) t;
SELECT * FROM coupon_remind_tick();
DROP FUNCTION audits() CASCADE;
DELETE FROM coupon_notification WHERE template_id = 807;
DELETE FROM coupon_notification_history WHERE template_id = 808;
DELETE FROM coupon_remind WHERE template_id IN (807, 808);
DELETE FROM coupon_template WHERE id IN (807, 808);

-- with something of somebody's on the table
SELECT count(*) FROM generate_series(1, 3) u, unnest(ARRAY[20, 15, 10]) m, coupon_remind_create(806, u, CASE WHEN u = 3 THEN 'app' ELSE 'sms' END, m);
SELECT code FROM coupon_remind_create(806, 2, 'ch3', 15);
UPDATE coupon_template SET receive_start = now() + '19 min' WHERE id = 806;
SELECT * FROM coupon_remind_tick();
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER hold BEFORE UPDATE ON coupon_remind FOR EACH ROW EXECUTE FUNCTION hold();
UPDATE coupon_template SET receive_start = now() + '14 min' WHERE id = 806;
SELECT * FROM coupon_remind_tick();
DROP TRIGGER hold ON coupon_remind;
DROP FUNCTION hold();
ALTER TABLE coupon_remind ADD CONSTRAINT odd CHECK (fired <> '{sms@20,sms@15}');
SELECT * FROM coupon_remind_tick();
ALTER TABLE coupon_remind DROP CONSTRAINT odd;
SELECT * FROM coupon_remind_tick();
-- a table that inherits is none of ours
VACUUM FULL coupon_remind;
CREATE TABLE child () INHERITS (coupon_remind);
INSERT INTO child (user_id, template_id, bitmap) VALUES (7, 806, '{sms@15}');
SELECT * FROM coupon_remind_tick();
SELECT c.fired, (SELECT count(*) FROM ONLY coupon_remind r WHERE r.ctid = c.ctid) AS beside FROM child c;
DROP TABLE child;
ANALYZE coupon_remind;
DELETE FROM coupon_notification WHERE template_id = 806 AND user_ids = '{7}';
-- a column more, and one that has gone
ALTER TABLE coupon_remind ADD COLUMN note text DEFAULT 'kept';
UPDATE coupon_template SET receive_start = now() + '9 min' WHERE id = 806;
SELECT * FROM coupon_remind_tick();
SELECT r.user_id, r.fired, r.next_minutes, r.note, array_agg(n.channel || '@' || n.minutes ORDER BY o.n) AS by_id
FROM coupon_remind r, unnest(r.notifications) WITH ORDINALITY AS o (id, n) JOIN coupon_notification n ON n.id = o.id
WHERE r.template_id = 806 GROUP BY r.user_id, r.template_id ORDER BY 1;
ALTER TABLE coupon_remind DROP COLUMN note;
SELECT user_id, fired, next_minutes, ids FROM rows WHERE template_id = 806;
SELECT count(*) FROM pushes WHERE template_id = 806;
DELETE FROM coupon_remind WHERE template_id = 806;
UPDATE coupon_template SET receive_start = now() + '1 day' WHERE id = 806;

-- a tick looks at nothing else than what is due
SET enable_seqscan = off;
SET enable_bitmapscan = off;
CREATE FUNCTION scans(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
        IF line ~ 'Scan|Sort|Cond|Filter' THEN
            RETURN NEXT regexp_replace(line, '^[ >-]*', '');
        END IF;
    END LOOP;
END $$;
SELECT * FROM scans('SELECT ctid, user_id, bitmap, fired, notifications FROM coupon_remind
    WHERE template_id = 801 AND next_minutes >= 5 LIMIT 10000 FOR UPDATE SKIP LOCKED');
SELECT * FROM scans('SELECT t.id, (SELECT max(r.next_minutes) FROM coupon_remind r WHERE r.template_id = t.id)
    FROM coupon_template t WHERE t.receive_start > $$2020-01-01Z$$ AND t.receive_start <= $$2020-01-02Z$$');
DROP FUNCTION scans(text);
RESET enable_seqscan;
RESET enable_bitmapscan;

-- who may what
CREATE ROLE regress_app; CREATE ROLE regress_shop; CREATE ROLE regress_operator; CREATE ROLE regress_monitor;
SELECT coupon_grant('regress_app', 'application');
SELECT coupon_grant('regress_shop', 'application', 81);
SELECT coupon_grant('regress_operator', 'operator', 81);
SELECT coupon_grant('regress_monitor', 'monitor');
SET ROLE regress_app;
SELECT code, outcome FROM coupon_remind_create(806, 7, 'sms', 5);
SELECT template_id FROM coupon_remind_list(7) ORDER BY 1;
SELECT * FROM coupon_remind;
SELECT * FROM coupon_reminders;
SELECT * FROM coupon_remind_tick();
RESET ROLE;
SET ROLE regress_shop;
SELECT code, outcome FROM coupon_remind_create(805, 7, 'sms', 5);
SELECT code, outcome, bitmap, remind_at FROM coupon_remind_create(806, 7, 'sms', 5);
SELECT code, outcome, bitmap, remind_at FROM coupon_remind_cancel(806, 7, 'sms', 5);
SELECT code, outcome, bitmap, remind_at FROM coupon_remind_create(801, 7, 'sms', 5);
SELECT template_id FROM coupon_remind_list(7);
RESET ROLE;
SET ROLE regress_operator;
SELECT template_id, user_id, bitmap FROM coupon_reminders;
SELECT template_id FROM coupon_remind_list(7);
SELECT * FROM coupon_remind_tick();
RESET ROLE;
SELECT coupon_grant('regress_operator', 'operator');
SET ROLE regress_operator;
SELECT * FROM coupon_remind_tick();
RESET ROLE;
SELECT coupon_grant_revoke('regress_operator', 'operator');
SET ROLE regress_operator;
SELECT * FROM coupon_remind;
UPDATE coupon_reminders SET bitmap = '{sms@5}';
RESET ROLE;
SET ROLE regress_monitor;
SELECT DISTINCT template_id FROM coupon_reminders ORDER BY 1;
SELECT * FROM coupon_remind_tick();
RESET ROLE;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM coupon_remind_tick();
ROLLBACK;

-- deleted some days after the start, or when the template has gone
SHOW coupon.keep_reminders;
SET coupon.keep_reminders = 3;
CALL coupon_purge();
UPDATE coupon_template SET receive_start = now() - interval '73 hours' WHERE id IN (801, 804);
DELETE FROM coupon_template WHERE id = 806;
SET coupon.keep_reminders = 0;
CALL coupon_purge();
SET coupon.keep_reminders = 3;
SET coupon.batch_size = 2;
CALL coupon_purge();
RESET coupon.batch_size;
SELECT DISTINCT template_id FROM coupon_remind ORDER BY 1;
RESET coupon.keep_reminders;

DELETE FROM coupon_remind;
TRUNCATE coupon_notification, coupon_notification_history;
DELETE FROM coupon_channel;
DELETE FROM coupon_template WHERE id BETWEEN 800 AND 806;
DROP VIEW rows, pushes;
DROP OWNED BY regress_app, regress_shop, regress_operator, regress_monitor;
DELETE FROM coupon_role WHERE role::text LIKE 'regress%';
DROP ROLE regress_app, regress_shop, regress_operator, regress_monitor;
