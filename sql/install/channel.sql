-- How, what and where to send: verbs

CREATE FUNCTION @extschema@.coupon_channel_set(channel text, endpoint text, secret text DEFAULT NULL,
                                   headers jsonb DEFAULT NULL, body_template text DEFAULT NULL,
                                   mail_from text DEFAULT NULL, username text DEFAULT NULL,
                                   password text DEFAULT NULL, batch_size int DEFAULT 1,
                                   max_in_flight int DEFAULT 64, timeout interval DEFAULT '10 s',
                                   enabled boolean DEFAULT true, require_tls boolean DEFAULT false,
                                   user_id_is_address boolean DEFAULT NULL,
                                   recipient_status int[] DEFAULT '{}',
                                   success_when jsonpath DEFAULT NULL,
                                   dead_recipients jsonpath DEFAULT NULL,
                                   retry_recipients jsonpath DEFAULT NULL,
                                   per_second int DEFAULT NULL, quiet_from time DEFAULT NULL,
                                   quiet_until time DEFAULT NULL, time_zone text DEFAULT NULL,
                                   quiet_reminders text DEFAULT 'skip')
    RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_channel_set';
COMMENT ON FUNCTION @extschema@.coupon_channel_set(text, text, text, jsonb, text, text, text, text, int, int, interval, boolean, boolean, boolean, int[], jsonpath, jsonpath, jsonpath, int, time, time, text, text) IS
    'sets how to send by a channel: the whole row, what is not given is none';

CREATE FUNCTION @extschema@.coupon_channel_enable(channel text, enabled boolean DEFAULT true)
    RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_channel_enable';
COMMENT ON FUNCTION @extschema@.coupon_channel_enable(text, boolean) IS
    'switches a channel on or off and leaves the rest as it is; notifications wait meanwhile';

CREATE FUNCTION @extschema@.coupon_message_set(kind text, channel text, subject text, body text)
    RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_message_set';
COMMENT ON FUNCTION @extschema@.coupon_message_set(text, text, text, text) IS
    'sets what is sent for a kind of event by a channel; two nulls: the built-in texts';

CREATE FUNCTION @extschema@.coupon_contact_set(user_id bigint, channel text, address text)
    RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_contact_set';
COMMENT ON FUNCTION @extschema@.coupon_contact_set(bigint, text, text) IS
    'sets where a user is reached by a channel; null: forget it';

CREATE FUNCTION @extschema@.coupon_contact_mute(user_id bigint, channel text DEFAULT NULL, muted boolean DEFAULT true)
    RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_contact_mute';
COMMENT ON FUNCTION @extschema@.coupon_contact_mute(bigint, text, boolean) IS
    'has a user get nothing more by a channel, null: by any; or again';

