-- Seeing inside

CREATE FUNCTION @extschema@.coupon_stat_entries()
    RETURNS TABLE (template_id bigint, quota bigint, issued bigint, in_flight bigint,
                   stock_left bigint, claims bigint, claims_per_second float8,
                   refused jsonb, returned bigint)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_stat_entries';
COMMENT ON FUNCTION @extschema@.coupon_stat_entries() IS 'what the shared cache holds of this database; use the view coupon_stat';

CREATE FUNCTION @extschema@.coupon_stat_cache_counters(OUT capacity int, OUT entries int, OUT lookups bigint,
                                           OUT loads bigint, OUT refreshes bigint, OUT unknown bigint,
                                           OUT evictions bigint, OUT invalidations bigint,
                                           OUT user_filter_fill float8)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_stat_cache_counters';
COMMENT ON FUNCTION @extschema@.coupon_stat_cache_counters() IS 'counters of the shared cache; use the view coupon_stat_cache';

CREATE FUNCTION @extschema@.coupon_server_state(OUT preloaded boolean, OUT in_recovery boolean,
                                    OUT id_seconds_ahead bigint, OUT worker_wanted boolean,
                                    OUT preload_command text)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_server_state';
COMMENT ON FUNCTION @extschema@.coupon_server_state() IS 'what coupon_health cannot ask SQL';

CREATE FUNCTION @extschema@.coupon_stat_workers()
    RETURNS TABLE (kind text, datid oid, pid int, state text, started_at timestamptz,
                   last_turn_at timestamptz, turns bigint, errors bigint,
                   last_error text, last_error_at timestamptz)
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_stat_workers';
COMMENT ON FUNCTION @extschema@.coupon_stat_workers() IS 'the launcher and the workers of all databases; use the view coupon_stat_worker';

CREATE FUNCTION @extschema@.coupon_worker_wake() RETURNS void
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'coupon_worker_wake';
COMMENT ON FUNCTION @extschema@.coupon_worker_wake() IS
    'makes the worker of this database look at everything when the transaction commits';

CREATE FUNCTION @extschema@.coupon_schema_creators() RETURNS SETOF text
    LANGUAGE sql STABLE
    BEGIN ATOMIC
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END
        FROM pg_extension e
        JOIN pg_namespace n ON n.oid = e.extnamespace
        JOIN pg_database d ON d.datname = current_database()
        CROSS JOIN aclexplode(COALESCE(n.nspacl, acldefault('n', n.nspowner))) a
        LEFT JOIN pg_roles g ON g.oid = a.grantee
        LEFT JOIN pg_roles r ON r.oid = CASE WHEN g.rolname = 'pg_database_owner' THEN d.datdba ELSE g.oid END
        WHERE e.extname = 'coupon' AND a.privilege_type = 'CREATE'
          AND (a.grantee = 0 OR NOT r.rolsuper AND r.oid <> e.extowner)
        ORDER BY 1;
    END;
COMMENT ON FUNCTION @extschema@.coupon_schema_creators() IS
    'roles besides the owner of the extension who may create objects in its schema: nobody, as it should be';

