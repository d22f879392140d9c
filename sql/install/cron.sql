-- Scheduling through pg_cron

-- A name carries the database, since names are unique per user only, and one
-- pg_cron may serve several databases; a name too long for pg_cron before 1.5
-- carries its OID.
CREATE FUNCTION @extschema@.coupon_cron_jobs()
    RETURNS TABLE (jobname text, schedule text, command text)
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN octet_length(j.procedure || '@' || d.datname) < 64
                THEN j.procedure || '@' || d.datname
                ELSE j.procedure || '@' || d.oid END,
           j.schedule, format('CALL %s.%s()', e.extnamespace::regnamespace, j.procedure)
    FROM (VALUES ('coupon_task_run_due', '* * * * *'),
                 ('coupon_purge', '37 3 * * *')) AS j (procedure, schedule),
         pg_database d, pg_extension e
    WHERE d.datname = current_database() AND e.extname = 'coupon'
    $$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_cron_jobs() IS 'the jobs that coupon_cron_install schedules in this database';

CREATE FUNCTION @extschema@.coupon_cron_require() RETURNS void
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE e.extname = 'coupon');
    home text;
    hint text;
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
        RETURN;
    END IF;
    BEGIN
        home := current_setting('cron.database_name', true);
    EXCEPTION WHEN insufficient_privilege THEN
        home := NULL;           -- who may not read it gets the general hint
    END;
    IF COALESCE(home, '') = '' THEN
        hint := format('Add pg_cron to shared_preload_libraries, set cron.database_name = %L, restart,'
                       ' and run CREATE EXTENSION pg_cron.', current_database());
    ELSIF home = current_database() THEN
        hint := 'Run CREATE EXTENSION pg_cron in this database.';
    ELSE
        EXECUTE format('SELECT string_agg(format(''SELECT cron.schedule_in_database(%%L, %%L, %%L, %%L);'', j.jobname,'
                       ' j.schedule, j.command, current_database()), '' '') FROM %s.coupon_cron_jobs() j', ours)
        INTO hint;
        hint := format('pg_cron is at home in database %I. Run there: %s', home, hint);
    END IF;
    RAISE EXCEPTION 'pg_cron is not installed in this database' USING ERRCODE = 'VC015', HINT = hint;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_cron_require() IS 'raises VC015 where pg_cron is not installed, with a hint how to schedule nevertheless';

CREATE FUNCTION @extschema@.coupon_cron_remove()
    RETURNS TABLE (jobname text, schedule text, command text, jobid bigint)
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE e.extname = 'coupon');
BEGIN
    EXECUTE format('SELECT %s.coupon_cron_require()', ours);
    -- By number: by name a job is only found for its own user.
    FOR jobname, schedule, command, jobid IN EXECUTE
        format('SELECT c.jobname::text, c.schedule, c.command, c.jobid'
               ' FROM cron.job c JOIN %s.coupon_cron_jobs() j ON j.jobname = c.jobname::text'
               ' WHERE c.database = current_database() ORDER BY c.jobid', ours)
    LOOP
        PERFORM cron.unschedule(jobid);
        RETURN NEXT;
    END LOOP;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_cron_remove() IS 'takes the jobs of coupon_cron_install out of pg_cron, and tells which';

CREATE FUNCTION @extschema@.coupon_cron_install()
    RETURNS TABLE (jobname text, schedule text, command text, jobid bigint)
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE e.extname = 'coupon');
BEGIN
    EXECUTE format('SELECT %s.coupon_cron_require()', ours);
    -- Those of another user would run as well, under the same name.
    EXECUTE format('SELECT cron.unschedule(c.jobid)'
                   ' FROM cron.job c JOIN %s.coupon_cron_jobs() j ON j.jobname = c.jobname::text'
                   ' WHERE c.database = current_database() AND c.username <> current_user', ours);
    FOR jobname, schedule, command IN EXECUTE format('SELECT * FROM %s.coupon_cron_jobs()', ours) LOOP
        jobid := cron.schedule(jobname, schedule, command);
        RETURN NEXT;
    END LOOP;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_cron_install() IS
    'schedules tasks, coupon_expire and coupon_purge of this database through pg_cron; again: sets them right';

-- Called by coupon_purge as the owner.  What pg_cron has run for us is known by
-- its command, also after the job has gone.
CREATE FUNCTION @extschema@.coupon_cron_trim(ended_before timestamptz, max_rows bigint) RETURNS bigint
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_extension e
                  WHERE e.extname OPERATOR(pg_catalog.=) 'coupon'::pg_catalog.name);
    commands text[];
    n bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_extension
                   WHERE extname OPERATOR(pg_catalog.=) 'pg_cron'::pg_catalog.name) THEN
        RETURN 0;
    ELSIF NOT pg_catalog.has_schema_privilege('cron'::pg_catalog.text, 'USAGE'::pg_catalog.text) THEN
        RETURN 0;               -- the owner of coupon is no superuser any more
    ELSIF NOT (pg_catalog.has_table_privilege('cron.job'::pg_catalog.text, 'SELECT'::pg_catalog.text)
               AND pg_catalog.has_table_privilege('cron.job_run_details'::pg_catalog.text, 'SELECT'::pg_catalog.text)
               AND pg_catalog.has_table_privilege('cron.job_run_details'::pg_catalog.text, 'DELETE'::pg_catalog.text)) THEN
        RETURN 0;
    END IF;
    EXECUTE pg_catalog.format('SELECT pg_catalog.array_agg(j.command) FROM %s.coupon_cron_jobs() j', ours) INTO commands;
    DELETE FROM cron.job_run_details WHERE runid OPERATOR(pg_catalog.=) ANY (ARRAY(
        SELECT r.runid FROM cron.job_run_details r
        LEFT JOIN cron.job c ON c.jobid OPERATOR(pg_catalog.=) r.jobid
        WHERE COALESCE(r.end_time, r.start_time) OPERATOR(pg_catalog.<) ended_before
          AND r.database OPERATOR(pg_catalog.=) pg_catalog.current_database()::pg_catalog.text
          AND (pg_catalog.starts_with(c.jobname::pg_catalog.text, 'coupon_'::pg_catalog.text)
               OR r.command OPERATOR(pg_catalog.=) ANY (commands))
        LIMIT max_rows));
    GET DIAGNOSTICS n := ROW_COUNT;
    RETURN n;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_cron_trim(timestamptz, bigint) IS
    'deletes old rows about our jobs from cron.job_run_details; part of coupon_purge';