CREATE FUNCTION @extschema@.coupon_channel_test(channel text, address text)
    RETURNS TABLE (notification_id bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_channel_test';
COMMENT ON FUNCTION @extschema@.coupon_channel_test(text, text) IS
    'sends a test to an address, in the ordinary way; coupon_notification_history tells what became of it';

CREATE FUNCTION @extschema@.coupon_channel_preview(kind text, channel text, user_id bigint DEFAULT 1)
    RETURNS TABLE (endpoint text, headers text, body text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_channel_preview';
COMMENT ON FUNCTION @extschema@.coupon_channel_preview(text, text, bigint) IS
    'shows what a channel would send to a user, with a template that is made up, and sends nothing';

CREATE FUNCTION @extschema@.coupon_channel_secret() RETURNS text
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_channel_secret';
COMMENT ON FUNCTION @extschema@.coupon_channel_secret() IS 'makes a secret for coupon_channel_set';

CREATE FUNCTION @extschema@.coupon_notification_replay(id bigint DEFAULT NULL, channel text DEFAULT NULL)
    RETURNS TABLE (replayed bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'coupon_notification_replay';
COMMENT ON FUNCTION @extschema@.coupon_notification_replay(bigint, text) IS
    'queues notifications again that were given up: one, those of a channel, or all';

-- Bound operators and monitors see the notifications of their shop.  Whether there is a
-- binding at all is asked once per statement.
ALTER TABLE @extschema@.coupon_notification ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_notification_shop ON @extschema@.coupon_notification
    USING ((SELECT @extschema@.coupon_shop_allowed(NULL::bigint))
           OR EXISTS (SELECT FROM @extschema@.coupon_template t WHERE t.id = template_id));
ALTER TABLE @extschema@.coupon_notification_history ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_notification_history_shop ON @extschema@.coupon_notification_history
    USING ((SELECT @extschema@.coupon_shop_allowed(NULL::bigint))
           OR EXISTS (SELECT FROM @extschema@.coupon_template t WHERE t.id = template_id));
-- Contacts are those of all shops.
ALTER TABLE @extschema@.coupon_contact ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_contact_unbound ON @extschema@.coupon_contact USING ((SELECT @extschema@.coupon_shop_operated(NULL::bigint)));
ALTER TABLE @extschema@.coupon_mute ENABLE ROW LEVEL SECURITY;
CREATE POLICY coupon_mute_unbound ON @extschema@.coupon_mute USING ((SELECT @extschema@.coupon_shop_operated(NULL::bigint)));

CREATE VIEW @extschema@.coupon_stat_channel AS
SELECT c.channel, s.channel IS NOT NULL AS set_up, substring(s.endpoint FROM '^[^:]+://[^/?#]*') AS receiver,
       s.enabled, s.disabled_reason,
       q.waiting, q.leased, q.retrying, d.dead, q.oldest_due, h.delivered AS delivered_last_hour,
       h.late[1] AS late_p50, h.late[2] AS late_p99, h.late_max
FROM unnest(@extschema@.coupon_channel_names()) WITH ORDINALITY AS c (channel, n)
LEFT JOIN @extschema@.coupon_channel_state s ON s.channel = c.channel
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE o.leased_until IS NULL OR o.leased_until <= clock_timestamp()) AS waiting,
           count(*) FILTER (WHERE o.leased_until > clock_timestamp()) AS leased,
           count(*) FILTER (WHERE o.attempts > o.first_attempt AND o.last_error IS NOT NULL) AS retrying,
           min(o.due_at) AS oldest_due
    FROM @extschema@.coupon_notification o WHERE o.channel = c.channel) q
CROSS JOIN LATERAL (
    SELECT count(*) AS dead FROM @extschema@.coupon_notification_history o
    WHERE o.channel = c.channel AND o.state = 'dead') d
LEFT JOIN (
    SELECT o.channel, count(*) AS delivered, max(o.sent_at - o.due_at) AS late_max,
           percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY o.sent_at - o.due_at) AS late
    FROM @extschema@.coupon_notification_history o
    WHERE o.state = 'delivered' AND o.ended_at > statement_timestamp() - interval '1 hour'
    GROUP BY o.channel) h ON h.channel = c.channel
ORDER BY c.n;
COMMENT ON VIEW @extschema@.coupon_stat_channel IS
    'channels: notifications that wait, are being sent, were given up; and how late those of the last hour left';

CREATE VIEW @extschema@.coupon_stuck_notifications WITH (security_barrier) AS
-- A UNION ALL is no barrier by itself: conditions of the reader's would be asked within.
SELECT * FROM (
SELECT 'notification'::text AS kind, o.id, o.due_at AS since,
       CASE WHEN o.leased_until > clock_timestamp() THEN 'leased'
            WHEN o.attempts > o.first_attempt THEN 'retrying' ELSE 'waiting' END AS state,
       o.attempts, COALESCE(o.last_error,
           CASE WHEN c.channel IS NULL THEN format('channel %s is not set up', o.channel)
                WHEN NOT c.enabled THEN COALESCE(c.disabled_reason, format('channel %s is switched off', o.channel))
           END) AS last_error,
       CASE WHEN c.enabled THEN 'SELECT @extschema@.coupon_worker_wake()'
            WHEN c.channel IS NOT NULL THEN format('SELECT @extschema@.coupon_channel_enable(%L)', o.channel)
            ELSE format('SELECT @extschema@.coupon_channel_set(%L, %L)', o.channel, 'https://...') END AS repair
FROM @extschema@.coupon_notification o LEFT JOIN @extschema@.coupon_channel_state c ON c.channel = o.channel
WHERE (SELECT @extschema@.coupon_shop_allowed(NULL::bigint))
   OR EXISTS (SELECT FROM @extschema@.coupon_template t WHERE t.id = o.template_id AND @extschema@.coupon_shop_allowed(t.shop_number))
UNION ALL
SELECT 'notification', o.id, o.ended_at, o.state, o.attempts, o.last_error,
       format('SELECT * FROM @extschema@.coupon_notification_replay(%s)', o.id)
FROM @extschema@.coupon_notification_history o
WHERE o.state = 'dead'
  AND ((SELECT @extschema@.coupon_shop_allowed(NULL::bigint))
       OR EXISTS (SELECT FROM @extschema@.coupon_template t
                  WHERE t.id = o.template_id AND @extschema@.coupon_shop_allowed(t.shop_number)))
OFFSET 0) stuck;
COMMENT ON VIEW @extschema@.coupon_stuck_notifications IS 'notifications that are not delivered; use coupon_stuck()';
