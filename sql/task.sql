-- Batch distribution: what the verbs answer, and what becomes of each line.
\set VERBOSITY terse
SET client_min_messages = warning;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
VALUES (910, 'five', 5, 10, 'published', 3), (911, 'endless', NULL, 10, 'published', 1);
INSERT INTO coupon_template (id, name, total_stock, discount_value, status, open_to)
VALUES (912, 'by task only', 100, 10, 'published', 'task'),
       (913, 'by code only', 100, 10, 'published', 'code'),
       (914, 'draft', 100, 10, 'draft', 'anyone');

-- A task is known by a name of its own here: ids differ from run to run.
CREATE TABLE my_task (name text PRIMARY KEY, id bigint);
CREATE FUNCTION id_of(text) RETURNS bigint LANGUAGE sql AS 'SELECT id FROM my_task WHERE name = $1';
CREATE PROCEDURE make(name text, template bigint, lines text[], first_row bigint DEFAULT 2) LANGUAGE plpgsql AS $$
DECLARE
    t bigint;
BEGIN
    SELECT task_id INTO t FROM coupon_task_create(name, template, first_row => first_row);
    INSERT INTO my_task VALUES (name, t);
    EXECUTE format('INSERT INTO coupon_stage_%s (user_id) SELECT unnest($1)', t) USING lines;
END $$;
CREATE VIEW failure AS
SELECT m.name, f.row_num, f.user_id, f.cause, f.detail
FROM coupon_task_failure f JOIN my_task m ON m.id = f.task_id ORDER BY m.name, f.row_num;
CREATE VIEW state AS
SELECT p.name, p.state, p.fail_reason, p.lines, p.done, p.issued, p.failed, p.put_off
FROM coupon_task_progress p ORDER BY p.name;

-- Every kind of line: stock for five, one of which is claimed already
SELECT outcome FROM coupon_receive(910, 3);
CALL make('all kinds', 910, ARRAY['1', ' 2 ', '3', 'x', '', NULL, '-4', '0', '+5', '1', '9223372036854775807',
    '9223372036854775808', '007', '1e5', E'8\r', '4 2', 'ÿ', '9', '10', '3', '10', repeat('ü', 200)]);
CALL coupon_task_run(id_of('all kinds'));
SELECT row_num, left(user_id, 20) AS user_id, cause, detail FROM failure WHERE name = 'all kinds';
SELECT name, max(length(user_id)) FROM failure GROUP BY name;
SELECT user_id, receive_seq, holder, source, request_id = 'task ' || id_of('all kinds') AS of_task
FROM user_coupon WHERE template_id = 910 ORDER BY user_id;
SELECT * FROM state WHERE name = 'all kinds';
SELECT to_regclass('coupon_stage_' || id_of('all kinds')) AS stage_is_gone;

-- Numbers of rows over many batches, with a file that begins with its first line
SET coupon.batch_size = 3;
SELECT array_agg(CASE WHEN i % 4 = 0 THEN 'bad' ELSE i::text END) AS twenty FROM generate_series(1, 20) i \gset
CALL make('many batches', 911, :'twenty', 1);
CALL coupon_task_run(id_of('many batches'));
SELECT row_num, user_id, cause FROM failure WHERE name = 'many batches';

-- A byte order mark; duplicates over batches; what other tasks have given
CALL make('marks', 911, ARRAY[E'\uFEFF101', '102', '103', '104', '101', '1', '104']);
CALL coupon_task_run(id_of('marks'));
SELECT row_num, user_id, cause FROM failure WHERE name = 'marks';

-- Lines of which only the beginning is looked at
CALL make('long', 911, ARRAY['1401', '1402' || repeat(' ', 996), '1403' || repeat(' ', 997), repeat('4', 100000000)]);
CALL coupon_task_run(id_of('long'));
SELECT row_num, left(user_id, 5), length(user_id), cause, detail FROM failure WHERE name = 'long';

-- Order of the file decides when stock ends
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (915, 'four', 4, 10, 'published');
CALL make('short', 915, ARRAY['90', '20', '80', '20', '10', '70', '30']);
RESET coupon.batch_size;
CALL coupon_task_run(id_of('short'));
SELECT row_num, user_id, cause FROM failure WHERE name = 'short';
SELECT user_id FROM user_coupon WHERE template_id = 915 ORDER BY user_id;

-- A gap in the stage, and lines not in the order of the table
CALL make('gap', 911, ARRAY['201', 'bad', '202']);
DO $$ BEGIN
    EXECUTE format('INSERT INTO coupon_stage_%s (user_id) SELECT 1/(i-3) FROM generate_series(1,5) i', id_of('gap'));
