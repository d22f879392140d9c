\set template random(1000000, 1000000000000000)
SELECT outcome FROM coupon_receive(:template, 1);
