-- Batch distribution

CREATE TABLE @extschema@.coupon_task (
    id           bigint PRIMARY KEY DEFAULT @extschema@.coupon_next_id() CHECK (id > 0),
    name         text NOT NULL CHECK (name <> '' AND char_length(name) <= 200),
    template_id  bigint NOT NULL,
    shop_number  bigint,
    notify       text[] NOT NULL DEFAULT '{}'
                 CHECK (notify <@ @extschema@.coupon_channel_names() AND cardinality(notify) <= 5),
    first_row    bigint NOT NULL DEFAULT 2 CHECK (first_row > 0),
    request_id   text,
    state        text NOT NULL DEFAULT 'draft'
                 CHECK (state IN ('draft', 'pending', 'in_progress', 'paused', 'success', 'failed', 'cancelled')),
    fail_reason  text,
    send_at      timestamptz,
    lines        bigint,
    issued       bigint,
    failed       bigint,
    attempts     int NOT NULL DEFAULT 0,
    last_error   text,
    retry_at     timestamptz,
    created_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    created_by   text NOT NULL DEFAULT session_user,
    submitted_at timestamptz,
    submitted_by text,
    started_at   timestamptz,
    paused_at    timestamptz,
    paused_by    text,
    finished_at  timestamptz,
    cancelled_by text
);
COMMENT ON TABLE @extschema@.coupon_task IS 'a distribution: one coupon of a template for each user of a file';
COMMENT ON COLUMN @extschema@.coupon_task.shop_number IS 'of the template; null: of the platform';
COMMENT ON COLUMN @extschema@.coupon_task.notify IS 'channels by which each user is told';
COMMENT ON COLUMN @extschema@.coupon_task.first_row IS 'number of the first record in the file: 2 after one header line';
COMMENT ON COLUMN @extschema@.coupon_task.send_at IS 'not to be run before; infinity: by coupon_task_run alone';
COMMENT ON COLUMN @extschema@.coupon_task.lines IS 'records in the file; null until it is sealed';
COMMENT ON COLUMN @extschema@.coupon_task.issued IS 'null until the task has ended; coupon_task_progress tells it before';
COMMENT ON COLUMN @extschema@.coupon_task.created_by IS 'who was logged in; so are the others';
COMMENT ON COLUMN @extschema@.coupon_task.paused_at IS 'last; still there when it has been resumed';
COMMENT ON COLUMN @extschema@.coupon_task.attempts IS 'errors in a row';
COMMENT ON COLUMN @extschema@.coupon_task.retry_at IS 'after an error, not to be run before';
CREATE UNIQUE INDEX coupon_task_request ON @extschema@.coupon_task (shop_number, request_id)
    NULLS NOT DISTINCT WHERE request_id IS NOT NULL;
CREATE INDEX coupon_task_due ON @extschema@.coupon_task (send_at) WHERE state IN ('pending', 'in_progress');

CREATE TABLE @extschema@.coupon_task_batch (
    task_id    bigint NOT NULL,
    batch      int NOT NULL,
    first_line bigint NOT NULL,
    last_line  bigint NOT NULL,
    first_row  bigint NOT NULL,
    position   int NOT NULL DEFAULT 0,
    in_file_order bool NOT NULL DEFAULT false,
    lines      int NOT NULL,
    done_at    timestamptz,
    issued     int NOT NULL DEFAULT 0,
    failed     int NOT NULL DEFAULT 0,
    put_off    int NOT NULL DEFAULT 0,
    PRIMARY KEY (task_id, batch)
);
COMMENT ON TABLE @extschema@.coupon_task_batch IS 'lines of a section of a sealed file, handled in one transaction; gone when the task has succeeded';
COMMENT ON COLUMN @extschema@.coupon_task_batch.first_line IS 'of the section, in the stage table';
COMMENT ON COLUMN @extschema@.coupon_task_batch.last_line IS 'of the section, in the stage table';
COMMENT ON COLUMN @extschema@.coupon_task_batch.first_row IS 'number of the section''s first record in the file';
COMMENT ON COLUMN @extschema@.coupon_task_batch.position IS 'of its first line in the section, from 0';
COMMENT ON COLUMN @extschema@.coupon_task_batch.in_file_order IS 'position counts, in the order of the file, lines that were left when the stock got low; otherwise in the order of users';
COMMENT ON COLUMN @extschema@.coupon_task_batch.put_off IS 'lines in coupon_task_put_off';
CREATE INDEX coupon_task_batch_open ON @extschema@.coupon_task_batch (task_id, batch) WHERE done_at IS NULL;

CREATE TABLE @extschema@.coupon_task_put_off (
    task_id bigint NOT NULL,
    row_num bigint NOT NULL,
    batch   int NOT NULL,
    user_id bigint NOT NULL,
    PRIMARY KEY (task_id, row_num)
);
COMMENT ON TABLE @extschema@.coupon_task_put_off IS
    'lines of users who had a claim of the same template open; each is handled alone, when that has ended';