EXCEPTION WHEN division_by_zero THEN NULL;
END $$;
DO $$ BEGIN
    EXECUTE format('INSERT INTO coupon_stage_%s (user_id) VALUES (''worse'')', id_of('gap'));
    EXECUTE format('CREATE INDEX turned ON coupon_stage_%s (line DESC)', id_of('gap'));
    EXECUTE format('CLUSTER coupon_stage_%s USING turned', id_of('gap'));
END $$;
CALL coupon_task_run(id_of('gap'));
SELECT row_num, user_id FROM failure WHERE name = 'gap';

-- Submitting seals; who stages then is refused
CALL make('sealed', 911, ARRAY['301']);
SELECT * FROM coupon_task_submit(id_of('sealed'), 'tomorrow');
DO $$ BEGIN
    EXECUTE format('INSERT INTO coupon_stage_%s (user_id) VALUES (''302'')', id_of('sealed'));
EXCEPTION WHEN OTHERS THEN RAISE WARNING '%: %', SQLSTATE, replace(SQLERRM, id_of('sealed')::text, 'N');
END $$;
DO $$ BEGIN
    EXECUTE format('TRUNCATE coupon_stage_%s', id_of('sealed'));
EXCEPTION WHEN OTHERS THEN RAISE WARNING '%: %', SQLSTATE, replace(SQLERRM, id_of('sealed')::text, 'N');
END $$;
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'sealed';
SELECT * FROM coupon_task_submit(id_of('sealed'));
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'sealed';
SELECT * FROM coupon_task_submit(id_of('sealed'));
SELECT * FROM coupon_task_cancel(id_of('sealed'));

-- Empty files, files of bad lines only
CALL make('empty', 911, '{}');
SELECT * FROM coupon_task_submit(id_of('empty'));
SELECT * FROM state WHERE name = 'empty';
CALL make('only bad', 911, ARRAY['a', 'b']);
SELECT * FROM coupon_task_submit(id_of('only bad'));
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'only bad';

-- Templates that give nothing: the task fails, and can be submitted again, or waits
CALL make('not published', 914, ARRAY['1', '2']);
CALL make('by code', 913, ARRAY['1']);
CALL make('by task', 912, ARRAY['1']);
SELECT outcome FROM coupon_task_submit(id_of('not published')), coupon_task_submit(id_of('by code')) AS b (c, o, l),
    coupon_task_submit(id_of('by task')) AS t (c, o, l);
CALL coupon_task_run_due();
SELECT * FROM state WHERE name IN ('not published', 'by code', 'by task');
SELECT kind, state, last_error, replace(repair, id::text, 'N') FROM coupon_stuck('0') WHERE id = id_of('not published');
UPDATE coupon_template SET status = 'published' WHERE id = 914;
CALL coupon_task_run(id_of('not published'));
SELECT * FROM state WHERE name = 'not published';
CALL make('over', 912, ARRAY['7']);
UPDATE coupon_template SET receive_end = now(), receive_start = now() - interval '1 day' WHERE id = 912;
SELECT outcome FROM coupon_task_submit(id_of('over'));
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'over';
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (916, 'deleted', 4, 10, 'published');
CALL make('deleted', 916, ARRAY['1']);
SELECT outcome FROM coupon_task_submit(id_of('deleted'));
DELETE FROM coupon_template WHERE id = 916;
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'deleted';

-- A template that stops giving in mid-batch: what was given is counted
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (918, 'stops', 3, 10, 'published');
CREATE FUNCTION stop_at_5() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    IF new.template_id <> 918 OR new.user_id <> 5 THEN
        RETURN new;
    END IF;
    UPDATE coupon_template SET status = 'offline' WHERE id = 918;
    RETURN NULL;
END $$;
CREATE TRIGGER my_stop BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION stop_at_5();
CALL make('stops', 918, ARRAY['1', '2', '5', '6']);
SELECT outcome FROM coupon_task_submit(id_of('stops'));
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'stops';
SELECT count(*) FROM user_coupon WHERE template_id = 918;
DROP TRIGGER my_stop ON user_coupon;
DROP FUNCTION stop_at_5;
UPDATE coupon_template SET status = 'published' WHERE id = 918;
CALL coupon_task_run(id_of('stops'));
SELECT * FROM state WHERE name = 'stops';
SELECT row_num, user_id, cause FROM failure WHERE name = 'stops';

