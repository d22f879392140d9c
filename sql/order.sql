-- The life of a coupon in an order.
SET timezone = 'UTC';
INSERT INTO coupon_template (id, shop_number, issuer, name, discount_kind, discount_value, threshold_amount, max_discount, goods_ids,
                             status, receive_start, per_user_limit, refund_policy) VALUES
    (1950, NULL, 'platform', '10 off', 'amount', 10, 0, NULL, NULL, 'published', '2020-01-01', 9, 'return'),
    (1951, NULL, 'platform', '20 off 100', 'amount', 20, 100, NULL, NULL, 'published', '2020-01-01', 9, 'return_if_valid'),
    (1952, NULL, 'platform', '12.5 %', 'percent', 12.5, 0, 30, NULL, 'published', '2020-01-01', 9, 'keep'),
    (1953, 7, 'shop', 'of shop 7', 'amount', 5, 0, NULL, NULL, 'published', '2020-01-01', 9, 'return'),
    (1954, 7, 'shop', 'for A-5', 'amount', 50, 0, NULL, '{A-5,A-6,A-5}', 'published', '2020-01-01', 9, 'return');
-- Coupons of users are named: a coupon of a template is the n-th of its user.
CREATE FUNCTION coupon_of(template bigint, owner bigint, n int DEFAULT 1) RETURNS bigint LANGUAGE sql AS
    'SELECT id FROM user_coupon WHERE template_id = template AND user_id = owner AND receive_seq = n';
SELECT count(*) FROM generate_series(1950, 1954) t, generate_series(19571, 19573) u, coupon_receive(t, u) WHERE code = 0;
SELECT count(*) FROM generate_series(19571, 19573) u, coupon_receive(1950, u) WHERE code = 0;

-- What each would take off
SELECT template_id, name, usable, reason, discount, payable, short_by FROM coupon_quote(19571, 99.99);
SELECT template_id, usable, reason, discount, payable FROM coupon_quote(19571, 1000, 7);
SELECT template_id, usable, reason, discount FROM coupon_quote(19571, 300, 8, '[{"goods_id": "A-5", "shop_number": "7", "amount": "40.10"},
    {"goods_id": "A-6", "shop_number": 7, "amount": 3.9}, {"goods_id": "A-6", "shop_number": 9, "amount": 6}, {"amount": "250"}]');
SELECT template_id, reason FROM coupon_quote(19571, 20, 7, '[{"goods_id": "A-7", "amount": "20"}]') WHERE NOT usable;
SELECT template_id, discount, payable FROM coupon_quote(19571, 0.04) WHERE usable;
SELECT template_id, discount FROM coupon_quote(19571, 99999999999999.99, page_size => 2);
SELECT count(*) FROM coupon_quote(19579, 5);

-- Lock, again, with another amount, by another order, a second one
SELECT code, outcome, discount, payable, locked_until - now() BETWEEN '14 min' AND '16 min' AS min_15, repeated FROM coupon_lock(coupon_of(1950, 19571), 19571, 'X-1', 99.99);
SELECT code, outcome, discount, payable, locked_until - now() > '59 min' AS min_60, repeated FROM coupon_lock(coupon_of(1950, 19571), 19571, 'X-1', 99.99, ttl => '1 hour');
SELECT * FROM coupon_lock(coupon_of(1950, 19571), 19571, 'X-1', 100);
SELECT * FROM coupon_lock(coupon_of(1950, 19571), 19571, 'X-2', 100);
SELECT * FROM coupon_lock(coupon_of(1950, 19571, 2), 19571, 'X-1', 99.99);
SELECT template_id, usable, reason FROM coupon_quote(19571, 99.99) WHERE user_coupon_id = coupon_of(1950, 19571);
SELECT status, usable, order_id, order_amount, discount, locked_until > now() AS leased FROM coupon_wallet(19571) WHERE order_id IS NOT NULL;
SELECT * FROM coupon_lock(coupon_of(1950, 19572), 19571, 'X-1', 100);
SELECT * FROM coupon_lock(99, 19571, 'X-1', 100);
SELECT code, outcome FROM coupon_lock(coupon_of(1951, 19571), 19571, 'X-3', 99.99);
SELECT code, outcome FROM coupon_lock(coupon_of(1953, 19571), 19571, 'X-3', 99.99);
SELECT code, outcome FROM coupon_lock(coupon_of(1954, 19571), 19571, 'X-3', 99.99, 7);
SELECT code, outcome FROM coupon_lock(coupon_of(1954, 19571), 19571, 'X-3', 5, 7, '[{"goods_id": "B", "amount": "5"}]');

