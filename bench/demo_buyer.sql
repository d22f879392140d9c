-- One buyer of the demo: presses once, twice or three times, or retries with a
-- request id after a lost answer.
\set u random(1, :buyers)
\set mood random(1, 10)
SELECT * FROM coupon_receive(1, :u, CASE WHEN :mood = 10 THEN 'r' END);
\if :mood > 4
SELECT * FROM coupon_receive(1, :u, CASE WHEN :mood = 10 THEN 'r' END);
\endif
\if :mood > 7
SELECT * FROM coupon_receive(1, :u);
SELECT * FROM coupon_receive(2, :u);
\endif