-- Cancelling
CALL make('cancelled', 911, ARRAY['401']);
SELECT * FROM coupon_task_cancel(id_of('cancelled'));
SELECT * FROM coupon_task_cancel(id_of('cancelled'));
SELECT * FROM coupon_task_submit(id_of('cancelled'));
SELECT * FROM coupon_task_cancel(1);
SELECT * FROM coupon_task_submit(1);
CALL coupon_task_run_due();
SELECT count(*) FROM user_coupon WHERE user_id = 401;

-- The template was deleted, and another shop's has its id
INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (919, 'first', 3, 10, 'published');
CALL make('another', 919, ARRAY['1']);
DELETE FROM coupon_template WHERE id = 919;
INSERT INTO coupon_template (id, name, total_stock, discount_value, status, issuer, shop_number)
VALUES (919, 'second', 3, 10, 'published', 'shop', 8);
SELECT outcome FROM coupon_task_submit(id_of('another'));
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'another';
SELECT count(*) FROM user_coupon WHERE template_id = 919;

-- A timeout in a run leaves the session usable, and the task as it was
CALL make('timeout', 911, ARRAY['701', '702']);
SELECT outcome FROM coupon_task_submit(id_of('timeout'));
CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN new; END';
CREATE TRIGGER my_slow BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION be_slow();
SET statement_timeout = '200ms';
CALL coupon_task_run_due();
RESET statement_timeout;
SELECT name, state IN ('pending', 'in_progress') AS may_go_on, lines, done FROM state WHERE name = 'timeout';
DROP TRIGGER my_slow ON user_coupon;
DROP FUNCTION be_slow;

-- Users whom a trigger keeps out do not stop the others
CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN CASE WHEN new.user_id % 2 = 1 THEN new END; END';
CREATE TRIGGER my_keep_out BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION keep_out();
CALL make('kept out', 911, ARRAY['901', '902', '903', '904']);
SELECT outcome FROM coupon_task_submit(id_of('kept out'));
CALL coupon_task_run(id_of('kept out'));
SELECT * FROM state WHERE name = 'kept out';
SELECT row_num, user_id, cause, detail FROM failure WHERE name = 'kept out';
DROP TRIGGER my_keep_out ON user_coupon;
DROP FUNCTION keep_out;

-- nor do those whom it refuses with an error, or a constraint does; each says why
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF new.user_id = 902 THEN RAISE EXCEPTION 'user % is barred', new.user_id; END IF; RETURN new; END$$;
CREATE TRIGGER my_refuse BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE user_coupon ADD CONSTRAINT not_904 CHECK (user_id <> 904 OR template_id <> 911);
CALL make('refused', 911, ARRAY['905', '902', '906', '904', '907']);
CALL coupon_task_run(id_of('refused'));
SELECT * FROM state WHERE name = 'refused';
SELECT row_num, user_id, cause, regexp_replace(detail, 'user_coupon_\d+', 'user_coupon_n') AS detail FROM failure WHERE name = 'refused';
-- any other error is a fault, and stops it
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM 1 / (new.user_id - 908); RETURN new; END$$;
CALL make('fault', 911, ARRAY['908', '909']);
CALL coupon_task_run(id_of('fault'));
SELECT * FROM state WHERE name = 'fault';
DROP TRIGGER my_refuse ON user_coupon;
DROP FUNCTION refuse;
ALTER TABLE user_coupon DROP CONSTRAINT not_904;
SELECT outcome FROM coupon_task_cancel(id_of('fault'));

-- A loader's view on his stage does not keep the task from ending
SELECT format('CREATE VIEW on_stage AS SELECT * FROM coupon_stage_%s', id_of('timeout')) AS command \gset
:command;
CALL coupon_task_run_due();
SELECT * FROM state WHERE name = 'timeout';
SELECT to_regclass('on_stage'), to_regclass('coupon_stage_' || id_of('timeout'));

-- Nothing of a caller's is taken for one of PostgreSQL's
CREATE FUNCTION be_somebody(anyelement) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE WARNING 'run as %', current_user;
    RETURN true;
