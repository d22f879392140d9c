-- A lease that ends at once, so that the next one finds the coupon free.
\set coupon random(1, :coupons)
\set order random(1, 1000000000000)
SELECT code FROM coupon_lock(:coupon, :coupon, :order::text, 50, ttl => '1 microsecond');
