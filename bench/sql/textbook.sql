-- Check, take from the one row, write the record.
\set user random(1, 1000000000000000)
BEGIN;
SELECT count(*) AS held FROM user_coupon WHERE template_id = 101 AND user_id = :user \gset
\if :held = 0
UPDATE bench_stock SET stock = stock - 1 WHERE template_id = 101 AND stock > 0;
INSERT INTO user_coupon (user_id, template_id, use_end, source)
VALUES (:user, 101, statement_timestamp() + '30 days', 'center');
\endif
COMMIT;
