-- How, what and where to send, and the outbox of notifications

-- Not in a dump, and so another one in each copy.
CREATE TABLE @extschema@.coupon_installation (id uuid NOT NULL);
COMMENT ON TABLE @extschema@.coupon_installation IS 'what tells this installation from one that its data was dumped from';
INSERT INTO @extschema@.coupon_installation VALUES (gen_random_uuid());

CREATE FUNCTION @extschema@.coupon_installation() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    BEGIN ATOMIC
        SELECT i.id || '/' || d.oid FROM @extschema@.coupon_installation i, pg_database d WHERE d.datname = current_database();
    END;
COMMENT ON FUNCTION @extschema@.coupon_installation() IS
    'names this installation and database: of a channel, where it was set; a restored one differs, and sends nothing until it is switched on';

CREATE TABLE @extschema@.coupon_channel (
    channel         text PRIMARY KEY CHECK (channel = ANY (@extschema@.coupon_channel_names())),
    endpoint        text NOT NULL,
    body_template   text,
    mail_from       text,
    username        text,
    batch_size      int NOT NULL DEFAULT 1 CHECK (batch_size BETWEEN 1 AND 1000),
    max_in_flight   int NOT NULL DEFAULT 64 CHECK (max_in_flight BETWEEN 1 AND 1024),
    timeout         interval NOT NULL DEFAULT '10 s' CHECK (timeout BETWEEN '100 ms' AND '10 min'),
    enabled         boolean NOT NULL DEFAULT true,
    require_tls     boolean NOT NULL DEFAULT false,
    user_id_is_address boolean NOT NULL DEFAULT false,
    recipient_status int[] NOT NULL DEFAULT '{}'
        CHECK (cardinality(recipient_status) <= 20 AND array_position(recipient_status, NULL) IS NULL
               AND 400 <= ALL (recipient_status) AND 599 >= ALL (recipient_status)),
    success_when    text CHECK (success_when IS NULL OR success_when::jsonpath IS NOT NULL),
    dead_recipients text CHECK (dead_recipients IS NULL OR dead_recipients::jsonpath IS NOT NULL),
    retry_recipients text CHECK (retry_recipients IS NULL OR retry_recipients::jsonpath IS NOT NULL),
    per_second      int CHECK (per_second BETWEEN 1 AND 100000),
    quiet_from      time,
    quiet_until     time,
    time_zone       text CHECK (time_zone IS NULL OR timezone(time_zone, timestamptz '2000-01-01 00:00+00') IS NOT NULL),
    quiet_reminders text NOT NULL DEFAULT 'skip' CHECK (quiet_reminders IN ('skip', 'before')),
    disabled_reason text,
    updated_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    installation    text NOT NULL DEFAULT @extschema@.coupon_installation(),
    CHECK (num_nulls(quiet_from, quiet_until, time_zone) IN (0, 3) AND quiet_from <> quiet_until)
);
COMMENT ON TABLE @extschema@.coupon_channel IS 'how to send: one row per channel, written by coupon_channel_set';
COMMENT ON COLUMN @extschema@.coupon_channel.endpoint IS 'URL: http, https, smtp or smtps';
COMMENT ON COLUMN @extschema@.coupon_channel.body_template IS 'body in the dialect of a gateway, with {placeholders}; null: Standard Webhooks';
COMMENT ON COLUMN @extschema@.coupon_channel.batch_size IS 'recipients in one request';
COMMENT ON COLUMN @extschema@.coupon_channel.max_in_flight IS 'requests that may wait for an answer at the same time';
COMMENT ON COLUMN @extschema@.coupon_channel.timeout IS 'for one request, from the connection to the end of the answer';
COMMENT ON COLUMN @extschema@.coupon_channel.require_tls IS 'of a mail server: nothing is sent to one that offers no TLS';
COMMENT ON COLUMN @extschema@.coupon_channel.user_id_is_address IS 'a user without a contact is reached by the user id; else not at all';
COMMENT ON COLUMN @extschema@.coupon_channel.recipient_status IS 'HTTP statuses that are about the recipient, not about the channel';
COMMENT ON COLUMN @extschema@.coupon_channel.success_when IS 'jsonpath that the body of an answer 2xx must fulfil; null: none';
COMMENT ON COLUMN @extschema@.coupon_channel.dead_recipients IS 'jsonpath to where the body of a success names recipients that do not exist: they are given up';
COMMENT ON COLUMN @extschema@.coupon_channel.retry_recipients IS 'jsonpath to where it names recipients that did not get it: they alone are tried again';
COMMENT ON COLUMN @extschema@.coupon_channel.per_second IS 'requests that may begin in a second; null: any number';
COMMENT ON COLUMN @extschema@.coupon_channel.quiet_from IS 'from this time of the day, in time_zone, until quiet_until announcements wait, and reminders are sent before or not, as quiet_reminders says';
COMMENT ON COLUMN @extschema@.coupon_channel.installation IS 'where it was set or switched on; a channel of another installation sends nothing';
COMMENT ON COLUMN @extschema@.coupon_channel.disabled_reason IS 'why the worker has switched the channel off; null: an administrator has';

