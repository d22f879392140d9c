-- How, what and where to push: what is accepted, what is sent, who may do what.
SET client_min_messages = warning;
\pset format unaligned
CREATE FUNCTION attempt(statement text, OUT state text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    message := 'accepted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;

-- Another implementation of the signature, proven by a vector of the Standard
-- Webhooks libraries.
CREATE FUNCTION xor_pad(key bytea, pad int) RETURNS bytea LANGUAGE sql AS $$
    SELECT string_agg(set_byte('\x00', 0, CASE WHEN i < length(key) THEN get_byte(key, i) ELSE 0 END # pad), '' ORDER BY i)
    FROM generate_series(0, 63) i $$;
CREATE FUNCTION signature(secret text, id text, at text, body text) RETURNS text LANGUAGE sql AS $$
    SELECT 'v1,' || encode(sha256(xor_pad(key, 92) || sha256(xor_pad(key, 54) || convert_to(id || '.' || at || '.' || body, 'UTF8'))), 'base64')
    FROM decode(substr(secret, 7), 'base64') AS key $$;
SELECT signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'msg_p5jXN8AQM9LWM0D4loKWxJek', '1614265330', '{"test": 2432232314}')
     = 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=' AS "as published";
CREATE FUNCTION header(headers text, name text) RETURNS text LANGUAGE sql AS $$
    SELECT (regexp_match(headers, '(?n)^' || name || ': (.*)$'))[1] $$;

-- Standard Webhooks
\set one 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
\set two 'whsec_plJ3nmyCDGBKInavdOK15jslqR0bY2Rl'
SELECT coupon_channel_set('sms', 'HTTPS://gateway.example.com:8443/send?x=1@2', secret => :'one' || '  ' || :'two',
                          headers => '{"Authorization": "Bearer secret", "X-Shop": "7"}');
SELECT endpoint, batch_size, max_in_flight, timeout, enabled FROM coupon_channel WHERE channel = 'sms';
TABLE coupon_secret ORDER BY kind;
SELECT coupon_contact_set(5, 'sms', '+86 "5"\');
SELECT * FROM coupon_channel_preview('reminder', 'sms', 5) \gset sms_
SELECT :'sms_endpoint', regexp_replace(:'sms_headers', '(?n)((webhook-id|webhook-timestamp): )\d+$|v1,\S+', '\1…', 'g') AS headers;
SELECT header(:'sms_headers', 'webhook-signature') = concat_ws(' ', signature(:'one', id, at, :'sms_body'), signature(:'two', id, at, :'sms_body')) AS signed,
       at::bigint - extract(epoch FROM now()) BETWEEN -3600 AND 3600 AS in_time
FROM header(:'sms_headers', 'webhook-id') AS id, header(:'sms_headers', 'webhook-timestamp') AS at;
SELECT b ->> 'type' AS type, (b ->> 'timestamp')::timestamptz - now() BETWEEN '-1 hour' AND '1 hour' AS in_time,
       b #>> '{data,id}' = header(:'sms_headers', 'webhook-id') AS id,
       (b #>> '{data,start}')::timestamptz - date_trunc('minute', now()) BETWEEN '9 min' AND '70 min' AS start,
       (b -> 'data') - '{id,start,body}'::text[] AS data
FROM CAST(:'sms_body' AS jsonb) AS b;
-- {start} is told in the time zone of the session
BEGIN;
SET LOCAL TimeZone = 'Asia/Shanghai';
SELECT b #>> '{data,body}' = 'Sample starts at ' || to_char((b #>> '{data,start}')::timestamptz, 'YYYY-MM-DD HH24:MI TZ') || ', in 10 minutes.' AS body
FROM coupon_channel_preview('reminder', 'sms', 5) p, CAST(p.body AS jsonb) AS b;
SET LOCAL TimeZone = 'America/Sao_Paulo';
SELECT b #>> '{data,body}' = 'Sample starts at ' || to_char((b #>> '{data,start}')::timestamptz, 'YYYY-MM-DD HH24:MI TZ') || ', in 10 minutes.' AS body
FROM coupon_channel_preview('reminder', 'sms', 5) p, CAST(p.body AS jsonb) AS b;
ROLLBACK;
SELECT b ->> 'type' AS type, regexp_replace(((b -> 'data') - 'id')::text, '\d{10,}', '…') AS data
FROM unnest('{coupon,test}'::text[]) AS kind, coupon_channel_preview(kind, 'sms', 6) p, CAST(p.body AS jsonb) AS b;
-- without a secret nothing is signed
SELECT coupon_channel_set('sms', 'http://gateway.example.com');
SELECT regexp_replace(headers, '\d{10,}', '…', 'g') FROM coupon_channel_preview('test', 'sms');
TABLE coupon_secret;
SELECT s ~ '^whsec_[A-Za-z0-9+/]{43}=$' AS shape, s <> coupon_channel_secret() AS another FROM coupon_channel_secret() AS s;

-- Texts: whatever they hold, the body stays JSON
SELECT coupon_message_set('reminder', 'sms', '{name}! {not-one} {}{{id}}', E'"{user_id}" \\ {address}\n\ttab\u0001 {"a": {name}} ünïcode 优惠券 {start');
SELECT b #>> '{data,subject}' ~ '^Sample! \{not-one\} \{\}\{\d+\}$' AS subject, b #>> '{data,body}' AS body
FROM coupon_channel_preview('reminder', 'sms', 5) p, CAST(p.body AS jsonb) AS b;
SELECT coupon_message_set('reminder', 'sms', NULL, NULL);
SELECT count(*) FROM coupon_message;

-- The dialect of a gateway: JSON, a form, anything else
SELECT coupon_channel_set('app', 'https://gw.example.com/json', username => 'u', password => 'p',
    body_template => '{"to": "{address}", "all": {addresses}, "list": {recipients}, "t": "{body}", "n": "{name}", "x": {"id": "{id}"}, "m": "{minutes}{task_id}{template_id}{kind}{channel}{user_id}", "at": "{start}"}');
SELECT coupon_contact_set(5, 'app', 'a"b\ä&=+ %');
SELECT regexp_replace(headers, '\d{10,}', '…', 'g') AS headers, (b - 'x') - 'at' - 't' AS body,
       b #>> '{x,id}' = header(p.headers, 'Idempotency-Key') AS id, b ->> 'at' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:00Z$' AS at
FROM coupon_channel_preview('reminder', 'app', 5) p, CAST(p.body AS jsonb) AS b;
-- XML: for text and attributes
SELECT coupon_channel_set('app', 'https://gw.example.com/token-4711?key=1', headers => '{"Content-Type": "application/soap+xml; charset=utf-8"}',
    body_template => '<m to="{address}"><t>{name}</t><l>{addresses}</l></m>');
SELECT coupon_contact_set(6, 'app', E'<a href="x">&''b');
SELECT p.endpoint, p.body FROM coupon_channel_preview('reminder', 'app', 6) p;
SELECT coupon_channel_set('app', 'https://gw.example.com/form', require_tls => true);
SELECT coupon_channel_set('app', 'https://gw.example.com/form', require_tls => NULL);
SELECT coupon_channel_set('app', 'https://gw.example.com/form', secret => :'one', headers => '{"content-type": "application/x-www-form-urlencoded"}',
    body_template => 'to={address}&all={addresses}&list={recipients}&text={body}');
SELECT regexp_replace(headers, '\d{10,}|v1,\S+', '…', 'g') AS headers, regexp_replace(body, '\d{10,}', '…', 'g') AS body,
       header(headers, 'webhook-signature') = signature(:'one', header(headers, 'webhook-id'), header(headers, 'webhook-timestamp'), body) AS signed
FROM coupon_channel_preview('test', 'app', 5);
SELECT coupon_channel_set('app', 'https://gw.example.com/xml', headers => '{"Content-Type": "text/plain"}', body_template => '{address} {addresses} {recipients} {subject}');
SELECT body FROM coupon_channel_preview('coupon', 'app', 5);
SELECT coupon_channel_set('app', 'https://gw.example.com/', headers => '{"Content-Type": "application/vnd.x+JSON; charset=utf-8"}', body_template => '{"a": "{address}"}');
SELECT body FROM coupon_channel_preview('coupon', 'app', 5);

-- Mail
SELECT coupon_channel_set('email', 'SMTP://mail.example.com:587', mail_from => 'shop@example.com', username => 'u:v', password => '');
SELECT coupon_contact_set(5, 'email', 'five@example.org');
SELECT endpoint, regexp_replace(regexp_replace(headers, '(?n)^Date: .*$', 'Date: …'), '<\d+@', '<…@') AS headers,
       to_timestamp(header(headers, 'Date'), 'Dy, DD Mon YYYY HH24:MI:SS') AT TIME ZONE current_setting('TimeZone') AT TIME ZONE 'UTC'
           - now() BETWEEN '-1 hour' AND '1 hour' AS in_time,
       convert_from(decode(body, 'base64'), 'UTF8') ~ 'This is a test of channel email. Notification \d+\.' AS text
FROM coupon_channel_preview('test', 'email', 5);
-- a subject that is long and not ASCII; a text of several lines
SELECT coupon_message_set('reminder', 'email', repeat('优惠券 {name} ', 12), E'first\nsecond\r\nthird\rfourth ' || repeat('ü', 200));
SELECT bool_and(length(line) <= 76) AS short,
       convert_from(string_agg(decode(substr(line, 11, length(line) - 12), 'base64'), '' ORDER BY n), 'UTF8') = repeat('优惠券 Sample ', 12) AS subject,
       bool_and(convert_from(decode(substr(line, 11, length(line) - 12), 'base64'), 'UTF8') <> '') AS whole_characters
FROM coupon_channel_preview('reminder', 'email', 5) p,
     regexp_matches(p.headers, '=\?UTF-8\?B\?[^?]*\?=', 'g') WITH ORDINALITY AS m (word, n), LATERAL (SELECT word[1]) AS l (line);
SELECT bool_and(line ~ '^(Subject:)? =\?UTF-8\?B\?[A-Za-z0-9+/=]+\?=$') AS folded, count(*) > 3 AS several
FROM coupon_channel_preview('reminder', 'email', 5) p, regexp_split_to_table(p.headers, '\n') AS line WHERE line LIKE '%=?%';
SELECT max(length(line)) FROM coupon_channel_preview('reminder', 'email', 5) p, regexp_split_to_table(p.body, '\n') AS line;
SELECT convert_from(decode(body, 'base64'), 'UTF8') = E'first\r\nsecond\r\nthird\r\nfourth ' || repeat('ü', 200) AS text FROM coupon_channel_preview('reminder', 'email', 5);
-- who writes tables by hand can add no header either; an address that is none is not told to a server
UPDATE coupon_message SET subject = E'x\r\nBcc: evil@example.com\r\n\r\nbody' WHERE channel = 'email';
UPDATE coupon_contact SET address = E'a@example.org>\r\nBcc: <evil@example.com' WHERE channel = 'email';
SELECT header(headers, 'Subject') AS subject, header(headers, 'To') AS "to", header(headers, 'Bcc') AS bcc FROM coupon_channel_preview('reminder', 'email', 5);
UPDATE coupon_message SET subject = '=?UTF-8?B?eA==?=' WHERE channel = 'email';
SELECT header(headers, 'Subject') AS subject FROM coupon_channel_preview('reminder', 'email', 5);
UPDATE coupon_channel SET mail_from = E'a@b\r\nBcc: c@d' WHERE channel = 'email';
SELECT coupon_channel_preview('reminder', 'email', 5);
UPDATE coupon_secret SET value = '{"X": "a\r\nb"}' WHERE kind = 'channel_headers' AND name = 'app';
SELECT coupon_channel_preview('reminder', 'app', 5);

-- Bad input: the right error each time, and nothing changed
CREATE TEMP TABLE before AS SELECT * FROM coupon_channel;
CREATE TEMP TABLE secrets_before AS SELECT * FROM coupon_secret;
\pset tuples_only on
SELECT left(a, 90) AS arguments, b.state, left(b.message, 120), b.detail, left(b.hint, 100)
FROM unnest(ARRAY[
    $$'fax', 'http://h'$$, $$NULL, 'http://h'$$, $$'SMS', 'http://h'$$, $$'sms', NULL$$, $$'sms', ''$$, $$'sms', 'gateway.example.com'$$,
    $$'sms', 'ftp://h'$$, $$'sms', 'file:///etc/passwd'$$, $$'sms', 'http:/h'$$, $$'sms', 'http://'$$, $$'sms', 'http:///x'$$, $$'sms', 'http://?x'$$,
    $$'sms', 'http://:80/'$$, $$'sms', 'http://h:'$$, $$'sms', 'http://h:0'$$, $$'sms', 'http://h:65536'$$, $$'sms', 'http://h:8x'$$,
    $$'sms', 'http://[]/'$$, $$'sms', 'http://[::1'$$, $$'sms', 'http://[::1]x'$$,
    $$'sms', 'http://u:p@h/'$$, $$'sms', 'http://u@h'$$, $$'sms', ' http://h'$$, $$'sms', 'http://h/a b'$$, $$'sms', E'http://h/\n'$$, $$'sms', 'http://h\@x'$$, $$'sms', 'http://hä'$$,
    $$'sms', 'http://h/' || repeat('x', 2000)$$,
    $$'sms', 'http://h', secret => ''$$, $$'sms', 'http://h', secret => '  '$$, $$'sms', 'http://h', secret => 'MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'$$,
    $$'sms', 'http://h', secret => 'whsec_'$$, $$'sms', 'http://h', secret => 'whsec_!!!!'$$, $$'sms', 'http://h', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS'$$,
    $$'sms', 'http://h', secret => 'whsec_' || encode(repeat('x', 23)::bytea, 'base64')$$, $$'sms', 'http://h', secret => 'whsec_' || translate(encode(repeat('x', 65)::bytea, 'base64'), E'\n', '')$$,
    $$'sms', 'http://h', secret => repeat('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw ', 11)$$, $$'sms', 'http://h', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'$$,
    $$'sms', 'http://h', headers => '[]'$$, $$'sms', 'http://h', headers => '"x"'$$, $$'sms', 'http://h', headers => '{"a": 1}'$$, $$'sms', 'http://h', headers => '{"a": null}'$$, $$'sms', 'http://h', headers => '{"a": {"b": "c"}}'$$,
    $$'sms', 'http://h', headers => '{"": "x"}'$$, $$'sms', 'http://h', headers => '{"a b": "x"}'$$, $$'sms', 'http://h', headers => '{"a:": "x"}'$$, $$'sms', 'http://h', headers => '{"ä": "x"}'$$,
    $$'sms', 'http://h', headers => '{"a\r\nb": "x"}'$$, $$'sms', 'http://h', headers => '{"a": "x\r\ny"}'$$, $$'sms', 'http://h', headers => '{"a": " "}'$$, $$'sms', 'http://h', headers => '{"a": "x", "A": "y"}'$$,
    $$'sms', 'http://h', headers => '{"content-LENGTH": "5"}'$$, $$'sms', 'http://h', headers => '{"Host": "x"}'$$, $$'sms', 'http://h', headers => '{"Transfer-Encoding": "chunked"}'$$, $$'sms', 'http://h', headers => '{"Connection": "close"}'$$,
    $$'sms', 'http://h', headers => '{"Expect": "x"}'$$, $$'sms', 'http://h', headers => '{"Webhook-Id": "x"}'$$, $$'sms', 'http://h', headers => '{"Idempotency-Key": "x"}'$$,
    $$'sms', 'http://h', headers => (SELECT jsonb_object_agg('h' || i, 'x') FROM generate_series(1, 33) i)$$, $$'sms', 'http://h', headers => jsonb_build_object('a', repeat('x', 8001))$$,
    $$'sms', 'http://h', body_template => ''$$, $$'sms', 'http://h', body_template => '{"a": "{adress}"}'$$, $$'sms', 'http://h', body_template => repeat('x', 102401)$$,
    $$'sms', 'http://h', body_template => '{address}', batch_size => 2$$, $$'sms', 'http://h', mail_from => 'a@b'$$,
    $$'sms', 'http://h', username => 'u'$$, $$'sms', 'http://h', password => 'p'$$, $$'sms', 'http://h', username => 'a:b', password => 'p'$$, $$'sms', 'http://h', username => '', password => 'p'$$,
    $$'sms', 'http://h', username => E'a\n', password => 'p'$$, $$'sms', 'http://h', username => 'a', password => E'p\r'$$, $$'sms', 'http://h', username => repeat('u', 1001), password => 'p'$$,
    $$'sms', 'http://h', username => 'u', password => 'p'$$, $$'sms', 'http://h', headers => '{"Authorization": "Bearer t"}'$$, $$'sms', 'http://127.0.0.1.h', headers => '{"X-Api-Key": "k"}'$$, $$'sms', 'http://localhost.h:80', headers => '{"token": "k"}'$$,
    $$'sms', 'http://h', batch_size => 0$$, $$'sms', 'http://h', batch_size => 1001$$, $$'sms', 'http://h', batch_size => NULL$$, $$'sms', 'http://h', max_in_flight => 0$$, $$'sms', 'http://h', max_in_flight => 1025$$, $$'sms', 'http://h', max_in_flight => NULL$$,
    $$'sms', 'http://h', timeout => '99 ms'$$, $$'sms', 'http://h', timeout => '10 min 1 s'$$, $$'sms', 'http://h', timeout => '-1 s'$$, $$'sms', 'http://h', timeout => '1 day -23:59:59'$$, $$'sms', 'http://h', timeout => NULL$$, $$'sms', 'http://h', enabled => NULL$$,
    $$'email', 'smtp://h'$$, $$'email', 'smtps://h', mail_from => ''$$, $$'email', 'smtp://h', mail_from => 'a'$$, $$'email', 'smtp://h', mail_from => 'Shop <a@b>'$$, $$'email', 'smtp://h', mail_from => E'a@b\r\nBcc: c@d'$$, $$'email', 'smtp://h', mail_from => 'a@b@c'$$, $$'email', 'smtp://h', mail_from => '@b'$$, $$'email', 'smtp://h', mail_from => 'a@'$$,
    $$'email', 'smtp://h', mail_from => 'a@b', batch_size => 2$$, $$'email', 'smtp://h', mail_from => 'a@b', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'$$, $$'email', 'smtp://h', mail_from => 'a@b', body_template => 'x'$$, $$'email', 'smtp://h', mail_from => 'a@b', headers => '{"a": "b"}'$$
]) WITH ORDINALITY AS t (a, n), attempt('SELECT coupon_channel_set(' || a || ')') AS b ORDER BY n;
SELECT left(a, 90) AS arguments, b.state, left(b.message, 120), b.detail, left(b.hint, 100)
FROM unnest(ARRAY[
    $$message_set('birthday', 'sms', 's', 'b')$$, $$message_set(NULL, 'sms', 's', 'b')$$, $$message_set('test', 'fax', 's', 'b')$$, $$message_set('test', 'sms', NULL, 'b')$$, $$message_set('test', 'sms', 's', NULL)$$,
    $$message_set('test', 'sms', 's', '')$$, $$message_set('test', 'sms', E's\n', 'b')$$, $$message_set('test', 'sms', repeat('s', 1001), 'b')$$, $$message_set('test', 'sms', 's', repeat('b', 102401))$$,
    $$message_set('test', 'sms', '{nmae}', 'b')$$, $$message_set('test', 'sms', 's', '{body}')$$, $$message_set('test', 'sms', 's', 'to {recipients}')$$,
    $$contact_set(0, 'sms', 'x')$$, $$contact_set(NULL, 'sms', 'x')$$, $$contact_set(1, NULL, 'x')$$, $$contact_set(1, 'fax', 'x')$$, $$contact_set(1, 'sms', '')$$, $$contact_set(1, 'sms', ' ')$$, $$contact_set(1, 'sms', E'x\r\ny')$$, $$contact_set(1, 'sms', repeat('x', 2001))$$,
    $$channel_test('fax', 'x')$$, $$channel_test('ch3', 'x')$$, $$channel_test('sms', NULL)$$, $$channel_test('sms', '')$$, $$channel_test(NULL, 'x')$$,
    $$channel_enable('fax')$$, $$channel_enable('ch3')$$, $$channel_enable('app', NULL)$$,
    $$channel_preview('x', 'sms')$$, $$channel_preview('test', 'ch3')$$, $$channel_preview('test', 'sms', 0)$$, $$channel_preview('test', 'sms', NULL)$$, $$notification_replay(channel => 'fax')$$
]) WITH ORDINALITY AS t (a, n), attempt('SELECT coupon_' || a) AS b ORDER BY n;
-- what is just right
SELECT left(a, 90) AS arguments, b.state, b.message
FROM unnest(ARRAY[
    $$'ch4', 'http://[::1]:65535/x#y'$$, $$'ch4', 'http://h/' || repeat('x', 1991)$$, $$'ch4', 'https://127.1?to=a@b'$$, $$'ch4', 'http://h', headers => '{}'$$, $$'ch4', 'http://h', headers => (SELECT jsonb_object_agg('h' || i, 'x') FROM generate_series(1, 32) i)$$,
    $$'ch4', 'http://h', secret => 'whsec_' || translate(encode(repeat('x', 64)::bytea, 'base64'), E'\n', '')$$, $$'ch4', 'http://h', body_template => '{recipients}{ not one }{}{1}', batch_size => 1000, max_in_flight => 1024, timeout => '10 min'$$,
    $$'ch4', 'http://LOCALHOST:80/x', username => 'u', password => 'p'$$, $$'ch4', 'http://[::1]/x', username => 'u', password => 'p'$$, $$'ch4', 'http://127.3.2.1?x', headers => '{"Authorization": "t"}'$$, $$'ch4', 'https://h', username => 'u', password => 'p'$$,
    $$'ch4', 'http://h', timeout => '100 ms', enabled => false$$, $$'ch4', 'smtps://h', mail_from => 'a@b', headers => '{}'$$
]) WITH ORDINALITY AS t (a, n), attempt('SELECT coupon_channel_set(' || a || ')') AS b ORDER BY n;
SELECT * FROM attempt($$SELECT coupon_message_set('test', 'ch4', '', 'b')$$);
SELECT * FROM attempt($$SELECT coupon_contact_set(1, 'ch4', repeat('x', 2000))$$);
\pset tuples_only off
SELECT count(*) AS changed FROM (TABLE before EXCEPT TABLE coupon_channel) x;
SELECT count(*) AS changed FROM (TABLE secrets_before EXCEPT TABLE coupon_secret) x;
SELECT channel, count(*) FROM coupon_message GROUP BY channel ORDER BY 1;

-- The whole row is set, and a channel that was switched off is on again
UPDATE coupon_channel SET enabled = false, disabled_reason = 'the receiver answered 410' WHERE channel = 'app';
SELECT * FROM attempt($$SELECT coupon_channel_test('app', 'x')$$);
SELECT coupon_channel_enable('app');
SELECT endpoint, enabled, disabled_reason FROM coupon_channel WHERE channel = 'app';
SELECT coupon_channel_enable('app', false);
SELECT endpoint, enabled, disabled_reason FROM coupon_channel WHERE channel = 'app';
SELECT * FROM attempt($$SELECT coupon_channel_test('app', 'x')$$);
SELECT coupon_channel_set('app', 'http://h', batch_size => 3);
SELECT to_jsonb(c) - 'updated_at' - 'installation' AS row, updated_at > now() - interval '1 min' AS at FROM coupon_channel c WHERE channel = 'app';
SELECT coupon_contact_set(5, 'app', NULL);
SELECT coupon_contact_set(5, 'app', NULL);
SELECT count(*) FROM coupon_contact WHERE user_id = 5 AND channel = 'app';

-- A test goes into the outbox
DELETE FROM coupon_notification;
SELECT notification_id AS test FROM coupon_channel_test('app', 'token 5') \gset
SELECT id = :test AS id, channel, kind, template_id, user_ids, address, attempts, next_at <= clock_timestamp() AS due FROM coupon_notification;
DELETE FROM coupon_notification;

-- Pushes of all sorts: waiting, leased, retried; delivered, missed, dead; of two shops and of none
INSERT INTO coupon_template (id, shop_number, name, total_stock, discount_value) VALUES (650, 81, 'eight', 10, 10), (651, 82, 'nine', 10, 10);
INSERT INTO coupon_notification (id, channel, kind, template_id, user_ids, due_at, next_at, attempts, leased_until, last_error) VALUES
    (1, 'sms', 'reminder', 650, '{1}', now() - interval '1 hour', now(), 0, NULL, NULL),
    (2, 'sms', 'reminder', 651, '{2}', now() - interval '2 hours', now(), 1, NULL, 'connection refused'),
    (3, 'app', 'coupon', 650, '{3,4}', now() - interval '2 minutes', now(), 1, now() + interval '1 hour', NULL),
    (4, 'ch3', 'test', NULL, '{0}', now() - interval '1 hour', now(), 0, NULL, NULL),
    (5, 'ch4', 'reminder', 650, '{5}', now() - interval '1 hour', now(), 0, NULL, NULL);
INSERT INTO coupon_notification_history (id, channel, kind, template_id, minutes, task_id, user_ids, address, state, due_at, sent_at, ended_at, attempts, last_status, last_error) VALUES
    (11, 'sms', 'reminder', 650, 10, NULL, '{1}', NULL, 'dead', now() - interval '2 hours', now() - interval '1 hour', now() - interval '1 hour', 8, 500, 'HTTP 500'),
    (12, 'sms', 'test', NULL, NULL, NULL, '{0}', '+1', 'dead', now() - interval '3 hours', now() - interval '1 hour', now() - interval '2 hours', 8, NULL, 'timeout'),
    (13, 'app', 'coupon', 651, NULL, 9, '{1,2}', NULL, 'dead', now() - interval '4 hours', now() - interval '1 hour', now() - interval '3 hours', 8, 503, 'HTTP 503'),
    (14, 'sms', 'reminder', 650, 10, NULL, '{1}', NULL, 'missed', now() - interval '4 hours', NULL, now(), 0, NULL, NULL);
INSERT INTO coupon_notification_history (id, channel, kind, template_id, user_ids, state, due_at, sent_at, ended_at, attempts, last_status)
SELECT 1000 + i, 'sms', 'reminder', 650, '{1}', 'delivered', now() - interval '10 min', now() - interval '10 min' + i * interval '10 ms', now() - CASE WHEN i = 200 THEN interval '61 min' ELSE '5 min' END, 1, 200
FROM generate_series(1, 200) i;
SELECT channel, set_up, enabled, waiting, leased, retrying, dead, delivered_last_hour, late_p50, late_p99, late_max FROM coupon_stat_channel;
SELECT coupon_channel_set('ch4', 'http://h', enabled => false);
SELECT kind, id, state, attempts, last_error, repair FROM coupon_stuck('30 min') WHERE kind = 'notification';
SELECT id FROM coupon_stuck() WHERE kind = 'notification' AND id = 3;
SELECT check_name, status, detail, advice FROM coupon_health WHERE check_name IN ('channels', 'dead_pushes') ORDER BY 1;

-- Rights
CREATE ROLE regress_push_app; CREATE ROLE regress_push_operator; CREATE ROLE regress_push_shop; CREATE ROLE regress_push_monitor; CREATE ROLE regress_push_shop_monitor;
SELECT coupon_grant('regress_push_app', 'application'), coupon_grant('regress_push_operator', 'operator'), coupon_grant('regress_push_shop', 'operator', 81),
       coupon_grant('regress_push_monitor', 'monitor'), coupon_grant('regress_push_shop_monitor', 'monitor', 82);
CREATE FUNCTION pushes() RETURNS TABLE (what text, ids bigint[]) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT 'queue', array_agg(id ORDER BY id) FROM coupon_notification;
    RETURN QUERY SELECT 'history', array_agg(id ORDER BY id) FROM coupon_notification_history WHERE id < 1000;
    RETURN QUERY SELECT 'templates of history', array_agg(DISTINCT h.template_id) FROM coupon_notification_history h;
    RETURN QUERY SELECT 'stuck', array_agg(id ORDER BY id) FROM coupon_stuck('1 min') WHERE kind = 'notification';
END $$;
CREATE FUNCTION rights() RETURNS TABLE (statement text, state text, message text) LANGUAGE sql AS $$
    SELECT s, a.state, a.message FROM unnest(ARRAY[
        $q$SELECT coupon_channel_set('ch3', 'http://h')$q$, $q$SELECT coupon_message_set('test', 'ch3', 's', 'b')$q$, $q$SELECT coupon_contact_set(9, 'ch3', 'x')$q$,
        $q$SELECT coupon_channel_test('ch3', 'x')$q$, $q$SELECT coupon_channel_preview('test', 'ch3')$q$, $q$SELECT coupon_channel_secret()$q$,
        $q$SELECT coupon_notification_replay(999)$q$, $q$SELECT coupon_channel_enable('ch3')$q$, $q$SELECT channel, endpoint, username FROM coupon_channel$q$, $q$SELECT body_template FROM coupon_channel$q$,
        $q$SELECT value FROM coupon_secret$q$, $q$SELECT c FROM coupon_channel c$q$,
        $q$SELECT * FROM coupon_message$q$, $q$SELECT * FROM coupon_contact$q$, $q$SELECT * FROM coupon_stat_channel$q$,
        $q$SELECT * FROM coupon_notification$q$, $q$DELETE FROM coupon_notification$q$, $q$DELETE FROM coupon_notification_history$q$, $q$UPDATE coupon_channel SET enabled = false$q$
    ]) WITH ORDINALITY AS t (s, n), attempt(s) AS a ORDER BY n $$;
SET ROLE regress_push_app;
SELECT * FROM rights();
SET ROLE regress_push_operator;
SELECT * FROM rights();
RESET ROLE;
DELETE FROM coupon_notification WHERE id > 1000;
SET ROLE regress_push_operator;
SELECT * FROM pushes();
SET ROLE regress_push_shop;
SELECT * FROM rights();
SELECT * FROM pushes();
SELECT count(*) FROM coupon_contact;
SET ROLE regress_push_monitor;
SELECT * FROM rights();
SELECT * FROM pushes();
SELECT name FROM coupon_template;
SET ROLE regress_push_shop_monitor;
SELECT * FROM pushes();
RESET ROLE;
-- a right on the table alone shows no secret
GRANT SELECT ON coupon_secret TO regress_push_operator;
SET ROLE regress_push_operator;
SELECT count(*) FROM coupon_secret;
RESET ROLE;
SELECT count(*) > 0 AS secrets FROM coupon_secret;
REVOKE SELECT ON coupon_secret FROM regress_push_operator;
SELECT coupon_grant_revoke('regress_push_operator', 'operator'), coupon_grant_revoke('regress_push_monitor', 'monitor');
SELECT DISTINCT a.state, count(*) FROM unnest('{regress_push_operator,regress_push_monitor}'::name[]) AS r, unnest('{channel,endpoint,body_template,mail_from,updated_at}'::text[]) AS c,
    attempt(format('SET LOCAL ROLE %I; SELECT %I FROM public.coupon_channel; RESET ROLE', r, c)) AS a GROUP BY 1;
SELECT has_any_column_privilege(r, t, 'SELECT') FROM unnest('{regress_push_operator,regress_push_monitor}'::name[]) AS r, unnest('{coupon_template,coupon_contact}'::text[]) AS t;

-- Replay: one, a channel, all; never what was not given up
SELECT * FROM coupon_notification_replay(14);
SELECT * FROM coupon_notification_replay(11, 'app');
SELECT * FROM coupon_notification_replay(11);
SELECT id, channel, kind, template_id, minutes, task_id, user_ids, address, attempts, first_attempt, leased_until, last_status, last_error,
       due_at = now() - interval '2 hours' OR due_at < now() - interval '2 hours' AS due, next_at <= clock_timestamp() AS "next"
FROM coupon_notification WHERE id = 11;
SELECT * FROM coupon_notification_replay(channel => 'sms');
SELECT * FROM coupon_notification_replay();
SELECT * FROM coupon_notification_replay();
SELECT id, task_id, user_ids, address, attempts, first_attempt FROM coupon_notification WHERE id IN (12, 13) ORDER BY id;
SELECT count(*) FROM coupon_notification_history WHERE state = 'dead';

-- Old pushes go, in portions, whatever became of them
UPDATE coupon_notification_history SET ended_at = now() - interval '31 days' WHERE id BETWEEN 1001 AND 1025;
UPDATE coupon_notification_history SET ended_at = now() - interval '31 days', state = 'dead' WHERE id = 1026;
SET coupon.batch_size = 10;
SET coupon.keep_notifications = 0;
CALL coupon_purge();
SELECT count(*) FROM coupon_notification_history;
RESET coupon.keep_notifications;
CALL coupon_purge();
SELECT count(*), min(id) FROM coupon_notification_history;
RESET coupon.batch_size;
SHOW coupon.keep_notifications;

DROP OWNED BY regress_push_app, regress_push_operator, regress_push_shop, regress_push_monitor, regress_push_shop_monitor;
DELETE FROM coupon_role;
DROP ROLE regress_push_app, regress_push_operator, regress_push_shop, regress_push_monitor, regress_push_shop_monitor;
DELETE FROM coupon_notification; DELETE FROM coupon_notification_history; DELETE FROM coupon_message; DELETE FROM coupon_contact; DELETE FROM coupon_channel; DELETE FROM coupon_secret;
DELETE FROM coupon_template WHERE id IN (650, 651);
DROP FUNCTION attempt, xor_pad, signature, header, pushes, rights;
