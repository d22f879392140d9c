\set coupon random(1, :coupons)
\set order random(1, 1000000000000)
SELECT code FROM coupon_use(:coupon, :order::text, :coupon, 50);