-- Several of one order: what is left is what the next one takes from
SELECT code, discount, payable FROM coupon_lock(coupon_of(1952, 19572), 19572, 'Y-1', 100, combine => true);
SELECT code, discount, payable FROM coupon_lock(coupon_of(1951, 19572), 19572, 'Y-1', 100, combine => true);
SELECT code, outcome FROM coupon_lock(coupon_of(1950, 19572), 19572, 'Y-1', 101, combine => true);
SELECT code, discount, payable FROM coupon_lock(coupon_of(1950, 19572), 19572, 'Y-1', 100, combine => true);
SELECT template_id, u.code, u.outcome, u.discount, u.payable, repeated FROM coupon_use(19572, 'Y-1') u JOIN user_coupon c ON c.id = user_coupon_id ORDER BY 1;
SELECT template_id, u.code, u.outcome, u.discount, u.payable, repeated FROM coupon_use(19572, 'Y-1') u JOIN user_coupon c ON c.id = user_coupon_id ORDER BY 1;
SELECT code, outcome, repeated FROM coupon_lock(coupon_of(1950, 19572), 19572, 'Y-1', 100);
SELECT code, outcome FROM coupon_lock(coupon_of(1950, 19572), 19572, 'Y-2', 100);
SELECT code, discount, payable FROM coupon_lock(coupon_of(1950, 19572, 2), 19572, 'Y-3', 5);
SELECT code, outcome FROM coupon_lock(coupon_of(1953, 19572), 19572, 'Y-3', 5, 7, combine => true);

-- Paid, twice; refunded, twice; paid once more
SELECT code, outcome, discount, payable, repeated FROM coupon_use(19571, 'X-1', amount => 99.99);
SELECT code, outcome, discount, payable, repeated FROM coupon_use(19571, 'X-1');
SELECT code, outcome FROM coupon_use(19571, 'X-1', amount => 5);
SELECT status, order_id, used_at = now() AS now, locked_until FROM coupon_held WHERE id = coupon_of(1950, 19571);
SELECT code, outcome, repeated FROM coupon_release(19571, 'X-1');
SELECT code, outcome FROM coupon_use(19571, 'X-9');
SELECT code, outcome FROM coupon_use(19571, 'X-9', coupon_of(1950, 19571), 50);
SELECT code, outcome, repeated FROM coupon_refund(19571, 'X-9', coupon_of(1950, 19571));
SELECT code, outcome, repeated FROM coupon_refund(19571, 'X-1');
SELECT code, outcome, repeated FROM coupon_refund(19571, 'X-1');
SELECT code, outcome, repeated FROM coupon_use(19571, 'X-1');
SELECT code, outcome, repeated FROM coupon_use(19571, 'X-1', coupon_of(1950, 19571), 99.99);
SELECT code, outcome FROM coupon_lock(coupon_of(1950, 19571), 19571, 'X-1', 99.99);
SELECT status, order_id, order_amount, discount, used_at FROM coupon_held WHERE id = coupon_of(1950, 19571);
-- used without a lock before, by another order; a repeat of the old refund gives nothing back
SELECT code, outcome, discount, payable FROM coupon_use(19571, 'X-4', coupon_of(1950, 19571), 11);
SELECT code, outcome, repeated FROM coupon_refund(19571, 'X-1');
SELECT status, order_id FROM coupon_held WHERE id = coupon_of(1950, 19571);
SELECT code, outcome FROM coupon_use(19571, 'X-4', coupon_of(1950, 19571, 2), 11);
SELECT u.template_id, code, outcome FROM user_coupon u, coupon_refund(19572, 'Y-1') r WHERE u.id = r.user_coupon_id AND user_id = 19572 ORDER BY 1;