-- From the parts of a table, and the types of its columns, along pg_depend to all that is
-- used: functions, types, operators, sequences and other tables; to negators and casts too,
-- which PostgreSQL looks up by itself.  What is built in is not in there.  That a domain
-- has a CHECK, and a composite type columns, is recorded the other way round; that a
-- foreign key casts, and what the text of an SQL function names, is not recorded at all.
CREATE FUNCTION @extschema@.coupon_attached_objects(relation regclass)
    RETURNS TABLE (catalog oid, id oid, object text, problem text)
    LANGUAGE sql STABLE PARALLEL UNSAFE
    SET jit = off
    BEGIN ATOMIC
        WITH RECURSIVE used (classid, objid, objsubid) AS (
            SELECT p.classid, p.objid, 0 FROM (
                SELECT 'pg_class'::regclass::oid, relation::oid
                UNION ALL SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i WHERE i.indrelid = relation
                UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c WHERE c.conrelid = relation
                UNION ALL SELECT 'pg_attrdef'::regclass, a.oid FROM pg_attrdef a WHERE a.adrelid = relation
                UNION ALL SELECT 'pg_trigger'::regclass, t.oid FROM pg_trigger t WHERE t.tgrelid = relation
                UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid FROM pg_statistic_ext s WHERE s.stxrelid = relation
                UNION ALL SELECT 'pg_policy'::regclass, o.oid FROM pg_policy o WHERE o.polrelid = relation) p (classid, objid)
            UNION SELECT n.classid, n.objid, n.objsubid FROM used u CROSS JOIN LATERAL (
                SELECT d.refclassid, d.refobjid, d.refobjsubid FROM pg_depend d
                WHERE d.classid = u.classid AND d.objid = u.objid AND u.objsubid IN (0, d.objsubid)
                  AND d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass,
                                       'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_cast'::regclass)
                UNION ALL SELECT 'pg_constraint'::regclass, c.oid, 0 FROM pg_constraint c
                WHERE u.classid = 'pg_type'::regclass AND c.contypid = u.objid
                UNION ALL SELECT 'pg_operator'::regclass, x.other, 0 FROM pg_operator o
                CROSS JOIN LATERAL (VALUES (o.oprnegate), (o.oprcom)) x (other)
                WHERE u.classid = 'pg_operator'::regclass AND o.oid = u.objid AND x.other >= 16384
                -- A cast is made by whoever has one of its types: between two of a superuser's.
                UNION ALL SELECT 'pg_cast'::regclass, c.oid, 0 FROM pg_cast c
                JOIN pg_type y ON y.oid IN (c.castsource, c.casttarget) AND (y.oid <> u.objid OR c.castsource = c.casttarget)
                JOIN pg_roles b ON b.oid = y.typowner AND b.rolsuper
                WHERE u.classid = 'pg_type'::regclass AND u.objid IN (c.castsource, c.casttarget)
                UNION ALL SELECT 'pg_class'::regclass, t.typrelid, 0 FROM pg_type t
                WHERE u.classid = 'pg_type'::regclass AND t.oid = u.objid AND t.typrelid <> 0
                -- What an operator class calls depends on it, not it on that.
                UNION ALL SELECT 'pg_proc'::regclass, f.amproc, 0 FROM pg_opclass c JOIN pg_amproc f ON f.amprocfamily = c.opcfamily
                WHERE u.classid = 'pg_opclass'::regclass AND c.oid = u.objid AND f.amproc >= 16384
                UNION ALL SELECT 'pg_operator'::regclass, f.amopopr, 0 FROM pg_opclass c JOIN pg_amop f ON f.amopfamily = c.opcfamily
                WHERE u.classid = 'pg_opclass'::regclass AND c.oid = u.objid AND f.amopopr >= 16384
                -- Arrays and row types take the operator class that their parts have by default.
                UNION ALL SELECT 'pg_opclass'::regclass, c.oid, 0 FROM pg_opclass c
                WHERE u.classid = 'pg_type'::regclass AND u.objid >= 16384 AND c.opcintype = u.objid AND c.oid >= 16384
                -- Tables whose keys refer to this one: what is deleted there is deleted as their owner.
                UNION ALL SELECT 'pg_class'::regclass, k.conrelid, 0 FROM pg_constraint k
                WHERE u.classid = 'pg_class'::regclass AND u.objid = relation AND k.confrelid = relation AND k.contype = 'f'
                -- What is planned with a table that is not ours: ours are judged one by one.
                UNION ALL SELECT 'pg_class'::regclass, x.objid, 0 FROM (
                    SELECT h.inhrelid, h.inhparent FROM pg_inherits h
                    UNION ALL SELECT i.indexrelid, i.indrelid FROM pg_index i
                    UNION ALL SELECT k.conrelid, k.confrelid FROM pg_constraint k WHERE k.contype = 'f') x (objid, relid)
                WHERE u.classid = 'pg_class'::regclass AND x.relid = u.objid
                  AND EXISTS (SELECT FROM pg_class c WHERE c.oid = u.objid AND c.relkind IN ('r', 'p', 'm'))
                  AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = u.classid AND e.objid = u.objid AND e.deptype = 'e')
                -- What a view reads, or a table that a function of a superuser's uses.
                UNION ALL SELECT x.classid, x.objid, 0 FROM (
                    SELECT 'pg_rewrite'::regclass, r.oid, r.ev_class FROM pg_rewrite r
                    UNION ALL SELECT 'pg_trigger'::regclass, t.oid, t.tgrelid FROM pg_trigger t
                    UNION ALL SELECT 'pg_attrdef'::regclass, a.oid, a.adrelid FROM pg_attrdef a
                    UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid, s.stxrelid FROM pg_statistic_ext s
                    UNION ALL SELECT 'pg_constraint'::regclass, k.oid, k.conrelid FROM pg_constraint k
                    UNION ALL SELECT 'pg_policy'::regclass, o.oid, o.polrelid FROM pg_policy o) x (classid, objid, relid)
                WHERE u.classid = 'pg_class'::regclass AND u.objid = x.relid AND u.objid <> relation
            ) n (classid, objid, objsubid)),
        extension AS (SELECT e.oid, e.extowner FROM pg_extension e WHERE e.extname = 'coupon')
        SELECT u.classid, u.objid, pg_describe_object(u.classid, u.objid, 0),
               CASE WHEN NOT a.rolsuper AND a.oid <> x.extowner THEN format('belongs to role %I', a.rolname)
                    WHEN o.can_be_inlined THEN 'is an SQL function whose body is a text, without a SET clause' END
        FROM used u
        CROSS JOIN LATERAL (
            SELECT p.proowner, p.prosqlbody IS NULL AND p.proconfig IS NULL AND l.lanname = 'sql'
            FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
            WHERE u.classid = 'pg_proc'::regclass AND p.oid = u.objid
            UNION ALL SELECT t.typowner, false FROM pg_type t
            WHERE u.classid = 'pg_type'::regclass AND t.oid = u.objid
            UNION ALL SELECT r.oprowner, false FROM pg_operator r
            WHERE u.classid = 'pg_operator'::regclass AND r.oid = u.objid
            UNION ALL SELECT c.relowner, false FROM pg_class c
            WHERE u.classid = 'pg_class'::regclass AND c.oid = u.objid
              AND c.relkind NOT IN ('i', 'I') AND c.oid <> relation) o (owner, can_be_inlined)
        JOIN pg_roles a ON a.oid = o.owner
        CROSS JOIN extension x
        WHERE NOT EXISTS (SELECT FROM pg_depend d
                          WHERE d.classid = u.classid AND d.objid = u.objid AND d.deptype = 'e'
                            AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid)
        UNION ALL SELECT c.tableoid, c.oid, 'the table itself', format('belongs to role %I', a.rolname)
        FROM pg_class c JOIN pg_roles a ON a.oid = c.relowner CROSS JOIN extension x
        WHERE c.oid = relation AND NOT a.rolsuper AND a.oid <> x.extowner
        UNION ALL SELECT r.tableoid, r.oid, pg_describe_object('pg_constraint'::regclass, c.oid, 0),
                         CASE WHEN NOT a.rolsuper AND a.oid <> x.extowner THEN format('belongs to role %I', a.rolname) END
        FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid JOIN pg_roles a ON a.oid = r.relowner CROSS JOIN extension x
        WHERE c.confrelid = relation AND c.contype = 'f'
        UNION ALL SELECT c.tableoid, c.oid, 'the table itself', 'is a foreign table'
        FROM pg_class c WHERE c.oid = relation AND c.relkind = 'f'
        UNION ALL SELECT r.tableoid, r.oid, pg_describe_object('pg_rewrite'::regclass, r.oid, 0), 'is a rule'
        FROM pg_rewrite r WHERE r.ev_class = relation
        UNION ALL SELECT c.tableoid, c.oid, pg_describe_object('pg_constraint'::regclass, c.oid, 0), 'is between columns that are not of one built-in type'
        FROM pg_constraint c
        CROSS JOIN LATERAL unnest(c.conkey, c.confkey) k (here, there)
        JOIN pg_attribute h ON h.attrelid = c.conrelid AND h.attnum = k.here
        JOIN pg_attribute t ON t.attrelid = c.confrelid AND t.attnum = k.there
        WHERE relation IN (c.conrelid, c.confrelid) AND c.contype = 'f'
          AND (h.atttypid <> t.atttypid OR h.atttypid >= 16384);
    END;
