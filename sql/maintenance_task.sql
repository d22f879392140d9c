-- coupon_purge and tasks: finished ones go after coupon.keep_tasks days, whole.
INSERT INTO coupon_task (id, name, template_id, state, finished_at) VALUES
    (9001, 't', 1, 'success', now() - interval '91 days'), (9002, 't', 1, 'failed', now() - interval '91 days'),
    (9003, 't', 1, 'cancelled', now() - interval '91 days'), (9004, 't', 1, 'success', now() - interval '89 days'),
    (9005, 't', 1, 'in_progress', NULL), (9006, 't', 1, 'pending', now() - interval '91 days');
INSERT INTO coupon_task_failure (task_id, row_num, user_id, cause)
SELECT t, n, n, 'out_of_stock' FROM generate_series(9001, 9006) t, generate_series(2, 8) n;
INSERT INTO coupon_task_put_off (task_id, row_num, batch, user_id) SELECT t, n, 1, n FROM generate_series(9001, 9006) t, generate_series(2, 4) n;
INSERT INTO coupon_task_batch (task_id, batch, first_line, last_line, first_row, lines) SELECT t, n, 1, 1, 1, 1 FROM generate_series(9001, 9006) t, generate_series(1, 2) n;
CREATE TABLE coupon_stage_9001 (user_id text);
CREATE TABLE coupon_stage_9004 (user_id text);
CREATE VIEW what_is_left AS
SELECT t.id, t.state, (SELECT count(*) FROM coupon_task_failure f WHERE f.task_id = t.id) AS failures,
       (SELECT count(*) FROM coupon_task_put_off f WHERE f.task_id = t.id) AS put_off,
       (SELECT count(*) FROM coupon_task_batch f WHERE f.task_id = t.id) AS batches,
       to_regclass('public.coupon_stage_' || t.id) AS stage
FROM coupon_task t WHERE t.id BETWEEN 9001 AND 9006;
SHOW coupon.keep_tasks;
SET coupon.keep_tasks = 0;
CALL coupon_purge();
SELECT count(*) FROM what_is_left;
RESET coupon.keep_tasks;
SET coupon.batch_size = 3;
CALL coupon_purge();
RESET coupon.batch_size;
SELECT * FROM what_is_left ORDER BY id;
SELECT (SELECT count(*) FROM coupon_task_failure f WHERE f.task_id BETWEEN 9001 AND 9006),
       (SELECT count(*) FROM coupon_task_put_off f WHERE f.task_id BETWEEN 9001 AND 9006),
       (SELECT count(*) FROM coupon_task_batch f WHERE f.task_id BETWEEN 9001 AND 9006), to_regclass('coupon_stage_9001');
-- nothing but what is finished and old
SELECT coupon_task_purge(9005, 'infinity', 100), coupon_task_purge(9006, 'infinity', 100), coupon_task_purge(9004, now() - interval '90 days', 100), coupon_task_purge(1, 'infinity', 100);
SELECT coupon_task_purge(9004, 'infinity', 5), coupon_task_purge(9004, 'infinity', 5);
SELECT id FROM what_is_left ORDER BY id;
DROP VIEW what_is_left;
DELETE FROM coupon_task_failure WHERE task_id BETWEEN 9001 AND 9006;
DELETE FROM coupon_task_put_off WHERE task_id BETWEEN 9001 AND 9006;
DELETE FROM coupon_task_batch WHERE task_id BETWEEN 9001 AND 9006;
DELETE FROM coupon_task WHERE id BETWEEN 9001 AND 9006;
