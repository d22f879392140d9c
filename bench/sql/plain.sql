-- The record alone, into a table without our triggers.
\set user random(1, 1000000000000000)
INSERT INTO bench_plain (user_id, template_id, use_end, source)
VALUES (:user, 104, statement_timestamp() + '30 days', 'center');