CREATE TABLE @extschema@.coupon_task_failure (
    task_id bigint NOT NULL,
    row_num bigint NOT NULL,
    user_id text,
    cause   text NOT NULL
            CHECK (cause IN ('already_received', 'out_of_stock', 'invalid_user_id', 'duplicate_line', 'refused')),
    detail  text,
    PRIMARY KEY (task_id, row_num)
);
COMMENT ON TABLE @extschema@.coupon_task_failure IS 'lines that did not get a coupon, with the cause';
COMMENT ON COLUMN @extschema@.coupon_task_failure.row_num IS 'number of the record in the file, from first_row of the task';
COMMENT ON COLUMN @extschema@.coupon_task_failure.user_id IS 'as it stands in the file, cut to 100 characters';

CREATE FUNCTION @extschema@.coupon_stage_guard() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_stage_guard';
COMMENT ON FUNCTION @extschema@.coupon_stage_guard() IS 'lets nothing into the stage table of a task whose file is sealed';

CREATE FUNCTION @extschema@.coupon_task_create(name text, template_id bigint, notify text[] DEFAULT '{}',
                                   first_row bigint DEFAULT 2, request_id text DEFAULT NULL)
    RETURNS TABLE (task_id bigint, stage regclass)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_task_create';
COMMENT ON FUNCTION @extschema@.coupon_task_create(text, bigint, text[], bigint, text) IS
    'makes a distribution and its stage table, to be filled by \copy (user_id) or INSERT';

CREATE FUNCTION @extschema@.coupon_task_submit(task_id bigint, send_at timestamptz DEFAULT NULL)
    RETURNS TABLE (code int, outcome text, lines bigint, warnings text[])
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_task_submit';
COMMENT ON FUNCTION @extschema@.coupon_task_submit(bigint, timestamptz) IS
    'seals the file of a task and has it run at send_at (null: now); also changes the time, and resumes a failed task; warnings: what coupon_task_check has to say of the template, the stock and the channels';

