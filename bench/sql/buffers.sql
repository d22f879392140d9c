-- Pages that a statement reads, from the cache or from disk.
CREATE FUNCTION bench_buffers(statement text) RETURNS bigint LANGUAGE plpgsql
    SET enable_seqscan = off SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || statement INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::bigint +
           (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::bigint;
END
$$;
