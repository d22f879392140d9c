-- Batch distribution: only as much as coupon_purge and pg_cron need to be
-- tested with.

CREATE TABLE coupon_task (
    id          bigint PRIMARY KEY DEFAULT coupon_next_id(),
    template_id bigint NOT NULL,
    state       text NOT NULL DEFAULT 'draft'
                CHECK (state IN ('draft', 'pending', 'in_progress', 'success', 'failed', 'cancelled')),
    finished_at timestamptz
);
COMMENT ON TABLE coupon_task IS 'batch distributions';

CREATE TABLE coupon_task_failure (
    task_id bigint NOT NULL,
    row_num bigint NOT NULL,
    user_id text,
    cause   text,
    detail  text,
    PRIMARY KEY (task_id, row_num)
);
COMMENT ON TABLE coupon_task_failure IS 'lines that did not get a coupon';

CREATE TABLE coupon_task_put_off (
    task_id bigint NOT NULL,
    row_num bigint NOT NULL,
    PRIMARY KEY (task_id, row_num)
);
COMMENT ON TABLE coupon_task_put_off IS 'lines to be handled later';

CREATE TABLE coupon_task_batch (
    task_id bigint NOT NULL,
    batch   bigint NOT NULL,
    PRIMARY KEY (task_id, batch)
);
COMMENT ON TABLE coupon_task_batch IS 'batches of a task';

CREATE PROCEDURE coupon_task_run_due()
    LANGUAGE plpgsql
    AS $$
BEGIN
END
$$;
COMMENT ON PROCEDURE coupon_task_run_due() IS 'runs tasks that are due';

