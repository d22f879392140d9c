SELECT * FROM coupon_receive_many(2,
    ARRAY(SELECT 1 + (random() * 1e15)::bigint FROM generate_series(1, 100)));
