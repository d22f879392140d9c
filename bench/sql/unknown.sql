\set template random(1000000, 1000000000000000)
\set user random(1, :users)
SELECT * FROM coupon_receive(:template, :user);
