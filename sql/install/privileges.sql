-- What a dump contains; of a partitioned table each leaf, since its parent
-- alone would dump no rows.
SELECT pg_extension_config_dump('@extschema@.coupon_template'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_stock'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_watermark'::regclass, '');
-- Not of roles that were dropped: the number of such a one would be another role's elsewhere.
SELECT pg_extension_config_dump('@extschema@.coupon_role'::regclass,
    'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) role::pg_catalog.oid)');
SELECT pg_extension_config_dump('@extschema@.coupon_event'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_task'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_task_batch'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_task_put_off'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_task_failure'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_remind'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_secret'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_channel'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_message'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_contact'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_mute'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_notification'::regclass, '');
SELECT pg_extension_config_dump('@extschema@.coupon_notification_history'::regclass, '');
DO $$
BEGIN
    FOR i IN 0..31 LOOP
        PERFORM pg_extension_config_dump(format('@extschema@.user_coupon_%s', i)::regclass, '');
    END LOOP;
END
$$;

-- Granting

-- ALTER SCHEMA RENAME does not change the text of a function: those here ask for the name
-- of the schema.

-- Which objects a kind of role needs.
CREATE FUNCTION @extschema@.coupon_grant_objects(kind text)
    RETURNS TABLE (object text, privileges text)
    LANGUAGE sql STABLE
    AS $$
    WITH ours (namespace) AS (SELECT e.extnamespace::regnamespace FROM pg_extension e WHERE e.extname = 'coupon')
    SELECT format('ROUTINE %s', p.oid::regprocedure), 'EXECUTE'
    FROM pg_proc p JOIN ours ON p.pronamespace = ours.namespace
    WHERE (p.proname IN ('coupon_outcomes', 'coupon_task_causes', 'coupon_channel_names', 'coupon_require', 'coupon_stock_left',
                         'coupon_template_get', 'coupon_shop_allowed', 'coupon_shop_operated')
           OR p.proname ~ '^remind_bitmap(_|$)'
           OR (kind IN ('application', 'operator') AND p.proname IN ('coupon_browse', 'coupon_browse_count', 'coupon_wallet',
               'coupon_wallet_count', 'coupon_remind_list', 'coupon_contact_set', 'coupon_contact_mute',
               'coupon_quote', 'coupon_release', 'coupon_refund'))
           OR (kind = 'application' AND p.proname IN ('coupon_receive', 'coupon_receive_many',
               'coupon_receive_new_user', 'coupon_remind_create', 'coupon_remind_cancel', 'coupon_lock', 'coupon_use',
               'coupon_wallet_hide'))
           OR (kind = 'operator' AND p.proname IN ('coupon_template_create', 'coupon_template_change',
               'coupon_template_copy', 'coupon_template_delete', 'coupon_preheat', 'coupon_give', 'coupon_revoke', 'coupon_stock_adopt', 'coupon_stock_rebuild', 'coupon_fold',
               'coupon_task_create', 'coupon_task_submit', 'coupon_task_clear', 'coupon_task_check', 'coupon_task_pause', 'coupon_task_resume', 'coupon_task_cancel', 'coupon_task_rest', 'coupon_task_run',
               'coupon_task_run_due', 'coupon_worker_wake', 'coupon_expire', 'coupon_purge',
               'coupon_channel_set', 'coupon_channel_enable', 'coupon_message_set', 'coupon_channel_test', 'coupon_channel_preview',
               'coupon_channel_secret', 'coupon_notification_replay',
               'coupon_remind_tick'))
           OR (kind IN ('operator', 'monitor') AND p.proname IN ('coupon_verify', 'coupon_stat_entries',
               'coupon_stat_cache_counters', 'coupon_server_state', 'coupon_stat_workers', 'coupon_schema_creators', 'coupon_attached_objects',
               'coupon_stuck')))
      AND EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                  WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                    AND d.deptype = 'e' AND e.extname = 'coupon')
    UNION ALL
    SELECT format('TABLE %s.coupon_template', ours.namespace), 'SELECT'
    FROM ours WHERE kind = 'operator'
    UNION ALL
    SELECT format('TABLE %s.%I', ours.namespace, v), 'SELECT'
    FROM ours, unnest(ARRAY['coupon_held', 'coupon_stat', 'coupon_stat_cache', 'coupon_stat_worker', 'coupon_health',
                      'coupon_task', 'coupon_task_failure', 'coupon_task_progress', 'coupon_stuck_tasks',
                      'coupon_event', 'coupon_message',
                      'coupon_stat_channel', 'coupon_stuck_notifications', 'coupon_reminders']) AS v
    WHERE kind IN ('operator', 'monitor')
    UNION ALL
    -- What receivers answer is for operators.
    SELECT format('TABLE %s.%I', ours.namespace, v.name),
           CASE kind WHEN 'operator' THEN 'SELECT'
                ELSE format('SELECT (id, channel, kind, template_id, minutes, task_id, user_ids, address, due_at, %s,'
                            ' attempts, last_status, last_error)', v.own) END
    FROM ours, (VALUES ('coupon_notification', 'next_at, first_attempt, leased_until, lane'),
                       ('coupon_notification_history', 'state, sent_at, ended_at')) AS v (name, own)
    WHERE kind IN ('operator', 'monitor')
    UNION ALL
    -- Not what may hold a key: endpoint, username, body_template.
    SELECT format('TABLE %s.coupon_channel', ours.namespace),
           'SELECT (channel, mail_from, batch_size, max_in_flight, timeout,'
           ' enabled, require_tls, user_id_is_address, recipient_status, success_when,'
           ' dead_recipients, retry_recipients, per_second, quiet_from, quiet_until, time_zone, quiet_reminders,'
           ' disabled_reason, updated_at)'
    FROM ours WHERE kind IN ('operator', 'monitor')
    UNION ALL
    SELECT format('TABLE %s.%I', ours.namespace, v), 'SELECT'
    FROM ours, unnest(ARRAY['coupon_contact', 'coupon_mute']) AS v WHERE kind = 'operator'
    UNION ALL
    -- For the policies of notifications: which templates are of one's shop.
    SELECT format('TABLE %s.coupon_template', ours.namespace), 'SELECT (id, shop_number)'
    FROM ours WHERE kind = 'monitor'
    UNION ALL
    SELECT format('TYPE %s.remind_bitmap', ours.namespace), 'USAGE' FROM ours
    UNION ALL
    SELECT format('SCHEMA %s', ours.namespace), 'USAGE' FROM ours
    $$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_grant_objects(text) IS 'lists what coupon_grant gives to a kind of role';

