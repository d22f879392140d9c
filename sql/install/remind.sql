-- Reminders
--
-- One table, not partitioned.  By template it would take DDL that stops every
-- writer; by time, a start that is moved would move its rows; by user, each
-- tick would probe 32 indexes for each sale.  What is over is deleted in
-- batches, found by index (coupon_purge).

CREATE FUNCTION @extschema@.coupon_remind_next(bitmap @extschema@.remind_bitmap, fired @extschema@.remind_bitmap) RETURNS smallint
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_remind_next';
COMMENT ON FUNCTION @extschema@.coupon_remind_next(@extschema@.remind_bitmap, @extschema@.remind_bitmap) IS
    'how many minutes before the start the next reminder fires; null: none is left';

CREATE FUNCTION @extschema@.coupon_remind_sane(user_id bigint, bitmap @extschema@.remind_bitmap, fired @extschema@.remind_bitmap) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_remind_sane';
COMMENT ON FUNCTION @extschema@.coupon_remind_sane(bigint, @extschema@.remind_bitmap, @extschema@.remind_bitmap) IS
    'the CHECK of coupon_remind: true, or an error that names the column and the rule';

-- next_minutes is the table's own, so that rows of a restore, of logical
-- replication and of hand-written SQL are right too.  Marking a row as fired
-- changes it, so no update of that kind is HOT, and room on the page would not
-- help.
CREATE TABLE @extschema@.coupon_remind (
    user_id       bigint,
    template_id   bigint,
    bitmap        @extschema@.remind_bitmap NOT NULL,
    fired         @extschema@.remind_bitmap NOT NULL DEFAULT '{}'::@extschema@.remind_bitmap,
    next_minutes  smallint GENERATED ALWAYS AS (@extschema@.coupon_remind_next(bitmap, fired)) STORED,
    notifications bigint[],
    PRIMARY KEY (user_id, template_id),
    CONSTRAINT coupon_remind_sane CHECK (@extschema@.coupon_remind_sane(user_id, bitmap, fired))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @extschema@.coupon_remind IS 'one row per user and sale: of what is to be reminded, and of what has been';
COMMENT ON COLUMN @extschema@.coupon_remind.bitmap IS 'all that the user wants';
COMMENT ON COLUMN @extschema@.coupon_remind.fired IS 'what has gone into the outbox, or was missed';
COMMENT ON COLUMN @extschema@.coupon_remind.next_minutes IS 'the farthest that has not fired, in minutes before the start; null: none is left';
COMMENT ON COLUMN @extschema@.coupon_remind.notifications IS
    'ids in the outbox of what has fired: farthest first, then by channel';
CREATE INDEX coupon_remind_next ON @extschema@.coupon_remind (template_id, next_minutes);

-- Which sales are near.
CREATE INDEX coupon_template_receive_start ON @extschema@.coupon_template (receive_start);

CREATE VIEW @extschema@.coupon_reminders WITH (security_barrier) AS
SELECT r.user_id, r.template_id, t.shop_number, t.name, t.status, t.receive_start,
       r.bitmap, r.fired,
       t.receive_start - make_interval(mins => r.next_minutes) AS next_at,
       r.notifications
FROM @extschema@.coupon_remind r LEFT JOIN @extschema@.coupon_template t ON t.id = r.template_id
WHERE @extschema@.coupon_shop_allowed(t.shop_number);
COMMENT ON VIEW @extschema@.coupon_reminders IS 'coupon_remind with the template and the time of what comes next';

CREATE FUNCTION @extschema@.coupon_remind_create(template_id bigint, user_id bigint, channel text, minutes int)
    RETURNS TABLE (code int, outcome text, bitmap @extschema@.remind_bitmap, remind_at timestamptz)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_remind_create';
COMMENT ON FUNCTION @extschema@.coupon_remind_create(bigint, bigint, text, int) IS
    'reminds a user so many minutes before a sale begins';

CREATE FUNCTION @extschema@.coupon_remind_cancel(template_id bigint, user_id bigint, channel text, minutes int)
    RETURNS TABLE (code int, outcome text, bitmap @extschema@.remind_bitmap, remind_at timestamptz)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_remind_cancel';
COMMENT ON FUNCTION @extschema@.coupon_remind_cancel(bigint, bigint, text, int) IS
    'takes a reminder back, also one that is due and not being sent yet';

CREATE TYPE @extschema@.coupon_remind_page AS (
    template_id bigint, shop_number bigint, name text, category text, status text,
    receive_start timestamptz, receive_end timestamptz, bitmap @extschema@.remind_bitmap,
    pending @extschema@.remind_bitmap, next_at timestamptz, image_url text
);
COMMENT ON TYPE @extschema@.coupon_remind_page IS 'a row of coupon_remind_list';

CREATE FUNCTION @extschema@.coupon_remind_list(user_id bigint, page_size int DEFAULT 20, before_id bigint DEFAULT NULL)
    RETURNS SETOF @extschema@.coupon_remind_page
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20
    AS 'MODULE_PATHNAME', 'coupon_remind_list';
COMMENT ON FUNCTION @extschema@.coupon_remind_list(bigint, int, bigint) IS
    'the reminders of a user, newest sale first, all that a page of them shows';

CREATE FUNCTION @extschema@.coupon_remind_tick(OUT fired bigint, OUT missed bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_remind_tick';
COMMENT ON FUNCTION @extschema@.coupon_remind_tick() IS
    'puts all reminders that are due into the outbox, as the worker does by itself';