-- Not paid
SELECT code, outcome FROM coupon_lock(coupon_of(1950, 19571, 2), 19571, 'X-5', 20);
SELECT code, outcome, repeated FROM coupon_refund(19571, 'X-5');
SELECT code, outcome, repeated FROM coupon_release(19571, 'X-5');
SELECT code, outcome, repeated FROM coupon_release(19571, 'X-5', coupon_of(1950, 19571, 2));
SELECT code, outcome, repeated FROM coupon_release(19571, 'X-5');
SELECT code, outcome, repeated FROM coupon_use(19571, 'X-5');
SELECT code, outcome, repeated FROM coupon_release(19571, 'X-6', coupon_of(1950, 19571, 2));
SELECT status, order_id, locked_until, discount FROM coupon_held WHERE id = coupon_of(1950, 19571, 2);
-- again, and taken over by another order when the lease has run out
SELECT code, repeated FROM coupon_lock(coupon_of(1950, 19571, 2), 19571, 'X-5', 20);
UPDATE user_coupon SET locked_until = now() - interval '1 s' WHERE user_id = 19571 AND status = 1;
SELECT status, usable, order_id FROM coupon_held WHERE id = coupon_of(1950, 19571, 2);
SELECT code, outcome FROM coupon_lock(coupon_of(1951, 19571), 19571, 'X-5', 200);
SELECT code, repeated FROM coupon_lock(coupon_of(1950, 19571, 2), 19571, 'X-7', 20);
SELECT code, outcome, repeated FROM coupon_use(19571, 'X-5');
SELECT code, outcome, repeated FROM coupon_release(19571, 'X-5');
SELECT code, outcome, repeated FROM coupon_use(19571, 'X-5');
-- one that has run out and that nobody has taken may still be used, while it has not expired
UPDATE user_coupon SET locked_until = now() - interval '1 s' WHERE user_id = 19571 AND status = 1;
SELECT code, outcome, discount FROM coupon_use(19571, 'X-7');
-- a lease that was taken in time outlives the end of the coupon
SELECT code FROM coupon_lock(coupon_of(1951, 19573), 19573, 'Z-1', 200);
UPDATE user_coupon SET use_start = now() - interval '2 h', use_end = now() - interval '1 min' WHERE user_id = 19573;
SELECT status, usable FROM coupon_held WHERE id = coupon_of(1951, 19573);
SELECT code, outcome, repeated FROM coupon_lock(coupon_of(1951, 19573), 19573, 'Z-1', 200);
SELECT code, outcome FROM coupon_lock(coupon_of(1950, 19573), 19573, 'Z-2', 200);
SELECT template_id, reason FROM coupon_quote(19573, 200, 7) ORDER BY 1;
SELECT code, outcome FROM coupon_use(19573, 'Z-1');
SELECT code, outcome FROM coupon_refund(19573, 'Z-1');
UPDATE user_coupon SET use_start = now() + interval '1 h', use_end = now() + interval '2 h' WHERE id = coupon_of(1950, 19573);
SELECT code, outcome FROM coupon_use(19573, 'Z-2', coupon_of(1950, 19573), 200);
-- "return" gives the time back
UPDATE user_coupon SET use_start = now() - interval '2 h', use_end = now() + interval '1 h' WHERE id = coupon_of(1950, 19573);
SELECT code FROM coupon_use(19573, 'Z-3', coupon_of(1950, 19573), 200);
UPDATE user_coupon SET used_at = now() - interval '3 days', use_end = now() - interval '3 days' + interval '1 h' WHERE id = coupon_of(1950, 19573);
SELECT code FROM coupon_refund(19573, 'Z-3');
SELECT status, use_end BETWEEN now() + interval '59 min' AND now() + interval '61 min' AS an_hour_left FROM coupon_held WHERE id = coupon_of(1950, 19573);

