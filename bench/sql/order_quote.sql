SELECT count(*) FROM coupon_quote(:owner, 50);