CREATE FUNCTION @extschema@.coupon_task_pause(task_id bigint)
    RETURNS TABLE (code int, outcome text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_task_pause';
COMMENT ON FUNCTION @extschema@.coupon_task_pause(bigint) IS
    'holds a task after the batch that is running, until coupon_task_resume';

CREATE FUNCTION @extschema@.coupon_task_resume(task_id bigint)
    RETURNS TABLE (code int, outcome text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_task_resume';
COMMENT ON FUNCTION @extschema@.coupon_task_resume(bigint) IS 'lets a paused task go on where it was';

CREATE FUNCTION @extschema@.coupon_task_check(task_id bigint)
    RETURNS TABLE (check_name text, verdict text, n bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 7
    AS 'MODULE_PATHNAME', 'coupon_task_check';
COMMENT ON FUNCTION @extschema@.coupon_task_check(bigint) IS
    'what running a task would do: its lines, those that would get nothing, the stock, the template at its time, the channels; changes nothing';

CREATE FUNCTION @extschema@.coupon_stage_user(user_id text) RETURNS bigint
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_stage_user';
COMMENT ON FUNCTION @extschema@.coupon_stage_user(text) IS 'a user id as it stands in a file, null: it is none; part of coupon_task_check';

CREATE FUNCTION @extschema@.coupon_task_causes()
    RETURNS TABLE (cause text, message_en text, message_zh text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
        SELECT * FROM (VALUES
            ('already_received', 'The user has this coupon already.', '用户已拥有该优惠券'),
            ('out_of_stock', 'No coupon was left.', '优惠券库存不足'),
            ('invalid_user_id', 'The line has no valid user id.', '用户编号无效'),
            ('duplicate_line', 'The user is in the file before.', '文件中用户重复'),
            ('refused', 'A rule of the shop refused the coupon.', '商家规则拒绝发放')) v (cause, message_en, message_zh);
    END;
COMMENT ON FUNCTION @extschema@.coupon_task_causes() IS 'the causes in coupon_task_failure, with texts to show';

CREATE FUNCTION @extschema@.coupon_task_clear(task_id bigint)
    RETURNS TABLE (code int, outcome text, lines bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_task_clear';
COMMENT ON FUNCTION @extschema@.coupon_task_clear(bigint) IS
    'removes what has been loaded into the stage of a task that is not sealed';

CREATE FUNCTION @extschema@.coupon_task_cancel(task_id bigint)
    RETURNS TABLE (code int, outcome text, issued bigint, failed bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_task_cancel';
COMMENT ON FUNCTION @extschema@.coupon_task_cancel(bigint) IS
    'ends a task after the batch that is running; what was issued stays issued';

CREATE FUNCTION @extschema@.coupon_task_rest(task_id bigint)
    RETURNS TABLE (row_num bigint, user_id text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_task_rest';
COMMENT ON FUNCTION @extschema@.coupon_task_rest(bigint) IS
    'lists the lines of a task that were not handled: after a cancel, those without a coupon and without a cause';

CREATE PROCEDURE @extschema@.coupon_task_run(task_id bigint)
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_task_run';
COMMENT ON PROCEDURE @extschema@.coupon_task_run(bigint) IS
    'runs a task now, in the foreground, with progress as notices; commits after each batch';

CREATE PROCEDURE @extschema@.coupon_task_run_due()
    LANGUAGE C AS 'MODULE_PATHNAME', 'coupon_task_run_due';
COMMENT ON PROCEDURE @extschema@.coupon_task_run_due() IS
    'runs what is due, unfinished or abandoned; safe to call from many places';

CREATE VIEW @extschema@.coupon_task_progress WITH (security_barrier) AS
SELECT t.id AS task_id, t.name, t.template_id, t.state, t.fail_reason, t.lines,
       n.issued + n.failed AS done, n.issued, n.failed, n.put_off,
       round(n.rate)::bigint AS lines_per_second,
       CASE WHEN t.state = 'in_progress' AND r.rate > 0
            THEN n.last_done + make_interval(secs => (t.lines - n.issued - n.failed) / r.rate) END
           AS estimated_end,
       t.send_at, t.started_at, t.finished_at, t.attempts, t.last_error,
       (SELECT jsonb_object_agg(c.cause, c.n) FROM (
            SELECT f.cause, count(*) AS n FROM @extschema@.coupon_task_failure f
            WHERE f.task_id = t.id GROUP BY f.cause) c) AS failed_by_cause,
       t.created_at, t.created_by, t.submitted_at, t.submitted_by, t.paused_at, t.paused_by, t.cancelled_by
FROM @extschema@.coupon_task t
CROSS JOIN LATERAL (
    SELECT COALESCE(t.issued, sum(b.issued), 0)::bigint AS issued,
           COALESCE(t.failed, sum(b.failed), 0)::bigint AS failed,
           COALESCE(sum(b.put_off), 0)::bigint AS put_off,
           max(b.done_at) AS last_done,
           CASE WHEN t.started_at IS NULL THEN NULL
                ELSE (COALESCE(t.issued, sum(b.issued)) + COALESCE(t.failed, sum(b.failed)))::float8
                     / nullif(extract(epoch FROM COALESCE(t.finished_at, max(b.done_at)) - t.started_at), 0)::float8
           END AS rate
    FROM @extschema@.coupon_task_batch b WHERE b.task_id = t.id) n
CROSS JOIN LATERAL (
    SELECT sum(l.handled) FILTER (WHERE l.place < l.n)::float8
           / nullif(extract(epoch FROM max(l.done_at) - min(l.done_at)), 0)::float8 AS rate
    FROM (SELECT b.issued + b.failed AS handled, b.done_at, count(*) OVER () AS n,
                 row_number() OVER (ORDER BY b.done_at DESC) AS place
          FROM (SELECT * FROM @extschema@.coupon_task_batch o
                WHERE o.task_id = t.id AND o.done_at IS NOT NULL
                ORDER BY o.done_at DESC LIMIT 20) b) l) r
WHERE @extschema@.coupon_shop_allowed(t.shop_number);
COMMENT ON VIEW @extschema@.coupon_task_progress IS
    'distributions: lines done, issued and failed, speed since the start, and when the rest will be done at the speed of the last batches';

-- Bound operators see the tasks of their shop.
ALTER TABLE @extschema@.coupon_task ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_task_shop ON @extschema@.coupon_task USING (@extschema@.coupon_shop_allowed(shop_number));
ALTER TABLE @extschema@.coupon_task_failure ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_task_failure_shop ON @extschema@.coupon_task_failure
    USING (EXISTS (SELECT FROM @extschema@.coupon_task t WHERE t.id = task_id));

CREATE VIEW @extschema@.coupon_stuck_tasks WITH (security_barrier) AS
SELECT 'task'::text AS kind, t.id, COALESCE(p.last_done, t.finished_at, LEAST(t.send_at, t.started_at)) AS since, t.state,
       t.attempts, COALESCE(t.last_error, t.fail_reason) AS last_error,
       CASE WHEN t.state = 'failed' THEN format('SELECT @extschema@.coupon_task_submit(%s)', t.id)
            ELSE format('CALL @extschema@.coupon_task_run(%s)', t.id) END AS repair
FROM @extschema@.coupon_task t
CROSS JOIN LATERAL (SELECT max(b.done_at) AS last_done FROM @extschema@.coupon_task_batch b WHERE b.task_id = t.id) p
WHERE t.state IN ('pending', 'in_progress', 'failed') AND @extschema@.coupon_shop_allowed(t.shop_number);
COMMENT ON VIEW @extschema@.coupon_stuck_tasks IS 'tasks that are not done; use coupon_stuck()';

CREATE FUNCTION @extschema@.coupon_stuck(older_than interval DEFAULT '5 minutes')
    RETURNS TABLE (kind text, id bigint, since timestamptz, state text, attempts int,
                   last_error text, repair text)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT s.kind, s.id, s.since, s.state, s.attempts, s.last_error, s.repair
        FROM (SELECT * FROM @extschema@.coupon_stuck_tasks UNION ALL SELECT * FROM @extschema@.coupon_stuck_notifications) s
        WHERE s.since <= statement_timestamp() - older_than
        ORDER BY s.since, s.id;
    END;
COMMENT ON FUNCTION @extschema@.coupon_stuck(interval) IS
    'lists what should have been done since then, why it is not, and the statement that repairs it';