COMMENT ON FUNCTION @extschema@.coupon_attached_objects(regclass) IS
    'what is used by triggers, expressions, keys and statistics of a table, and is neither built in nor ours; and why the table cannot be used with it, null: it can';

CREATE VIEW @extschema@.coupon_stat WITH (security_barrier) AS
SELECT s.template_id, t.name, t.status, t.total_stock, s.quota, s.issued, s.in_flight,
       s.stock_left, s.claims, s.claims_per_second, s.refused, s.returned
FROM @extschema@.coupon_stat_entries() s JOIN @extschema@.coupon_template t ON t.id = s.template_id
WHERE @extschema@.coupon_shop_allowed(t.shop_number);
COMMENT ON VIEW @extschema@.coupon_stat IS
    'templates in the shared cache: stock now; claims, refusals by outcome and returned units since the load';

CREATE VIEW @extschema@.coupon_stat_cache AS
SELECT c.capacity, c.entries, c.lookups, c.loads, c.refreshes, c.unknown, c.evictions,
       c.invalidations,
       round(1 - c.loads::numeric / nullif(c.lookups, 0), 4) AS hit_rate,
       round(c.user_filter_fill::numeric, 4) AS user_filter_fill
FROM @extschema@.coupon_stat_cache_counters() c;
COMMENT ON VIEW @extschema@.coupon_stat_cache IS 'the shared cache of templates since the start of the server, all databases together';