-- Revoked
SELECT code, outcome, repeated FROM coupon_lock(coupon_of(1950, 19573, 2), 19573, 'Z-4', 200, ttl => '7 days');
UPDATE user_coupon SET use_end = now() + interval '1 h' WHERE id = coupon_of(1950, 19573, 2);
SELECT code, outcome, repeated FROM coupon_revoke(coupon_of(1950, 19573, 2), 19573, 'fraud');
SELECT code, outcome, repeated FROM coupon_lock(coupon_of(1950, 19573, 2), 19573, 'Z-4', 200, ttl => '7 days');
SELECT code, outcome, repeated FROM coupon_revoke(coupon_of(1950, 19573, 2), 19573, 'fraud');
UPDATE user_coupon SET use_start = now() - interval '2 h', use_end = now() + interval '1 h' WHERE id = coupon_of(1952, 19573);
SELECT code FROM coupon_lock(coupon_of(1952, 19573), 19573, 'Z-5', 200);
SELECT code, outcome, repeated FROM coupon_revoke(coupon_of(1952, 19573), 19573, 'fraud');
SELECT code, outcome FROM coupon_use(19573, 'Z-5');
SELECT code, outcome, repeated FROM coupon_revoke(coupon_of(1952, 19572), 19572);
SELECT code, outcome, repeated FROM coupon_revoke(coupon_of(1952, 19572), 19573);

-- Out of the list
SELECT code, outcome, repeated FROM coupon_wallet_hide(coupon_of(1952, 19573), 19573);
SELECT code, outcome, repeated FROM coupon_wallet_hide(coupon_of(1952, 19573), 19573);
SELECT code, outcome, repeated FROM coupon_wallet_hide(coupon_of(1950, 19573), 19573);
SELECT code, outcome, repeated FROM coupon_wallet_hide(coupon_of(1950, 19573), 19572);
SELECT count(*) FILTER (WHERE template_id = 1952) AS hidden, count(*) > 1 AS others FROM coupon_wallet(19573);
SELECT n FROM coupon_wallet_count(19573) WHERE status = 'revoked';

-- The history
SELECT kind, template_id, order_id, amount, discount, reason FROM coupon_event WHERE user_id = 19573 ORDER BY id;

