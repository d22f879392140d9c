-- The demo's reminders: due in a moment, later, and taken back.  Variables:
-- http, smtp (ports of the receivers), secret.
\o /dev/null
SELECT coupon_channel_set('sms', 'http://127.0.0.1:' || :'http' || '/sms', secret => :'secret', user_id_is_address => true);
SELECT coupon_channel_set('app', 'http://127.0.0.1:' || :'http' || '/app', secret => :'secret', batch_size => 100);
SELECT coupon_channel_set('email', 'smtp://127.0.0.1:' || :'smtp', mail_from => 'shop@example.com');
SELECT coupon_contact_set(n, 'email', format('user%s@example.com', n)) FROM generate_series(1, 11) n;

INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
VALUES (5, 'Noon sale', 1000, 10, 'published', clock_timestamp() + interval '5 min 5 s'),
       (6, 'Evening sale', 1000, 20, 'published', clock_timestamp() + interval '10 min 8 s'),
       (7, 'Weekend sale', 1000, 30, 'published', clock_timestamp() + interval '1 day');

CREATE TABLE demo_asked (what text, code int, sale bigint, channel text, minutes int, users bigint);
INSERT INTO demo_asked
SELECT 'asked for', r.code, a.sale, a.channel, a.minutes, count(*)
FROM (VALUES (5, 'sms', 5, 21), (6, 'email', 10, 11), (6, 'sms', 5, 11), (7, 'app', 30, 1000))
         AS a (sale, channel, minutes, users),
     generate_series(1, a.users) AS n,
     coupon_remind_create(a.sale, n, a.channel, a.minutes) AS r
GROUP BY r.code, a.sale, a.channel, a.minutes;
-- Who came last thinks better of it.
INSERT INTO demo_asked
SELECT 'cancelled by user ' || c.user_id, r.code, c.sale, c.channel, c.minutes, 1
FROM (VALUES (5, 'sms', 5, 21), (6, 'email', 10, 11)) AS c (sale, channel, minutes, user_id),
     coupon_remind_cancel(c.sale, c.user_id, c.channel, c.minutes) AS r;
-- A sale that is moved takes its reminders along: one row is changed.
UPDATE coupon_template SET receive_start = clock_timestamp() + interval '30 min 8 s' WHERE id = 7;
\o

SELECT t.name AS sale, to_char(t.receive_start, 'HH24:MI:SS') AS starts, a.what, a.channel, a.minutes AS minutes_before, a.users,
       to_char(t.receive_start - make_interval(mins => a.minutes), 'HH24:MI:SS') AS due
FROM demo_asked a JOIN coupon_template t ON t.id = a.sale
ORDER BY a.sale, a.minutes DESC, a.what;
DO $$
BEGIN
    IF EXISTS (SELECT FROM demo_asked WHERE code <> 0) THEN
        RAISE EXCEPTION 'a reminder was refused: %', (SELECT min(a::text) FROM demo_asked a WHERE code <> 0);
    END IF;
END
$$;
