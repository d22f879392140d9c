-- Orders of the demo: a buyer of the sale with several coupons; one order is paid, one
-- abandoned, one refunded.
INSERT INTO coupon_template (id, name, discount_kind, discount_value, max_discount, per_user_limit, status, refund_policy)
VALUES (9, '15 % off, at most 20', 'percent', 15, 20, 3, 'published', 'return');
SELECT user_id AS buyer FROM user_coupon WHERE template_id = 1 ORDER BY id LIMIT 1 \gset
SELECT code, outcome FROM coupon_receive(9, :buyer);

\echo 'What each coupon of the buyer would take off an order of 99.90:'
SELECT name, usable, reason, discount, payable, short_by FROM coupon_quote(:buyer, 99.90);

\echo 'The best one is locked while the buyer pays; another order cannot have it:'
SELECT user_coupon_id AS best FROM coupon_quote(:buyer, 99.90) WHERE usable LIMIT 1 \gset
SELECT code, outcome, discount, payable FROM coupon_lock(:best, :buyer, 'order-1', 99.90);
SELECT code, outcome FROM coupon_lock(:best, :buyer, 'order-2', 99.90);

\echo 'Paid; the payment callback is delivered twice:'
SELECT code, outcome, payable, repeated FROM coupon_use(:buyer, 'order-1');
SELECT code, outcome, payable, repeated FROM coupon_use(:buyer, 'order-1');

\echo 'Sent back: the coupon is free again, and a third callback does not spend it:'
SELECT code, outcome, repeated FROM coupon_refund(:buyer, 'order-1');
SELECT code, outcome FROM coupon_use(:buyer, 'order-1');

\echo 'An order that is abandoned loses its lease by time alone:'
SELECT code, outcome FROM coupon_lock(:best, :buyer, 'order-3', 99.90, ttl => '1 microsecond');
SELECT code, outcome, discount FROM coupon_lock(:best, :buyer, 'order-4', 99.90);

\echo 'The history:'
SELECT kind, order_id, amount, discount FROM coupon_event WHERE user_coupon_id = :best ORDER BY id;
