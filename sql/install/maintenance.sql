-- Tidying: what time has done to coupons, and what is old

-- Neither SECURITY DEFINER nor with SET: such procedures could not commit.
CREATE PROCEDURE @extschema@.coupon_expire()
    LANGUAGE C
    AS 'MODULE_PATHNAME', 'coupon_expire';
COMMENT ON PROCEDURE @extschema@.coupon_expire() IS
    'stores the status "expired" with coupons that are; commits after each batch';

CREATE PROCEDURE @extschema@.coupon_purge()
    LANGUAGE C
    AS 'MODULE_PATHNAME', 'coupon_purge';
COMMENT ON PROCEDURE @extschema@.coupon_purge() IS
    'deletes what is older than coupon.keep_coupons, coupon.keep_events, coupon.keep_notifications, coupon.keep_reminders and coupon.keep_tasks; commits after each batch';

-- These run as the owner, and may fire triggers of others, who can change the search
-- path meanwhile: so names and operators in them are qualified all the same.  They ask
-- for the name of the schema, since ALTER SCHEMA RENAME does not change their text.

-- The stage of a task, if it is ours: an ordinary table of our owner.
CREATE FUNCTION @extschema@.coupon_stage_drop(task_id bigint) RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_extension e
                  WHERE e.extname OPERATOR(pg_catalog.=) 'coupon'::pg_catalog.name);
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_class c
               WHERE c.relnamespace OPERATOR(pg_catalog.=) ours::pg_catalog.regnamespace
               AND c.relname OPERATOR(pg_catalog.=)
                   pg_catalog.format('coupon_stage_%s'::pg_catalog.text, task_id)::pg_catalog.name
               AND c.relkind OPERATOR(pg_catalog.=) 'r'::pg_catalog."char"
               AND c.relowner OPERATOR(pg_catalog.=) current_user::pg_catalog.regrole::pg_catalog.oid) THEN
        EXECUTE pg_catalog.format('DROP TABLE IF EXISTS %s.coupon_stage_%s CASCADE', ours, task_id);
    END IF;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_stage_drop(bigint) IS 'drops the stage of a task that has ended; part of coupon_purge';

-- Called by coupon_purge as the owner, one transaction each, until it answers 0.
-- The stage comes first: where somebody reads it still, the task is left for
-- another day, whole.
CREATE FUNCTION @extschema@.coupon_task_purge(task_id bigint, finished_before timestamptz, max_rows bigint)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_extension e
                  WHERE e.extname OPERATOR(pg_catalog.=) 'coupon'::pg_catalog.name);
    child text;
    n bigint;
BEGIN
    EXECUTE pg_catalog.format('SELECT 1 FROM %s.coupon_task t WHERE t.id OPERATOR(pg_catalog.=) $1'
                              ' AND t.state OPERATOR(pg_catalog.=) ANY (''{success,failed,cancelled}''::pg_catalog.text[])'
                              ' AND t.finished_at OPERATOR(pg_catalog.<) $2 FOR UPDATE SKIP LOCKED', ours)
    INTO n USING task_id, finished_before;
    IF n IS NULL THEN
        RETURN 0;
    END IF;
    BEGIN
        EXECUTE pg_catalog.format('SELECT %s.coupon_stage_drop($1)', ours) USING task_id;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING USING MESSAGE :=
            pg_catalog.format('the stage of task %s is left for another day: %s'::pg_catalog.text, task_id, SQLERRM);
        RETURN 0;
    END;
    -- Not to be submitted again: only half of it may be left.
    EXECUTE pg_catalog.format('UPDATE %s.coupon_task t SET state = ''cancelled''::pg_catalog.text'
                              ' WHERE t.id OPERATOR(pg_catalog.=) $1'
                              ' AND t.state OPERATOR(pg_catalog.=) ''failed''::pg_catalog.text', ours) USING task_id;
    FOREACH child IN ARRAY '{coupon_task_failure,coupon_task_put_off,coupon_task_batch}'::pg_catalog.text[] LOOP
        EXECUTE pg_catalog.format('DELETE FROM %1$s.%2$I WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY('
                                  'SELECT c.ctid FROM %1$s.%2$I c'
                                  ' WHERE c.task_id OPERATOR(pg_catalog.=) $1 LIMIT $2))', ours, child)
        USING task_id, max_rows;
        GET DIAGNOSTICS n := ROW_COUNT;
        IF n OPERATOR(pg_catalog.=) max_rows THEN
            RETURN n;           -- the rest in the next transaction
        END IF;
    END LOOP;
    EXECUTE pg_catalog.format('DELETE FROM %s.coupon_task t WHERE t.id OPERATOR(pg_catalog.=) $1', ours) USING task_id;
    RETURN 0;
END
$$
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '1s'
    SET client_min_messages = warning;
COMMENT ON FUNCTION @extschema@.coupon_task_purge(bigint, timestamptz, bigint) IS
    'deletes a finished task with its records and stage, or so many of its records; part of coupon_purge';


-- A stage that somebody read when its task ended.
CREATE FUNCTION @extschema@.coupon_stage_purge() RETURNS bigint
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_extension e
                  WHERE e.extname OPERATOR(pg_catalog.=) 'coupon'::pg_catalog.name);
    ended bigint;
    n bigint := 0;
BEGIN
    FOR ended IN
        EXECUTE pg_catalog.format('SELECT t.id FROM %1$s.coupon_task t'
                                  -- Of one that was cancelled the rest may be asked for: it goes with the task.
                                  ' WHERE (t.state OPERATOR(pg_catalog.=) ''success''::pg_catalog.text'
                                  '  OR t.state OPERATOR(pg_catalog.=) ''cancelled''::pg_catalog.text AND NOT EXISTS'
                                  '   (SELECT FROM %1$s.coupon_task_batch b WHERE b.task_id OPERATOR(pg_catalog.=) t.id))'
                                  ' AND pg_catalog.to_regclass(pg_catalog.format(''%%s.coupon_stage_%%s''::pg_catalog.text, $1, t.id)) IS NOT NULL', ours)
        USING ours
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('SELECT %s.coupon_stage_drop($1)', ours) USING ended;
            n := n OPERATOR(pg_catalog.+) 1;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING USING MESSAGE :=
                            pg_catalog.format('the stage of task %s is left for another day: %s'::pg_catalog.text, ended, SQLERRM);
        END;
    END LOOP;
    RETURN n;
END
$$
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '1s'
    SET client_min_messages = warning;
COMMENT ON FUNCTION @extschema@.coupon_stage_purge() IS
    'drops the stages of tasks that have ended, where they are still there; part of coupon_purge';
