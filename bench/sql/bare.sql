-- The record alone.
\set user random(1, 1000000000000000)
INSERT INTO user_coupon (user_id, template_id, use_end, source)
VALUES (:user, 103, statement_timestamp() + '30 days', 'center');
