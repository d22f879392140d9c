-- :cold per cent of the claims go to any template, the others to the first 3,500.
\set template case when random(1, 100) <= :cold then random(1, 100000) else random(1, 3500) end
\set user random(1, 1000000000000000)
SELECT * FROM coupon_receive(:template, :user);