CREATE FUNCTION @extschema@.coupon_grant(role regrole, kind text, shop_number bigint DEFAULT NULL)
    RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE e.extname = 'coupon');
    r record;
BEGIN
    IF role IS NULL OR role::oid = 0 THEN
        RAISE EXCEPTION 'role must be given' USING ERRCODE = 'VC012',
            HINT = 'Create the role first: coupon_grant makes none.';
    END IF;
    IF kind IS NULL OR kind NOT IN ('application', 'operator', 'monitor') THEN
        RAISE EXCEPTION '"%" is not a kind of role', COALESCE(kind, 'NULL') USING ERRCODE = 'VC012',
            HINT = 'Use application, operator or monitor.';
    END IF;
    IF shop_number <= 0 THEN
        RAISE EXCEPTION 'shop number % is not positive', shop_number USING ERRCODE = 'VC012';
    END IF;
    -- A number left over from a dropped role must not become another one's.
    EXECUTE format('DELETE FROM %s.coupon_role c WHERE NOT EXISTS'
                   ' (SELECT FROM pg_roles known WHERE known.oid = c.role::oid)', ours);
    EXECUTE format('INSERT INTO %s.coupon_role (role, kind, shop_number) VALUES ($1, $2, $3)'
                   ' ON CONFLICT DO NOTHING', ours) USING role, kind, shop_number;
    FOR r IN EXECUTE format('SELECT * FROM %s.coupon_grant_objects($1)', ours) USING kind LOOP
        EXECUTE format('GRANT %s ON %s TO %s', r.privileges, r.object, role);
    END LOOP;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_grant(regrole, text, bigint) IS
    'gives a role what an application, operator or monitor needs, bound to a shop if one is named';

CREATE FUNCTION @extschema@.coupon_grant_revoke(role regrole, kind text, shop_number bigint DEFAULT NULL)
    RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    ours text := (SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE e.extname = 'coupon');
    r record;
    k text;
    n bigint;
BEGIN
    -- What the role is just making is seen as well: whoever makes a task has it to the end.
    IF kind = 'operator' THEN
        EXECUTE format('LOCK TABLE ONLY %s.coupon_task IN SHARE MODE', ours);
    END IF;
    EXECUTE format('DELETE FROM %s.coupon_role c WHERE c.role = $1 AND c.kind = $2'
                   ' AND c.shop_number IS NOT DISTINCT FROM $3', ours) USING role, kind, shop_number;
    GET DIAGNOSTICS n := ROW_COUNT;
    IF n = 0 THEN
        RAISE EXCEPTION 'role % has no such grant', role USING ERRCODE = 'VC012',
            HINT = 'SELECT * FROM coupon_role lists them.';
    END IF;
    FOR r IN EXECUTE format('SELECT * FROM %s.coupon_grant_objects($1)', ours) USING kind LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s', r.privileges, r.object, role);
    END LOOP;
    -- The stages that it has made are the shop's, or any shop's.
    IF kind = 'operator' THEN
        FOR r IN EXECUTE format('SELECT c.oid::pg_catalog.regclass AS stage FROM %1$s.coupon_task t JOIN pg_class c'
                                ' ON c.relname = ''coupon_stage_''::text || t.id::text AND c.relnamespace = $1::pg_catalog.regnamespace::oid'
                                ' WHERE ($2 IS NULL OR t.shop_number = $2) AND NOT EXISTS (SELECT FROM %1$s.coupon_role o'
                                '  WHERE o.role = $3 AND o.kind = ''operator''::text AND (o.shop_number IS NULL OR o.shop_number = t.shop_number))', ours)
                 USING ours, shop_number, role LOOP
            EXECUTE format('REVOKE ALL ON TABLE %s FROM %s', r.stage, role);
        END LOOP;
    END IF;
    -- What the role's other grants need as well.
    FOR k IN EXECUTE format('SELECT DISTINCT c.kind FROM %s.coupon_role c WHERE c.role = $1', ours)
             USING role LOOP
        FOR r IN EXECUTE format('SELECT * FROM %s.coupon_grant_objects($1)', ours) USING k LOOP
            EXECUTE format('GRANT %s ON %s TO %s', r.privileges, r.object, role);
        END LOOP;
    END LOOP;