-- What is no order
\set VERBOSITY sqlstate
SELECT coupon_lock(NULL, 19571, 'A', 5); SELECT coupon_lock(1, NULL, 'A', 5); SELECT coupon_lock(1, 0, 'A', 5);
SELECT coupon_lock(1, 19571, NULL, 5); SELECT coupon_lock(1, 19571, '', 5); SELECT coupon_lock(1, 19571, repeat('x', 65), 5); SELECT coupon_lock(1, 19571, repeat('x', 1000000), 5);
SELECT coupon_lock(1, 19571, 'A', 5, ttl => '0'); SELECT coupon_lock(1, 19571, 'A', 5, ttl => '-1 s'); SELECT coupon_lock(1, 19571, 'A', 5, ttl => '1 year'); SELECT coupon_lock(1, 19571, 'A', 5, ttl => NULL);
SELECT coupon_lock(1, 19571, 'A', 5, ttl => '1000000 years'); SELECT coupon_lock(1, 19571, 'A', 5, combine => NULL); SELECT coupon_lock(1, 19571, 'A', 5, -1); SELECT coupon_quote(19571, 5, page_size => 0);
SELECT coupon_use(19571, 'X-8', coupon_of(1951, 19571)); SELECT coupon_use(19571, NULL); SELECT coupon_release(NULL, 'A'); SELECT coupon_refund(19571, ''); SELECT coupon_revoke(NULL, 19571); SELECT coupon_wallet_hide(1, NULL);
UPDATE user_coupon SET status = 1 WHERE id = coupon_of(1951, 19571); UPDATE user_coupon SET status = 2, order_id = 'A', order_amount = 1, discount = 1 WHERE id = coupon_of(1951, 19571);
UPDATE user_coupon SET discount = -1 WHERE id = coupon_of(1951, 19571); UPDATE user_coupon SET discount = 'NaN' WHERE id = coupon_of(1951, 19571);
\set VERBOSITY terse
SELECT coupon_quote(19571, amount) FROM unnest('{0}'::numeric[]) amount;
SELECT coupon_quote(19571, -1);
SELECT coupon_quote(19571, 'NaN');
SELECT coupon_quote(19571, 'infinity');
SELECT coupon_quote(19571, 1.005);
SELECT count(*) FROM coupon_quote(19571, 1.1000);
SELECT coupon_quote(19571, 100000000000000);
SELECT coupon_quote(19571, 1e1000);
SELECT coupon_quote(19571, NULL);
SELECT coupon_quote(19571, 5, NULL, items::jsonb) FROM (VALUES ('{}')) v (items);
SELECT coupon_quote(19571, 5, NULL, '5');
SELECT coupon_quote(19571, 5, NULL, '[]');
SELECT coupon_quote(19571, 5, NULL, '[5]');
SELECT coupon_quote(19571, 5, NULL, '[[]]');
SELECT coupon_quote(19571, 5, NULL, '[{}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": null}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": -5}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": "5.001"}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": "5e0"}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": ""}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": [5]}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 99999999999999999999}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 4}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 5}, {"amount": 99999999999999}, {"amount": 1}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 5, "shop_number": "x"}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 5, "shop_number": 0}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 5, "shop_number": "9223372036854775808"}]');
SELECT coupon_quote(19571, 5, NULL, '[{"amount": 5, "goods_id": ""}]');
SELECT coupon_quote(19571, 5, NULL, ('[{"amount": 5, "goods_id": "' || repeat('x', 65) || '"}]')::jsonb);
SELECT coupon_quote(19571, 1001, NULL, jsonb_agg('{"amount": 1}'::jsonb)) FROM generate_series(1, 1001);
SELECT count(*) FROM coupon_verify() WHERE NOT ok;

-- What a trigger of the shop does in the middle is refused, and so is what it does not store.
\set VERBOSITY sqlstate
CREATE FUNCTION order_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_ARGV[0]
        WHEN 'nothing' THEN RETURN NULL;
        WHEN 'verb' THEN PERFORM coupon_use(NEW.user_id, NEW.order_id);
        WHEN 'more' THEN NEW.discount := 30;
    END CASE;
    RETURN NEW;
END $$;
SELECT a.code, b.code FROM coupon_receive(1950, 19575) a, coupon_receive(1951, 19575) b;
SELECT coupon_of(1950, 19575) AS one, coupon_of(1951, 19575) AS two \gset
SELECT code FROM coupon_lock(:one, 19575, 'T-1', 100);
CREATE TRIGGER t BEFORE INSERT ON coupon_event FOR EACH ROW EXECUTE FUNCTION order_trigger('nothing');
SELECT coupon_release(19575, 'T-1');
DROP TRIGGER t ON coupon_event;
CREATE TRIGGER t BEFORE INSERT ON coupon_event FOR EACH ROW EXECUTE FUNCTION order_trigger('verb');
SELECT coupon_release(19575, 'T-1');
DROP TRIGGER t ON coupon_event;
CREATE TRIGGER t BEFORE UPDATE ON user_coupon FOR EACH ROW EXECUTE FUNCTION order_trigger('more');
SELECT coupon_lock(:two, 19575, 'T-2', 100);
DROP TRIGGER t ON user_coupon;
\set VERBOSITY terse
SELECT kind FROM coupon_event WHERE user_id = 19575;
SELECT code, outcome FROM coupon_release(19575, 'T-1');

