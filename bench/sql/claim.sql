\set user random(1, :users)
SELECT * FROM coupon_receive(:template, :user);
