-- The demo's distribution beside its file, which is read once more as plain
-- lines: their numbers must be those of the failures.  Variable: task.
CREATE TEMP TABLE file (line text, n bigint GENERATED ALWAYS AS IDENTITY);
\copy file (line) FROM 'users.csv'
ANALYZE file;

\echo 'The first failures of each cause, and what stands in that line of the file:'
SELECT f.row_num, f.cause, f.detail, format('"%s"', l.line) AS line_of_file
FROM (SELECT *, row_number() OVER (PARTITION BY cause ORDER BY row_num) AS first
      FROM coupon_task_failure WHERE task_id = :task) f
JOIN file l ON l.n = f.row_num
WHERE f.first <= CASE f.cause WHEN 'invalid_user_id' THEN 5 ELSE 2 END
ORDER BY f.cause, f.row_num;

-- What is wrong with a line is found out here by other means.
CREATE TEMP TABLE expected AS
SELECT n AS row_num, line, line !~ '^[0-9]{1,18}$' AS bad
FROM file WHERE n > 1;
CREATE TEMP TABLE failure AS SELECT * FROM coupon_task_failure WHERE task_id = :task;
ANALYZE expected, failure;

\echo '== Proof that each line was handled once: coupons, failures, file and books agree'
CREATE TEMP TABLE proof AS
SELECT t.lines = (SELECT count(*) FROM expected) AS file_is_whole,
       t.issued + t.failed = t.lines AS issued_and_failed,
       t.issued = (SELECT count(*) FROM user_coupon WHERE template_id = 4 AND request_id = 'task ' || t.id)
           AND t.failed = (SELECT count(*) FROM failure) AS rows_agree,
       NOT EXISTS (SELECT FROM expected e LEFT JOIN failure f USING (row_num)
                   WHERE e.bad <> COALESCE(f.cause = 'invalid_user_id', false)) AS bad_lines_agree,
       -- With two runners it may be a later line of a user that gets the coupon.
       NOT EXISTS (SELECT FROM expected e LEFT JOIN failure f USING (row_num)
                   WHERE NOT e.bad GROUP BY e.line
                   HAVING count(*) FILTER (WHERE f.row_num IS NULL) > 1
                      OR count(*) = 1 AND bool_or(f.cause = 'duplicate_line')) AS duplicates_agree,
       NOT EXISTS (SELECT FROM expected e LEFT JOIN failure f USING (row_num)
                   WHERE f.row_num IS NULL
                     AND e.row_num > (SELECT min(row_num) FROM failure WHERE cause = 'out_of_stock')) AS first_lines_first
FROM coupon_task t WHERE t.id = :task;
TABLE proof;
SELECT template_id, total_stock, coupons, row_count, memory_issued, memory_in_flight, ok, problem
FROM coupon_verify(4);
DO $$
BEGIN
    IF EXISTS (SELECT FROM proof p WHERE strpos(p::text, 'f') > 0) THEN
        RAISE EXCEPTION 'the distribution and its file disagree';
    END IF;
END
$$;