-- An order is found by its coupons, also where its history is gone, or was never there.
SELECT code FROM coupon_lock(:one, 19575, 'T-3', 100);
DELETE FROM coupon_event WHERE order_id = 'T-3';
SELECT code, outcome FROM coupon_lock(:two, 19575, 'T-3', 100);
SELECT code, outcome, payable FROM coupon_use(19575, 'T-3');
SELECT code, outcome FROM coupon_wallet_hide(:one, 19575);
SELECT code, outcome FROM coupon_refund(19575, 'T-3');
SELECT count(*) FROM coupon_wallet(19575) WHERE user_coupon_id = :one;
-- What comes from another system may lack the money, and when it was used.
INSERT INTO user_coupon (id, user_id, template_id, receive_seq, use_start, use_end, status, order_id, locked_until, used_at)
VALUES (101, 19575, 1950, 7, '2020-01-01', '2090-01-01', 1, 'T-4', '2080-01-01', NULL), (102, 19575, 1950, 8, '2020-01-01', '2090-01-01', 2, 'T-5', NULL, NULL);
SELECT code, outcome, payable FROM coupon_use(19575, 'T-4');
SELECT code, outcome FROM coupon_refund(19575, 'T-5');
SELECT status, use_end FROM coupon_held WHERE id = 102;
-- Nothing for nothing; long ends
INSERT INTO coupon_template (id, name, discount_kind, discount_value, status, receive_start, refund_policy, use_end) VALUES (1955, '0.01 %', 'percent', 0.01, 'published', '2020-01-01', 'return', '294276-12-30');
SELECT code FROM coupon_receive(1955, 19575);
SELECT code, outcome FROM coupon_lock(coupon_of(1955, 19575), 19575, 'T-6', 49.99);
SELECT code, discount FROM coupon_use(19575, 'T-6', coupon_of(1955, 19575), 50);
UPDATE user_coupon SET used_at = now() - interval '60 days' WHERE id = coupon_of(1955, 19575);
SELECT code, outcome FROM coupon_refund(19575, 'T-6');
SELECT coupon_lock(:two, 19575, 'T-7', 100, ttl => '1200 years -431993 days');
SELECT coupon_lock(:two, 19575, 'T-7', 100, ttl => '2000000 years -719999999 days');
SELECT coupon_refund(19575, 'T-5', 0);
SELECT coupon_use(19575, 'T-5', NULL, NULL, 7);
SELECT coupon_revoke(:two, 19575, repeat('x', 1001));
DROP FUNCTION order_trigger();

-- A role that is bound to a shop has the coupons of that shop alone.
\set VERBOSITY terse
SELECT count(*) FROM generate_series(1950, 1954) t, coupon_receive(t, 19574) WHERE code = 0;
SELECT coupon_of(1950, 19574) AS platform, coupon_of(1953, 19574) AS shop \gset
CREATE ROLE order_shop7;
SELECT coupon_grant('order_shop7', 'application', 7);
SET ROLE order_shop7;
SELECT template_id, usable FROM coupon_quote(19574, 100, 7);
SELECT code, outcome FROM coupon_lock(:platform, 19574, 'S-1', 100, 7);
SELECT code, outcome FROM coupon_use(19574, 'S-1', :platform, 100, 7);
SELECT code, outcome, payable FROM coupon_lock(:shop, 19574, 'S-1', 100, 7);
SELECT code, outcome FROM coupon_revoke(:shop, 19574);
RESET ROLE;
SELECT code FROM coupon_lock(:platform, 19574, 'S-1', 100, 7, combine => true);
SET ROLE order_shop7;
SELECT user_coupon_id = :shop AS shop, code, payable FROM coupon_use(19574, 'S-1');
SELECT code, outcome FROM coupon_refund(19574, 'S-1', :platform);
RESET ROLE;
SELECT coupon_grant_revoke('order_shop7', 'application', 7);
SELECT coupon_grant('order_shop7', 'operator', 7);
SET ROLE order_shop7;
SELECT code, outcome FROM coupon_lock(:shop, 19574, 'S-2', 100, 7);
SELECT code, outcome FROM coupon_revoke(:platform, 19574);
SELECT code, outcome FROM coupon_refund(19574, 'S-1', :shop);
SELECT code, outcome FROM coupon_revoke(:shop, 19574, 'returned');
RESET ROLE;
SELECT coupon_grant_revoke('order_shop7', 'operator', 7);
DROP ROLE order_shop7;