CREATE VIEW @extschema@.coupon_channel_state AS
SELECT c.channel, c.endpoint, c.enabled AND NOT r.restored AS enabled,
       CASE WHEN r.restored THEN 'it comes from a dump or another server' ELSE c.disabled_reason END AS disabled_reason
FROM @extschema@.coupon_channel c
-- As coupon_installation(), which readers of a view may not call.
CROSS JOIN LATERAL (
    SELECT NOT EXISTS (SELECT FROM @extschema@.coupon_installation i, pg_database d
                       WHERE d.datname = current_database() AND c.installation = i.id || '/' || d.oid)) r (restored);
COMMENT ON VIEW @extschema@.coupon_channel_state IS 'channels: whether they send, and why not; for views and functions of ours';

CREATE TABLE @extschema@.coupon_message (
    kind    text CHECK (kind IN ('reminder', 'coupon', 'test')),
    channel text CHECK (channel = ANY (@extschema@.coupon_channel_names())),
    subject text NOT NULL CHECK (octet_length(subject) <= 1000),
    body    text NOT NULL CHECK (octet_length(body) <= 102400),
    PRIMARY KEY (kind, channel)
);
COMMENT ON TABLE @extschema@.coupon_message IS 'what to send: texts with {placeholders} for each kind of event, written by coupon_message_set';

CREATE TABLE @extschema@.coupon_contact (
    user_id bigint CHECK (user_id > 0),
    channel text CHECK (channel = ANY (@extschema@.coupon_channel_names())),
    address text NOT NULL CHECK (address <> '' AND octet_length(address) <= 2000),
    PRIMARY KEY (user_id, channel)
);
COMMENT ON TABLE @extschema@.coupon_contact IS 'where to send: a user without a row is addressed by the user id itself';

CREATE TABLE @extschema@.coupon_mute (
    user_id  bigint CHECK (user_id > 0),
    channel  text CHECK (channel = ANY (@extschema@.coupon_channel_names())),
    muted_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (user_id, channel)
);
COMMENT ON TABLE @extschema@.coupon_mute IS 'users who want nothing by a channel, written by coupon_contact_mute';

CREATE VIEW @extschema@.coupon_quiet_hours AS
SELECT c.channel, q.begins, q.ends, c.quiet_reminders
FROM @extschema@.coupon_channel c
CROSS JOIN LATERAL (
    SELECT timezone(c.time_zone, d.day + c.quiet_from) AS begins,
           timezone(c.time_zone, d.day + c.quiet_until + make_interval(days => (c.quiet_until < c.quiet_from)::int)) AS ends
    FROM (SELECT timezone(c.time_zone, clock_timestamp())::date + n AS day FROM generate_series(-1, 1) n) d) q
WHERE q.begins < q.ends AND q.ends > clock_timestamp();
COMMENT ON VIEW @extschema@.coupon_quiet_hours IS
    'when channels are quiet: now, or next; by the clock of their time zones';

CREATE FUNCTION @extschema@.coupon_notification_sane(channel text, kind text, user_ids bigint[]) RETURNS boolean
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_notification_sane';
COMMENT ON FUNCTION @extschema@.coupon_notification_sane(text, text, bigint[]) IS
    'the CHECK of coupon_notification: true, or an error that names the column and the rule';