CREATE VIEW @extschema@.coupon_stat_worker AS
SELECT w.kind, d.datname AS database, w.pid, w.state, w.started_at, w.last_turn_at, w.turns,
       w.errors, w.last_error, w.last_error_at, q.queue_depth, q.lateness
FROM @extschema@.coupon_stat_workers() w LEFT JOIN pg_database d ON d.oid = w.datid
LEFT JOIN (
    SELECT k.kind, COALESCE(sum(n.waiting), 0)::bigint AS queue_depth,
           COALESCE(clock_timestamp() - min(n.oldest), '0') AS lateness
    FROM (VALUES ('worker', false), ('mailer', true)) AS k (kind, is_mail)
    LEFT JOIN @extschema@.coupon_channel_state c ON c.enabled AND (c.endpoint ILIKE 'smtp%') = k.is_mail
    LEFT JOIN LATERAL (
        SELECT count(*) AS waiting,
               min(o.next_at) FILTER (WHERE o.next_at <= clock_timestamp()) AS oldest
        FROM @extschema@.coupon_notification o
        WHERE o.channel = c.channel
          AND (o.leased_until IS NULL OR o.leased_until <= clock_timestamp())) n ON true
    GROUP BY k.kind) q ON q.kind = w.kind AND d.datname = current_database();
COMMENT ON VIEW @extschema@.coupon_stat_worker IS
    'the launcher, and the worker and mailer of each database: what they do, what has failed, and what waits for them';

CREATE VIEW @extschema@.coupon_health AS
WITH state AS MATERIALIZED (SELECT * FROM @extschema@.coupon_server_state()),
cache AS MATERIALIZED (SELECT * FROM @extschema@.coupon_stat_cache),
mark AS MATERIALIZED (SELECT COALESCE(max(w.upto), 0) AS upto FROM @extschema@.coupon_watermark w WHERE w.holder = 0),
unfolded AS MATERIALIZED (
    SELECT count(*) AS n FROM (SELECT FROM @extschema@.user_coupon c
        WHERE c.id > (SELECT upto FROM mark) AND c.holder <> 3 LIMIT 1000001) x),
worker AS MATERIALIZED (
    SELECT s.preloaded, s.in_recovery, s.worker_wanted, w.state, w.last_error, w.last_error_at,
           COALESCE(current_setting('coupon.databases', true), '') AS databases,
           w.last_error_at > now() - interval '10 minutes' AS failing
    FROM state s LEFT JOIN @extschema@.coupon_stat_workers() w
        ON w.kind = 'worker' AND w.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
triggers AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE g.tgenabled <> 'A') AS off,
           count(*) AS n
    FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
    WHERE p.proname IN ('coupon_template_guard', 'coupon_stock_guard', 'coupon_watermark_guard',
                        'user_coupon_guard', 'coupon_role_changed')
      AND p.pronamespace = '@extschema@'::regnamespace),
distrusted AS MATERIALIZED (
    SELECT string_agg(DISTINCT format('%s: %s %s', c.oid::regclass, u.object, u.problem), '; ') AS objects
    FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'coupon'
    JOIN pg_class c ON c.oid = d.objid AND c.relkind IN ('r', 'p')
    CROSS JOIN LATERAL @extschema@.coupon_attached_objects(c.oid) u
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
      AND u.problem IS NOT NULL),
oversold AS MATERIALIZED (
    SELECT count(*) AS n FROM @extschema@.coupon_stat_entries() s WHERE s.issued - s.in_flight > s.quota),
