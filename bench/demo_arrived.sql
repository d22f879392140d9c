-- The demo's reminders as the receivers saw them, beside the books.
CREATE TEMP TABLE received (line jsonb);
\copy received FROM 'received.jsonl' WITH (FORMAT csv, DELIMITER E'\x02', QUOTE E'\x01')
CREATE TEMP TABLE arrived AS
SELECT (r.line->>'id')::bigint AS id, r.line->>'via' AS via, to_timestamp((r.line->>'at')::float8) AS at,
       a.address, regexp_replace(a.address, '^user(\d+)@example\.com$', '\1')::bigint AS user_id
FROM received r, jsonb_array_elements_text(r.line->'to') AS a (address);

SELECT t.name AS sale, h.channel, a.via, h.minutes AS minutes_before, to_char(h.due_at, 'HH24:MI:SS') AS due,
       count(*) AS users, count(DISTINCT h.id) AS messages,
       round(1000 * extract(epoch FROM min(a.at) - min(h.due_at))) || ' ms' AS first_late_by,
       round(1000 * extract(epoch FROM max(a.at) - min(h.due_at))) || ' ms' AS last_late_by
FROM arrived a JOIN coupon_notification_history h ON h.id = a.id JOIN coupon_template t ON t.id = h.template_id
GROUP BY t.id, t.name, h.channel, a.via, h.minutes, h.due_at ORDER BY h.due_at, t.id;

\echo 'Nothing arrived for these:'
SELECT t.name AS sale, a.channel, a.minutes AS minutes_before,
       CASE WHEN a.what LIKE 'cancelled%' THEN a.what ELSE 'due later, at ' || to_char(t.receive_start - make_interval(mins => a.minutes), 'HH24:MI:SS') END AS why,
       a.users, arrived.n AS arrived
FROM demo_asked a JOIN coupon_template t ON t.id = a.sale
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM arrived r JOIN coupon_notification_history h ON h.id = r.id
    WHERE h.template_id = a.sale AND h.channel = a.channel AND h.minutes = a.minutes
      AND (a.what NOT LIKE 'cancelled%' OR r.user_id = split_part(a.what, ' ', 4)::bigint)) arrived
WHERE a.what LIKE 'cancelled%' OR (a.sale, a.channel) = (6, 'sms')
ORDER BY a.sale, a.minutes DESC;

\echo '== Proof that each reminder that was due arrived once, and none that was taken back'
CREATE TEMP TABLE proof AS
SELECT (SELECT count(*) FROM arrived) = 20 + 10 + 1000 AS none_lost,
       NOT EXISTS (SELECT FROM arrived GROUP BY id, user_id HAVING count(*) > 1) AS none_twice,
       NOT EXISTS (SELECT FROM arrived a JOIN coupon_notification_history h ON h.id = a.id
                   WHERE (a.user_id, h.template_id) IN ((21, 5), (11, 6))) AS no_cancelled,
       NOT EXISTS (SELECT FROM arrived a JOIN coupon_notification_history h ON h.id = a.id
                   WHERE a.at < h.due_at) AS none_early,
       NOT EXISTS (SELECT FROM coupon_notification)
           AND (SELECT sum(cardinality(user_ids)) FROM coupon_notification_history WHERE state = 'delivered') =
               (SELECT count(*) FROM arrived) AS books_agree,
       (SELECT count(*) FROM coupon_reminders WHERE next_at IS NOT NULL) = 11 AS later_ones_wait;
TABLE proof;
DO $$
BEGIN
    IF EXISTS (SELECT FROM proof p WHERE strpos(p::text, 'f') > 0) THEN
        RAISE EXCEPTION 'what the receivers had is not what it should be';
    END IF;
END
$$;