END $$;
CREATE DOMAIN pg_temp.text AS bigint;
CREATE DOMAIN pg_temp.float8 AS pg_catalog.float8 CHECK (public.be_somebody(VALUE));
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.eq(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE WARNING 'run as %', current_user;
    RETURN true;
END $$;
CREATE OPERATOR hostile.= (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = hostile.eq);
SET search_path = hostile, public, pg_catalog;
SELECT task_id AS hostile FROM public.coupon_task_create('hostile', 911) \gset
SELECT atttypid::regtype FROM pg_attribute WHERE attrelid OPERATOR(pg_catalog.=) (('public.coupon_stage_' || :hostile)::regclass) AND attnum OPERATOR(pg_catalog.=) 1;
SELECT format('INSERT INTO public.coupon_stage_%s (user_id) VALUES (''801'')', :hostile) AS command \gset
:command;
CALL public.coupon_task_run(:hostile);
SELECT * FROM public.coupon_task_cancel(:hostile);
CALL public.coupon_task_run_due();
SELECT count(*) FROM public.coupon_stuck('0');
RESET search_path;
DROP SCHEMA hostile CASCADE;
DROP DOMAIN pg_temp.text;
DROP DOMAIN pg_temp.float8;
DROP FUNCTION be_somebody;

-- Bad input
\set VERBOSITY default
SELECT * FROM coupon_task_create('x', 1);
SELECT * FROM coupon_task_create('', 911);
SELECT * FROM coupon_task_create('x', 911, array_fill('sms'::text, ARRAY[6]));
SELECT * FROM coupon_task_create(NULL, 911);
SELECT * FROM coupon_task_create('x', 911, '{sms,pigeon}');
SELECT * FROM coupon_task_create('x', 911, first_row => 0);
CALL coupon_task_run(1);
CALL coupon_task_run(NULL);
BEGIN;
CALL coupon_task_run(1);
ROLLBACK;
BEGIN;
CALL coupon_task_run_due();
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM coupon_task_submit(1);
ROLLBACK;
\set VERBOSITY terse

-- A retry with the same request id gets the same task
SELECT a.task_id = b.task_id AS same, a.stage = b.stage AS same_stage
FROM coupon_task_create('once', 911, request_id => 'r1') a, coupon_task_create('once', 911, request_id => 'r1') b;
SELECT stage FROM coupon_task_create('once', 912, request_id => 'r1');
SELECT stage FROM coupon_task_create('once', 911, '{app}', request_id => 'r1');

-- At any default isolation level
SET default_transaction_isolation = 'serializable';
BEGIN ISOLATION LEVEL READ COMMITTED;
CALL make('strict', 911, ARRAY['501', '502']);
COMMIT;
CALL coupon_task_run(id_of('strict'));
RESET default_transaction_isolation;
SELECT * FROM state WHERE name = 'strict';

-- An operator of one shop sees and moves the tasks of that shop only
INSERT INTO coupon_template (id, name, total_stock, discount_value, status, issuer, shop_number)
VALUES (917, 'of shop 7', 4, 10, 'published', 'shop', 7);
CREATE ROLE regress_shop7;
SELECT coupon_grant('regress_shop7', 'operator', 7);
GRANT ALL ON my_task TO regress_shop7;
SET ROLE regress_shop7;
SELECT * FROM coupon_task_create('x', 911);
CALL make('of shop', 917, ARRAY['601', 'bad']);
SELECT * FROM coupon_task_submit(id_of('strict'));
SELECT name, state FROM coupon_task_progress;
CALL coupon_task_run(id_of('of shop'));
SELECT row_num, user_id, cause FROM coupon_task_failure;
SELECT name FROM coupon_task;
SELECT kind FROM coupon_stuck('0');
RESET ROLE;
SELECT user_id, source FROM user_coupon WHERE template_id = 917;
CREATE ROLE regress_app;
SELECT coupon_grant('regress_app', 'application');
SET ROLE regress_app;
CALL coupon_task_run_due();
SELECT * FROM coupon_task_submit(1);
RESET ROLE;

-- Everything that has ended is complete, and the books balance
SELECT name FROM coupon_task WHERE state = 'success' AND issued + failed <> lines;
SELECT t.name, t.failed, count(f.row_num) FROM coupon_task t LEFT JOIN coupon_task_failure f ON f.task_id = t.id
WHERE t.state = 'success' GROUP BY t.id HAVING t.failed <> count(f.row_num);
SELECT template_id, problem FROM coupon_verify() WHERE NOT ok;
SELECT count(*) AS batches_left FROM coupon_task_batch b JOIN coupon_task t ON t.id = b.task_id WHERE t.state = 'success';

-- DROP EXTENSION takes the stages with it
SELECT count(*) > 0 AS stages FROM pg_class WHERE relname LIKE 'coupon\_stage\_%' AND relkind = 'r';
DROP TABLE my_task CASCADE;
BEGIN;
DROP EXTENSION coupon CASCADE;
SELECT count(*) AS stages FROM pg_class WHERE relname LIKE 'coupon\_stage\_%' AND relkind = 'r';
ROLLBACK;
DROP PROCEDURE make;
DROP OWNED BY regress_shop7, regress_app;
DROP ROLE regress_shop7, regress_app;