silent AS MATERIALIZED (
    SELECT string_agg(format('%s (%s)', k.channel, CASE WHEN c.channel IS NULL THEN 'not set up'
                                                        ELSE COALESCE(c.disabled_reason, 'switched off') END),
                      ', ' ORDER BY k.channel) AS names
    FROM unnest(@extschema@.coupon_channel_names()) AS k (channel)
    LEFT JOIN @extschema@.coupon_channel_state c ON c.channel = k.channel
    WHERE c.enabled IS NOT TRUE
      AND EXISTS (SELECT FROM @extschema@.coupon_notification o WHERE o.channel = k.channel)),
late AS MATERIALIZED (
    SELECT string_agg(format('%s (%s)', c.channel, date_trunc('second', clock_timestamp() - o.next_at)),
                      ', ' ORDER BY c.channel) AS names
    FROM @extschema@.coupon_channel_state c CROSS JOIN LATERAL (
        SELECT o.next_at FROM @extschema@.coupon_notification o
        WHERE o.channel = c.channel AND o.next_at <= clock_timestamp() - interval '1 minute'
          AND (o.leased_until IS NULL OR o.leased_until <= clock_timestamp())
          AND NOT (o.kind = 'coupon' AND EXISTS (SELECT FROM @extschema@.coupon_quiet_hours q
                                                  WHERE q.channel = c.channel AND q.begins <= clock_timestamp()))
        ORDER BY o.next_at LIMIT 1) o
    WHERE c.enabled),
tasks AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE t.state = 'failed') AS failed,
           count(*) FILTER (WHERE t.state <> 'failed' AND t.last_error = 'not_published'
                            AND EXISTS (SELECT FROM @extschema@.coupon_template p
                                        WHERE p.id = t.template_id AND p.status <> 'published')) AS waiting
    FROM @extschema@.coupon_task t WHERE t.state IN ('pending', 'in_progress', 'failed')),
dead AS MATERIALIZED (
    SELECT count(*) AS n FROM (SELECT FROM @extschema@.coupon_notification_history o
        WHERE o.state = 'dead' LIMIT 100001) x)
SELECT 'preload' AS check_name,
       CASE WHEN preloaded THEN 'ok' ELSE 'critical' END AS status,
       CASE WHEN preloaded THEN 'the library is preloaded' ELSE 'nothing can be claimed' END AS detail,
       CASE WHEN NOT preloaded
            THEN COALESCE(preload_command, 'add coupon to shared_preload_libraries') || ' and restart' END AS advice
FROM state
UNION ALL
SELECT 'triggers',
       CASE WHEN off = 0 AND n = 107 THEN 'ok' ELSE 'critical' END,
       format('%s of 107 triggers present, %s not ENABLE ALWAYS', n, off),
       CASE WHEN off > 0 OR n <> 107
            THEN 'ALTER TABLE ... ENABLE ALWAYS TRIGGER (a restore with --disable-triggers leaves them at ORIGIN)' END
FROM triggers
UNION ALL
SELECT 'schema', CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warning' END,
       CASE WHEN count(*) = 0 THEN 'nobody else may create objects in the schema of the extension'
            ELSE format('objects can be created in schema @extschema@ by %s', string_agg(c, ', ')) END,
       CASE WHEN count(*) > 0 THEN 'REVOKE CREATE ON SCHEMA @extschema@ FROM each of them' END
FROM @extschema@.coupon_schema_creators() c
UNION ALL
SELECT 'attached', CASE WHEN objects IS NULL THEN 'ok' ELSE 'critical' END,
       COALESCE(objects, 'what triggers and expressions of the tables use belongs to a superuser'),
       CASE WHEN objects IS NOT NULL
            THEN 'the table is not used with it (VC016): ALTER ... OWNER TO a superuser, give the function a SET clause, or drop what uses it' END
FROM distrusted
UNION ALL
SELECT 'oversold', CASE WHEN n = 0 THEN 'ok' ELSE 'critical' END,
       format('%s templates have issued more than their quota', n),
       CASE WHEN n > 0 THEN 'SELECT * FROM coupon_verify() WHERE NOT ok' END
FROM oversold
UNION ALL
SELECT 'fold', CASE WHEN n <= 100000 THEN 'ok' ELSE 'warning' END,
       format('%s coupons are not folded', CASE WHEN n > 1000000 THEN 'over 1000000' ELSE n::text END),
       CASE WHEN n > 100000 THEN 'is the worker running, is a transaction open for long? A restart has to count them' END
