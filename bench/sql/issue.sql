-- 10,000 users who have none yet.
SELECT count(*) FROM nextval('bench_batch') AS n,
    LATERAL coupon_receive_many(1, ARRAY(SELECT generate_series(n * 10000, n * 10000 + 9999)));