-- The queue is thin: what is over moves to the history.  A lease touches no
-- indexed column, and finds room on the page.
CREATE TABLE @extschema@.coupon_notification (
    id            bigint PRIMARY KEY DEFAULT @extschema@.coupon_next_id(),
    channel       text NOT NULL,
    kind          text NOT NULL,
    template_id   bigint,
    minutes       smallint,
    task_id       bigint,
    user_ids      bigint[] NOT NULL,
    address       text,
    due_at        timestamptz NOT NULL,
    next_at       timestamptz NOT NULL,
    attempts      int NOT NULL DEFAULT 0,
    first_attempt int NOT NULL DEFAULT 0,
    leased_until  timestamptz,
    last_status   int,
    last_error    text,
    last_answer   text,
    lane          smallint NOT NULL DEFAULT 0 CHECK (lane BETWEEN 0 AND 127),
    CONSTRAINT coupon_notification_sane CHECK (@extschema@.coupon_notification_sane(channel, kind, user_ids))
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @extschema@.coupon_notification IS
    'durable outbox of notifications: one row per request, which keeps its id and recipients over all attempts';
COMMENT ON COLUMN @extschema@.coupon_notification.id IS 'webhook-id of the request';
COMMENT ON COLUMN @extschema@.coupon_notification.minutes IS 'of a reminder: before the start';
COMMENT ON COLUMN @extschema@.coupon_notification.address IS 'of a test; others look into coupon_contact when they are sent';
COMMENT ON COLUMN @extschema@.coupon_notification.due_at IS 'when it should have left';
COMMENT ON COLUMN @extschema@.coupon_notification.next_at IS 'not to be sent before';
COMMENT ON COLUMN @extschema@.coupon_notification.attempts IS 'made so far; an answer counts only for the attempt that it belongs to';
COMMENT ON COLUMN @extschema@.coupon_notification.first_attempt IS 'attempts before the last replay';
COMMENT ON COLUMN @extschema@.coupon_notification.leased_until IS 'somebody is sending it; past: he did not come back';
COMMENT ON COLUMN @extschema@.coupon_notification.last_answer IS 'what the receiver said at the last attempt, the first 2 kB, without what is secret of the channel';
COMMENT ON COLUMN @extschema@.coupon_notification.lane IS 'the shop''s number modulo 64, and 64 more for what has no moment: lanes take turns';
-- Rows come and go: what would be won by deduplication is less than it costs.
CREATE INDEX coupon_notification_next ON @extschema@.coupon_notification (channel, lane, next_at)
    WITH (deduplicate_items = off);

CREATE TABLE @extschema@.coupon_notification_history (
    id           bigint PRIMARY KEY,
    channel      text NOT NULL,
    kind         text NOT NULL,
    template_id  bigint,
    minutes      smallint,
    task_id      bigint,
    user_ids     bigint[] NOT NULL,
    address      text,
    state        text NOT NULL CHECK (state IN ('delivered', 'dead', 'missed', 'muted')),
    due_at       timestamptz NOT NULL,
    sent_at      timestamptz,
    ended_at     timestamptz NOT NULL,
    attempts     int NOT NULL,
    last_status  int,
    last_error   text,
    last_answer  text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
COMMENT ON TABLE @extschema@.coupon_notification_history IS 'notifications that are over: delivered, dead (given up, see coupon_notification_replay), missed (the sale had begun, or the channel was quiet), or muted (the user wants nothing)';
COMMENT ON COLUMN @extschema@.coupon_notification_history.sent_at IS 'begin of the last attempt';
COMMENT ON COLUMN @extschema@.coupon_notification_history.last_answer IS 'what the receiver said, as in coupon_notification: of what failed, and where the channel judges answers';
CREATE INDEX coupon_notification_dead ON @extschema@.coupon_notification_history (channel, id) WHERE state = 'dead';
-- What is over lies in the order in which it ended.
CREATE INDEX coupon_notification_history_ended ON @extschema@.coupon_notification_history
    USING brin (ended_at) WITH (pages_per_range = 32, autosummarize = on);