FROM unfolded
UNION ALL
SELECT 'worker',
       CASE WHEN in_recovery OR databases = '' THEN 'ok'
            WHEN state = 'running' AND failing IS NOT TRUE THEN 'ok' ELSE 'warning' END,
       CASE WHEN NOT preloaded THEN 'no worker without preloading'
            WHEN in_recovery THEN 'a standby has no worker'
            WHEN databases = '' THEN 'turned off by coupon.databases'
            WHEN NOT worker_wanted THEN 'coupon.databases does not name this database'
            WHEN state IS NULL THEN 'no worker in this database'
            WHEN failing THEN format('%s, last error at %s: %s', state, last_error_at, last_error)
            ELSE state END,
       CASE WHEN in_recovery OR databases = '' THEN NULL
            WHEN NOT preloaded THEN 'see the check preload'
            WHEN NOT worker_wanted THEN 'add it to coupon.databases, or empty the list and call coupon_fold() yourself'
            WHEN failing THEN 'remove the cause, then SELECT coupon_worker_wake()'
            WHEN state IS DISTINCT FROM 'running'
            THEN 'wait some seconds; else look into the server log and at max_worker_processes' END
FROM worker
UNION ALL
SELECT 'cache',
       CASE WHEN evictions * 5 > lookups AND lookups > 10000 THEN 'warning' ELSE 'ok' END,
       format('%s of %s places used, hit rate %s', entries, capacity, COALESCE(hit_rate::text, 'unknown')),
       CASE WHEN evictions * 5 > lookups AND lookups > 10000 THEN 'raise coupon.max_templates' END
FROM cache
UNION ALL
SELECT 'channels', CASE WHEN names IS NULL THEN 'ok' ELSE 'warning' END,
       CASE WHEN names IS NULL THEN 'no notification waits for a channel that does not send'
            ELSE format('notifications wait for %s', names) END,
       CASE WHEN names IS NOT NULL THEN 'coupon_channel_set sets a channel up, coupon_channel_enable switches it on' END
FROM silent
UNION ALL
SELECT 'late_pushes', CASE WHEN names IS NULL OR in_recovery THEN 'ok' ELSE 'warning' END,
       CASE WHEN in_recovery THEN 'a standby sends nothing'
            WHEN names IS NULL THEN 'no notification has been due for a minute'
            ELSE format('due for longer than a minute: %s', names) END,
       CASE WHEN names IS NOT NULL AND NOT in_recovery
            THEN 'coupon_stat_worker says whether a worker (for mail, a mailer) runs; last_error in coupon_notification, what the receiver answers' END
FROM late, state
UNION ALL
SELECT 'dead_pushes', CASE WHEN n = 0 THEN 'ok' ELSE 'warning' END,
       format('%s notifications were given up', CASE WHEN n > 100000 THEN 'over 100000' ELSE n::text END),
       CASE WHEN n > 0 THEN 'last_error in coupon_notification_history says why; then SELECT * FROM coupon_notification_replay()' END
FROM dead
UNION ALL
SELECT 'tasks', CASE WHEN failed = 0 AND waiting = 0 THEN 'ok' ELSE 'warning' END,
       format('%s distributions have failed, %s wait for their template', failed, waiting),
       CASE WHEN failed > 0 THEN 'fail_reason in coupon_task_progress says why; then SELECT coupon_task_submit(task_id)'
            WHEN waiting > 0 THEN 'publish the templates of the tasks whose last_error is not_published, or pause or cancel these' END
FROM tasks
UNION ALL
SELECT 'durability',
       CASE WHEN current_setting('fsync') = 'off' OR current_setting('full_page_writes') = 'off' THEN 'critical'
            WHEN current_setting('synchronous_commit') = 'off' THEN 'warning' ELSE 'ok' END,
       format('fsync %s, full_page_writes %s, synchronous_commit %s', current_setting('fsync'),
              current_setting('full_page_writes'), current_setting('synchronous_commit')),
       CASE WHEN 'off' IN (current_setting('fsync'), current_setting('full_page_writes'),
                           current_setting('synchronous_commit'))
            THEN 'a crash may lose coupons that users were told they have' END
UNION ALL
SELECT 'clock', CASE WHEN id_seconds_ahead <= 1 THEN 'ok' ELSE 'warning' END,
       format('ids are %s s ahead of the clock', id_seconds_ahead),
       CASE WHEN id_seconds_ahead > 1 THEN 'the clock was set back; ids stay unique and ordered, but not by time' END
FROM state;
COMMENT ON VIEW @extschema@.coupon_health IS 'one row per check: ok, warning or critical, and what to do';

