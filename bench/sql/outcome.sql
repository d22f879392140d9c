\set user random(1, :users)
SELECT outcome FROM coupon_receive(:template, :user);