END
$$
    SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION @extschema@.coupon_grant_revoke(regrole, text, bigint) IS 'takes back what coupon_grant has given';

-- The planner's estimates show what it has sampled of a column, also of rows that row level
-- security hides (EXPLAIN, with operators that are leakproof).  No plan of ours needs samples
-- of these.
ALTER TABLE @extschema@.coupon_template ALTER COLUMN name SET STATISTICS 0, ALTER COLUMN usage_note SET STATISTICS 0,
    ALTER COLUMN unmet_note SET STATISTICS 0, ALTER COLUMN image_url SET STATISTICS 0, ALTER COLUMN request_id SET STATISTICS 0;
ALTER TABLE @extschema@.coupon_contact ALTER COLUMN address SET STATISTICS 0;
ALTER TABLE @extschema@.coupon_event ALTER COLUMN order_id SET STATISTICS 0, ALTER COLUMN reason SET STATISTICS 0, ALTER COLUMN session_role SET STATISTICS 0;
ALTER TABLE @extschema@.coupon_task ALTER COLUMN name SET STATISTICS 0, ALTER COLUMN request_id SET STATISTICS 0,
    ALTER COLUMN last_error SET STATISTICS 0, ALTER COLUMN fail_reason SET STATISTICS 0;
ALTER TABLE @extschema@.coupon_task_failure ALTER COLUMN user_id SET STATISTICS 0, ALTER COLUMN detail SET STATISTICS 0;
ALTER TABLE @extschema@.coupon_notification ALTER COLUMN address SET STATISTICS 0, ALTER COLUMN last_error SET STATISTICS 0,
    ALTER COLUMN last_answer SET STATISTICS 0, ALTER COLUMN user_ids SET STATISTICS 0;
ALTER TABLE @extschema@.coupon_notification_history ALTER COLUMN address SET STATISTICS 0, ALTER COLUMN last_error SET STATISTICS 0,
    ALTER COLUMN last_answer SET STATISTICS 0, ALTER COLUMN user_ids SET STATISTICS 0;

-- Nothing to PUBLIC.
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT p.oid::regprocedure AS f FROM pg_proc p
             WHERE p.pronamespace = '@extschema@'::regnamespace
               AND (p.proname ~ '^(user_)?coupon_'
                    OR p.proname ~ '^remind_bitmap(_|$)')
               AND EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                           WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                             AND d.deptype = 'e' AND e.extname = 'coupon') LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', r.f);
    END LOOP;
END
$$;
-- Who has a column of a type stops its ALTER TYPE, or the ALTER TABLE of a row type's table.
-- pg_dump knows no privileges of row types of tables, and warns of each.
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT t.oid::regtype AS t FROM pg_type t
             JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
             JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'coupon'
             WHERE t.typnamespace = '@extschema@'::regnamespace AND t.typelem = 0
             UNION ALL SELECT c.reltype::regtype FROM pg_class c
             JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
             JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'coupon'
             WHERE c.relnamespace = '@extschema@'::regnamespace AND c.relkind IN ('r', 'p', 'v') LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', r.t);
    END LOOP;
END
$$;

DO $$
DECLARE
    creators text;
BEGIN
    SELECT string_agg(c, ', ') INTO creators FROM @extschema@.coupon_schema_creators() c;
    IF creators IS NOT NULL THEN
        RAISE WARNING 'objects can be created in the schema of the extension by %', creators
            USING HINT = 'Give it a schema of its own: CREATE SCHEMA coupon; CREATE EXTENSION coupon SCHEMA coupon. Or REVOKE CREATE ON SCHEMA @extschema@ FROM each of them.';
    END IF;
END
$$;

-- The launcher starts a worker here.
SELECT @extschema@.coupon_worker_wake();
