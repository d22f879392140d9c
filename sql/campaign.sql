-- Campaigns: looked at before they run, paused, resumed, cancelled, waiting for their template.
SET client_min_messages = warning;		-- a slow machine tells more often how far it is
-- A task is known by a name of its own here: ids differ from run to run.
CREATE TABLE my_campaign (name text PRIMARY KEY, id bigint);
CREATE FUNCTION campaign_id(text) RETURNS bigint LANGUAGE sql AS 'SELECT id FROM my_campaign WHERE name = $1';
CREATE PROCEDURE make_campaign(name text, template bigint, lines text[]) LANGUAGE plpgsql AS $$
DECLARE
    t bigint;
BEGIN
    SELECT task_id INTO t FROM coupon_task_create(name, template);
    INSERT INTO my_campaign VALUES (name, t);
    EXECUTE format('INSERT INTO coupon_stage_%s (user_id) SELECT unnest($1)', t) USING lines;
END $$;
\set VERBOSITY sqlstate

INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start) VALUES
    (930, 'a campaign', 3, 10, 'draft', now() + interval '1 day'), (931, 'by code', NULL, 10, 'published', now());
UPDATE coupon_template SET open_to = 'code' WHERE id = 931;
INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (9301, 930, now() + interval '1 day');
CALL make_campaign('campaign', 930, ARRAY['9301', '9302', '9302', 'x', '9303', '9304', '9305', repeat('9', 2000)]);
SELECT * FROM coupon_task_check(campaign_id('campaign'));
SELECT code, outcome, lines, warnings FROM coupon_task_submit(campaign_id('campaign'), now() + interval '1 hour');
SELECT * FROM coupon_task_pause(campaign_id('campaign'));
SELECT * FROM coupon_task_pause(campaign_id('campaign'));
SELECT state, created_by = session_user AS created, submitted_by = session_user AS submitted, paused_by = session_user AS paused, paused_at IS NOT NULL AS "when" FROM coupon_task WHERE id = campaign_id('campaign');
CALL coupon_task_run(campaign_id('campaign'));
SELECT outcome FROM coupon_task_submit(campaign_id('campaign'));
SELECT * FROM coupon_task_resume(campaign_id('campaign'));
SELECT * FROM coupon_task_resume(campaign_id('campaign'));
SELECT state FROM coupon_task WHERE id = campaign_id('campaign');
-- it waits for its template, and is told of
CALL coupon_task_run(campaign_id('campaign'));
UPDATE coupon_task SET send_at = now() WHERE id = campaign_id('campaign');
CALL coupon_task_run_due();
SELECT t.state, t.last_error, t.attempts, h.status, h.detail ~ '1 wait' AS told FROM coupon_task t, coupon_health h WHERE t.id = campaign_id('campaign') AND h.check_name = 'tasks';
UPDATE coupon_template SET status = 'published' WHERE id = 930;
SELECT * FROM coupon_task_check(campaign_id('campaign')) WHERE check_name IN ('template', 'stock');
-- a distribution does not wait for the start of the sale; announcements that wait go with it
SELECT coupon_channel_set('sms', 'http://127.0.0.1:1/');
UPDATE coupon_task SET notify = '{sms,app}' WHERE id = campaign_id('campaign');
CALL coupon_task_run(campaign_id('campaign'));
SELECT user_id, source FROM user_coupon WHERE template_id = 930 AND holder = 0 ORDER BY user_id;
SELECT state, issued, failed, failed_by_cause, submitted_by = session_user AS submitted FROM coupon_task_progress WHERE task_id = campaign_id('campaign');
SELECT channel, count(*) FROM coupon_notification WHERE task_id = campaign_id('campaign') GROUP BY 1 ORDER BY 1;
DELETE FROM coupon_notification WHERE task_id = campaign_id('campaign');
SELECT outcome FROM coupon_task_pause(campaign_id('campaign'));
SELECT outcome FROM coupon_task_resume(-5);
SELECT * FROM coupon_task_check(campaign_id('campaign'));
SELECT * FROM coupon_task_check(-5);
SELECT coupon_task_check(NULL);
SELECT coupon_task_pause(NULL);
-- cancelled: who did it, and what it has not announced yet is withdrawn
UPDATE coupon_template SET total_stock = 10 WHERE id = 930;
SET coupon.batch_size = 2;
CALL make_campaign('stopped', 930, ARRAY['9311', '9312', '9313', '9314', '9315']);
UPDATE coupon_task SET notify = '{sms}' WHERE id = campaign_id('stopped');
SELECT outcome FROM coupon_task_submit(campaign_id('stopped'));
CREATE FUNCTION stops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.user_id = 9313 THEN PERFORM 1 / 0; END IF; RETURN NEW; END';
CREATE TRIGGER stops BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION stops();
CALL coupon_task_run_due();
DROP TRIGGER stops ON user_coupon;
SELECT count(*) > 0 AS announced FROM coupon_notification WHERE task_id = campaign_id('stopped');
UPDATE coupon_notification SET leased_until = now() + interval '1 hour' WHERE id = (SELECT max(id) FROM coupon_notification WHERE task_id = campaign_id('stopped'));
SELECT outcome FROM coupon_task_cancel(campaign_id('stopped'));
SELECT count(*) AS being_sent FROM coupon_notification WHERE task_id = campaign_id('stopped');
SELECT state, cancelled_by = session_user AS by_me FROM coupon_task WHERE id = campaign_id('stopped');
-- what is left of it can be read, and given another time
SELECT * FROM coupon_task_rest(campaign_id('stopped')) ORDER BY row_num;
SELECT lines - issued - failed AS rest FROM coupon_task WHERE id = campaign_id('stopped');
CALL coupon_purge();
SELECT count(*) FROM coupon_task_rest(campaign_id('stopped'));
INSERT INTO my_campaign SELECT 'draft', task_id FROM coupon_task_create('draft', 930);
SELECT * FROM coupon_task_rest(campaign_id('draft'));
SELECT outcome FROM coupon_task_cancel(campaign_id('draft'));
SELECT count(*) FROM coupon_task_rest(campaign_id('draft'));
SELECT * FROM coupon_task_rest(-5);
SELECT * FROM coupon_task_rest(NULL);
DELETE FROM coupon_notification WHERE task_id = campaign_id('stopped');
-- what only a call has started is left to calls, until it is submitted
UPDATE coupon_template SET total_stock = 20 WHERE id = 930;
CALL make_campaign('by hand', 930, ARRAY['9321', '9322', '9323', '9324']);
CREATE FUNCTION stops_again() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.user_id = 9323 THEN PERFORM 1 / 0; END IF; RETURN NEW; END';
CREATE TRIGGER stops_again BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION stops_again();
CALL coupon_task_run(campaign_id('by hand'));
DROP TRIGGER stops_again ON user_coupon;
CALL coupon_task_run_due();
SELECT state, send_at, done FROM coupon_task_progress WHERE task_id = campaign_id('by hand');
SELECT state, repair ~ '^CALL [a-z.]*coupon_task_run' AS repair FROM coupon_stuck('0') WHERE kind = 'task' AND id = campaign_id('by hand');
SELECT outcome FROM coupon_task_submit(campaign_id('by hand'), 'infinity');
SELECT outcome FROM coupon_task_pause(campaign_id('by hand'));
SELECT outcome FROM coupon_task_resume(campaign_id('by hand'));
CALL coupon_task_run_due();
SELECT state, done FROM coupon_task_progress WHERE task_id = campaign_id('by hand');
RESET coupon.batch_size;
-- a call of a task that fails is an error
CALL make_campaign('by code', 931, ARRAY['1']);
SELECT check_name, verdict FROM coupon_task_check(campaign_id('by code')) WHERE verdict <> 'ok';
SELECT warnings FROM coupon_task_submit(campaign_id('by code'));
CALL coupon_task_run(campaign_id('by code'));
SELECT status, detail LIKE '%have failed%' AS told FROM coupon_health WHERE check_name = 'tasks';
SELECT outcome FROM coupon_task_cancel(campaign_id('by code'));
SELECT cause, message_en <> '' AND message_zh <> '' AS texts FROM coupon_task_causes();
SELECT coupon_stage_user(s) FROM unnest(ARRAY['5', ' 6 ', 'x', '', repeat('1', 2000)]) s;
DELETE FROM coupon_channel; DELETE FROM coupon_secret;
DELETE FROM user_coupon WHERE template_id IN (930, 931) AND holder IS NULL;
DROP TABLE my_campaign; DROP FUNCTION campaign_id, stops; DROP PROCEDURE make_campaign;
