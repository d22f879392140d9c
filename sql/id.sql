-- ids: ordered, unique, positive, carry the clock
SELECT coupon_next_id() > 0 AS positive, coupon_next_id() < coupon_next_id() AS ordered;
SELECT count(DISTINCT id) FROM (SELECT coupon_next_id() AS id FROM generate_series(1, 100000)) x;
SELECT abs(extract(epoch FROM clock_timestamp()
           - (timestamptz '2024-01-01 00:00 UTC' + (coupon_next_id() >> 22) * interval '1 ms'))) < 60 AS by_the_clock;
SELECT (coupon_next_id() >> 12) & 1023 AS node;
\set VERBOSITY terse
INSERT INTO coupon_template (id, name, discount_value) VALUES (0, 'zero', 1);
INSERT INTO coupon_template (id, name, discount_value) VALUES (-1, 'negative', 1);
BEGIN READ ONLY;
SELECT coupon_next_id() > 0 AS an_id_writes_nothing;
ROLLBACK;
