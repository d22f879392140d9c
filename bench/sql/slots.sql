-- Check, take from a row that nobody else has, write the record.
\set user random(1, 1000000000000000)
\set start random(0, 128)
BEGIN;
SELECT count(*) AS held FROM user_coupon WHERE template_id = 102 AND user_id = :user \gset
\if :held = 0
UPDATE bench_slot SET stock = stock - 1 WHERE template_id = 102 AND slot = (
    SELECT slot FROM bench_slot
    WHERE template_id = 102 AND slot BETWEEN :start AND :start + 127 AND stock > 0
    ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED);
INSERT INTO user_coupon (user_id, template_id, use_end, source)
VALUES (:user, 102, statement_timestamp() + '30 days', 'center');
\endif
COMMIT;
