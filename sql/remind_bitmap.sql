-- remind_bitmap: the type, its operators and what reads it
\set SHOW_CONTEXT never
SET timezone = 'UTC';
CREATE SCHEMA regress_remind;
SET search_path = regress_remind, public;
-- what a query raises: state, message, detail, hint
CREATE FUNCTION raised(query text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE query;
    state := 'accepted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;

-- the worked example
SELECT remind_bitmap('sms', 10) AS sms, remind_bitmap('sms', 10)::bigint AS two, remind_bitmap('email', 20)::bigint = 1::bigint << (12 + 3) AS email,
       (remind_bitmap('sms', 10) | remind_bitmap('email', 20))::bigint AS both, 32770::bigint::remind_bitmap AS text;
SELECT typlen, typbyval, typalign, typstorage, typinput, typoutput, typreceive, typsend FROM pg_type WHERE oid = 'remind_bitmap'::regtype;

-- text: any order and white space around elements; one text for each value
SELECT n, v::remind_bitmap FROM unnest(ARRAY['{}', E' \t\n\r\f\x0B{ \t\n\r\f\x0B} \t\n\r\f\x0B', '{sms@10}', '{sms@10,email@20}', E'\n{ sms@10 ,\temail@20\r}\f',
    '{ch4@5,ch3@5,app@5,email@5,sms@5,ch4@60,ch3@60,app@60,email@60,sms@60}']) WITH ORDINALITY x(v, n) ORDER BY n;
SELECT REMIND_BITMAP '{app@15}', length((1152921504606846975)::remind_bitmap::text);
SELECT text, r.* FROM unnest(ARRAY['', ' ', '{', '}', '{}}', '{} x', 'sms@10', '{{sms@10}}', '{sms@10', '{sms@10,', '{sms@10,}', '{,sms@10}', '{,}', '{sms@10,,app@5}',
    '{sms@10 app@5}', '{sms@10;app@5}', '{sms}', '{sms@}', '{@10}', '{@}', '{sms @10}', '{sms@ 10}', '{sms@10@5}', '{pigeon@10}', '{SMS@10}', '{sm@10}', '{smss@10}', '{ch5@10}',
    '{"sms"@10}', '{sms@10,sms@10}', '{sms@10, app@5 ,sms@10}', '{sms@ten}', '{sms@1o}', '{sms@+5}', '{sms@010}', '{sms@05}', '{sms@00}', '{sms@-}', '{sms@--5}',
    '{sms@5.0}', '{sms@1e1}', '{sms@0x5}', '{sms@0}', '{sms@4}', '{sms@7}', '{sms@61}', '{sms@65}', '{sms@120}', '{sms@-5}', '{sms@-0}', '{sms@99999999999999999999}',
    '{sms@4294967301}']) WITH ORDINALITY x(text, n), raised(format('SELECT %L::remind_bitmap', text)) r ORDER BY n;
SELECT state, detail = '"信鸽" is not a channel.' AS whole_letters FROM raised($$SELECT '{信鸽@10}'::remind_bitmap$$);
SELECT state, detail = '"５" is not a number of minutes.' AS whole_letters FROM raised($$SELECT '{sms@５}'::remind_bitmap$$);
SELECT state, length(message) FROM raised(format('SELECT %L::remind_bitmap', '{' || repeat('x', 1000000) || '@5}'));
SELECT state, detail FROM raised(format('SELECT %L::remind_bitmap', '{' || repeat('sms@5,', 200000) || '}'));
SELECT state, length(message) FROM raised(format('SELECT %L::remind_bitmap', '{sms@' || repeat('5', 1000000) || '}'));

-- making one
SELECT n, r.* FROM unnest(ARRAY['NULL, 5', $$'sms', NULL$$, $$'pigeon', 5$$, $$'', 5$$, $$'sms ', 5$$, $$'SMS', 5$$, $$'sms', 0$$, $$'sms', 4$$, $$'sms', 7$$, $$'sms', 65$$,
    $$'sms', -5$$, $$'sms', 2147483647$$, $$'sms', -2147483648$$]) AS n, raised(format('SELECT remind_bitmap(%s)', n)) r;
SELECT remind_bitmap(NULL, 5), remind_bitmap('sms', NULL);

-- bigint, only on request
SELECT v, r.* FROM unnest(ARRAY[0, 1, 1152921504606846975, 1152921504606846976, -1, -9223372036854775808, 9223372036854775807]) AS v,
    raised(format('SELECT (%L::bigint)::remind_bitmap', v)) r;
CREATE TABLE bits (b remind_bitmap);
INSERT INTO bits VALUES (1::bigint);
SELECT '{sms@5}'::remind_bitmap = 1::bigint;
SELECT castsource::regtype, casttarget::regtype, castcontext, castmethod FROM pg_cast WHERE 'remind_bitmap'::regtype IN (castsource, casttarget) ORDER BY 1;

-- binary: the bytes of a bigint
SELECT remind_bitmap_send('{email@20,sms@10}'), remind_bitmap_send('{ch4@60}');
\getenv builddir PG_ABS_BUILDDIR
\cd :builddir
INSERT INTO bits SELECT (1::bigint << i)::remind_bitmap FROM generate_series(0, 59) i UNION ALL VALUES ('{}'::remind_bitmap), (NULL), ('{email@20,sms@10}');
CREATE TABLE bits_again (LIKE bits);
\copy bits to 'results/remind_bitmap.bin' binary
\copy bits_again from 'results/remind_bitmap.bin' binary
SELECT count(*), count(b) FROM bits_again;
SELECT count(*) FROM (SELECT * FROM bits EXCEPT ALL SELECT * FROM bits_again) x;
\copy (SELECT 1::bigint << 60) to 'results/remind_bitmap_bad.bin' binary
\copy bits_again from 'results/remind_bitmap_bad.bin' binary
\set VERBOSITY sqlstate
\copy (SELECT -1::bigint) to 'results/remind_bitmap_bad.bin' binary
\copy bits_again from 'results/remind_bitmap_bad.bin' binary
\copy (SELECT 1::int) to 'results/remind_bitmap_bad.bin' binary
\copy bits_again from 'results/remind_bitmap_bad.bin' binary
\copy (SELECT '123456789'::bytea) to 'results/remind_bitmap_bad.bin' binary
\copy bits_again from 'results/remind_bitmap_bad.bin' binary
\set VERBOSITY default

-- operators
SELECT '{sms@10}'::remind_bitmap | '{email@20,sms@10}' AS merged, '{sms@10,app@5}'::remind_bitmap & '{email@20,sms@10}' AS both,
       '{sms@10,app@5}'::remind_bitmap - '{email@20,sms@10}' AS removed, '{}'::remind_bitmap - '{sms@5}' AS nothing;
SELECT a, b, a @> b AS contains, a <@ b AS contained, a && b AS overlaps, a = b AS eq, a <> b AS ne, a < b AS lt, a <= b AS le, a > b AS gt, a >= b AS ge, remind_bitmap_cmp(a, b) AS cmp
FROM (VALUES ('{}'::remind_bitmap, '{}'::remind_bitmap), ('{}', '{sms@5}'), ('{sms@5}', '{}'), ('{sms@5}', '{sms@5}'), ('{sms@5,app@5}', '{sms@5}'), ('{sms@60}', '{email@5}'), ('{ch4@60}', '{sms@5,email@5}')) x(a, b);
SELECT '{sms@5}'::remind_bitmap | NULL, '{}'::remind_bitmap = NULL, NULL @> '{}'::remind_bitmap, remind_bitmap_count(NULL), remind_bitmap_send(NULL);
-- against bigint arithmetic, on pairs of random bitmaps
SELECT setseed(0.4);
CREATE TABLE pairs AS SELECT i, x, y, x::remind_bitmap AS a, y::remind_bitmap AS b FROM (
    SELECT i, ((random() * (1 << 30))::bigint << 30 | (random() * ((1 << 30) - 1))::bigint) & 1152921504606846975 & (-1::bigint << (random() * 60)::int) AS x,
           ((random() * (1 << 30))::bigint << 30 | (random() * ((1 << 30) - 1))::bigint) & 1152921504606846975 & ~(-1::bigint << (random() * 60)::int) AS y
    FROM generate_series(1, 5000) i) r;
SELECT count(*), bool_and((a | b)::bigint = x | y AND (a & b)::bigint = x & y AND (a - b)::bigint = x & ~y) AS sets,
       bool_and((a @> b) = (x & y = y) AND (a <@ b) = (x & y = x) AND (a && b) = (x & y <> 0)) AS tests,
       bool_and((a = b) = (x = y) AND (a <> b) = (x <> y) AND (a < b) = (x < y) AND (a <= b) = (x <= y) AND (a > b) = (x > y) AND (a >= b) = (x >= y)
                AND remind_bitmap_cmp(a, b) = btint8cmp(x, y)) AS comparisons,
       bool_and(remind_bitmap_count(a) = length(replace(x::bit(64)::text, '0', ''))) AS counts FROM pairs;
-- round trips: each bit, random bitmaps, all and none
SELECT count(*), bool_and(b::text::remind_bitmap = b AND b::bigint::remind_bitmap = b AND remind_bitmap_send(b) = int8send(b::bigint)) AS same,
       bool_and(b::text = (SELECT '{' || COALESCE(string_agg(name || '@' || 5 * slot, ',' ORDER BY slot DESC, c), '') || '}'
                           FROM unnest(ARRAY['sms', 'email', 'app', 'ch3', 'ch4']) WITH ORDINALITY ch(name, c), generate_series(1, 12) slot
                           WHERE b::bigint >> ((c - 1) * 12 + slot - 1)::int & 1 = 1)) AS by_the_formula
FROM (SELECT a AS b FROM pairs UNION ALL SELECT b FROM pairs UNION ALL SELECT (1::bigint << i)::remind_bitmap FROM generate_series(0, 59) i
      UNION ALL VALUES ('{}'), (1152921504606846975::remind_bitmap)) x;

-- garbage: what is read, and what that is, against an independent reading
CREATE FUNCTION reading(string text) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN string ~ '^[ \t\n\r\f\v]*\{[ \t\n\r\f\v]*(((sms|email|app|ch3|ch4)@(5|[1-5][05]|60)[ \t\n\r\f\v]*)(,[ \t\n\r\f\v]*(sms|email|app|ch3|ch4)@(5|[1-5][05]|60)[ \t\n\r\f\v]*)*)?\}[ \t\n\r\f\v]*$' THEN
        (SELECT CASE WHEN count(*) = count(DISTINCT m) THEN COALESCE(sum(1::bigint << (12 * (array_position(ARRAY['sms', 'email', 'app', 'ch3', 'ch4'], m[1]) - 1) + m[2]::int / 5 - 1)), 0)::bigint END
         FROM regexp_matches(string, '([a-z34]+)@(\d+)', 'g') m) END $$;
CREATE FUNCTION fuzz(string text, INOUT accepted int, INOUT malformed int, INOUT out_of_range int) LANGUAGE plpgsql AS $$
DECLARE
    expected bigint := reading(string);
    got remind_bitmap;
BEGIN
    BEGIN
        got := string::remind_bitmap;
        accepted := accepted + 1;
    EXCEPTION
        WHEN invalid_text_representation THEN malformed := malformed + 1;
        WHEN numeric_value_out_of_range THEN out_of_range := out_of_range + 1;
    END;
    IF got::bigint IS DISTINCT FROM expected THEN
        RAISE EXCEPTION 'read %, expected %', got, expected USING DETAIL = quote_literal(string);
    END IF;
    IF got::text::remind_bitmap <> got OR (got IS NOT NULL AND got::text <> got::text::remind_bitmap::text) THEN
        RAISE EXCEPTION '% does not come back', got;
    END IF;
END $$;
DO $$
DECLARE
    tokens text[] := ARRAY['{', '}', '@', ',', ' ', E'\t', 'sms', 'email', 'app', 'ch3', 'ch4', '5', '10', '35', '60', '0', '-', '7', 'sms@5', 'app@60', '{ch3@45,', ',email@20}', '{}'];
    letters text := '{}@,smseailpch345 0-9';
    good text[] := ARRAY(SELECT (a & b)::text FROM pairs ORDER BY i);
    string text;
    at int;
    n int[] := ARRAY[0, 0, 0];
BEGIN
    PERFORM setseed(0.25);
    FOR i IN 1 .. 24000 LOOP
        string := '';
        IF i % 3 = 0 THEN             -- characters
            FOR j IN 1 .. floor(random() * 24) LOOP
                string := string || substr(letters, 1 + floor(random() * length(letters))::int, 1);
            END LOOP;
        ELSIF i % 3 = 1 THEN          -- words
            FOR j IN 1 .. floor(random() * 6) LOOP
                string := string || tokens[1 + floor(random() * cardinality(tokens))::int];
            END LOOP;
        ELSE                          -- something right, with characters replaced, removed or put in
            string := good[1 + floor(random() * cardinality(good))::int];
            FOR j IN 1 .. floor(random() * 3) LOOP
                at := floor(random() * (length(string) + 1))::int;
                string := left(string, at) || CASE WHEN random() < 0.6 THEN substr(letters, 1 + floor(random() * length(letters))::int, 1) ELSE '' END
                    || substr(string, at + 1 + floor(random() * 2)::int);
            END LOOP;
        END IF;
        SELECT ARRAY[f.accepted, f.malformed, f.out_of_range] INTO n FROM fuzz(string, n[1], n[2], n[3]) f;
    END LOOP;
    IF n[1] < 1000 OR n[2] < 1000 OR n[3] < 100 THEN
        RAISE EXCEPTION 'the strings are too much alike: %', n;
    END IF;
    RAISE NOTICE '% strings', n[1] + n[2] + n[3];
END $$;

-- when they fire
SELECT * FROM remind_bitmap_slots('{sms@10,email@20,app@10,ch4@60}', '2030-01-01 12:00 UTC');
SELECT * FROM remind_bitmap_slots('{}', '2030-01-01 12:00 UTC');
SELECT * FROM remind_bitmap_slots(NULL, '2030-01-01 12:00 UTC');
SELECT * FROM remind_bitmap_slots('{sms@10}', 'infinity') UNION ALL SELECT * FROM remind_bitmap_slots('{sms@10}', '-infinity');
SELECT count(*), bool_and(remind_at = start - minutes * interval '1 minute' AND s.b @> remind_bitmap(channel, minutes)) AS right_moment,
       bool_and(b = (SELECT remind_bitmap_union(remind_bitmap(channel, minutes)) FROM remind_bitmap_slots(b, start))) AS complete
FROM (SELECT a AS b, '2024-03-31 00:59:59.999999 UTC'::timestamptz + i * interval '1 h' AS start FROM pairs WHERE i <= 200) s, remind_bitmap_slots(b, start);
-- at the end and at the beginning of time
SELECT remind_at FROM remind_bitmap_slots('{sms@5}', '294276-12-31 23:59:59.999999 UTC');
SELECT remind_at FROM remind_bitmap_slots('{sms@5}', '4714-11-24 00:05 UTC BC');
SELECT r.* FROM raised($$SELECT remind_bitmap_slots('{sms@5}', '4714-11-24 00:04:59 UTC BC')$$) r;
SELECT remind_bitmap_count('{}'), remind_bitmap_count('{email@20,sms@10}'), remind_bitmap_count(1152921504606846975::remind_bitmap);

-- order, by sorting and by index, and what an index answers
CREATE TABLE users (id int, b remind_bitmap);
INSERT INTO users SELECT i, a & b FROM pairs;
INSERT INTO users SELECT 10000 + i, CASE i % 4 WHEN 0 THEN '{sms@10}' WHEN 1 THEN '{email@20,sms@10}' WHEN 2 THEN '{app@5}' END::remind_bitmap FROM generate_series(1, 20000) i;
CREATE INDEX users_b ON users (b);
CREATE INDEX users_b_plain ON users (b) WITH (deduplicate_items = off);
VACUUM ANALYZE users;
SELECT pg_relation_size('users_b') * 2 < pg_relation_size('users_b_plain') AS deduplicated;
DROP INDEX users_b_plain;
CREATE FUNCTION plan_has(query text, wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
        IF line ~ wanted THEN RETURN true; END IF;
    END LOOP;
    RETURN false;
END $$;
CREATE FUNCTION plan_rows(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    plan jsonb;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint;
END $$;
SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off;
SELECT plan_has('SELECT b FROM users ORDER BY b', 'Index.* Scan.*users_b');
SELECT count(*), bool_and(b::bigint >= previous) AS ordered FROM (SELECT b, lag(b::bigint, 1, 0::bigint) OVER () AS previous FROM (SELECT b FROM users WHERE b IS NOT NULL ORDER BY b) o) x;
SELECT plan_has($$SELECT * FROM users WHERE b = '{sms@10}'$$, 'Index Cond: \(b = ''\{sms@10\}''::remind_bitmap\)');
SELECT count(*) FILTER (WHERE id > 10000) FROM users WHERE b = '{sms@10}';
SELECT (SELECT count(*) FROM users WHERE b < '{sms@10}') = (SELECT count(*) FROM users WHERE b::bigint < 2) AS lt, (SELECT count(*) FROM users WHERE b >= '{email@20}') = (SELECT count(*) FROM users WHERE b::bigint >= 32768) AS ge;
RESET enable_sort; RESET enable_seqscan; RESET enable_bitmapscan;
SET enable_indexscan = off; SET enable_indexonlyscan = off;
SELECT count(*), bool_and(b::bigint >= previous) AS ordered FROM (SELECT b, lag(b::bigint, 1, 0::bigint) OVER () AS previous FROM (SELECT b FROM users WHERE b IS NOT NULL ORDER BY b) o) x;
RESET enable_indexscan; RESET enable_indexonlyscan;
-- the planner counts with what ANALYZE saw: 5000 and 10000 of 25000, and the random ones
SELECT plan_rows($$SELECT FROM users WHERE b = '{app@5}'$$) BETWEEN 4000 AND 6500 AS equal, plan_rows($$SELECT FROM users WHERE b @> '{sms@10}'$$) BETWEEN 8000 AND 14000 AS contains,
       plan_rows($$SELECT FROM users WHERE b <@ '{email@20,sms@10}'$$) BETWEEN 8000 AND 15000 AS contained, plan_rows($$SELECT FROM users WHERE b && '{app@5}'$$) BETWEEN 4000 AND 9000 AS overlaps;

-- joins and groups
SET enable_nestloop = off; SET enable_mergejoin = off;
SELECT plan_has('SELECT FROM pairs p JOIN users u ON u.b = p.a & p.b', 'Hash Join');
SELECT (SELECT count(*) FROM pairs p JOIN users u ON u.b = p.a & p.b WHERE i <= 200) = (SELECT count(*) FROM pairs p JOIN users u ON u.b::bigint = p.x & p.y WHERE i <= 200) AS hashed;
SET enable_mergejoin = on; SET enable_hashjoin = off;
SELECT plan_has('SELECT FROM pairs p JOIN users u ON u.b = p.a & p.b', 'Merge Join');
SELECT (SELECT count(*) FROM pairs p JOIN users u ON u.b = p.a & p.b WHERE i <= 200) = (SELECT count(*) FROM pairs p JOIN users u ON u.b::bigint = p.x & p.y WHERE i <= 200) AS merged;
RESET enable_hashjoin; RESET enable_nestloop;
SET enable_sort = off; SET enable_indexscan = off; SET enable_indexonlyscan = off;
SELECT plan_has('SELECT b, count(*) FROM users GROUP BY b', 'HashAggregate');
SELECT count(*) = (SELECT count(DISTINCT b::bigint) FROM users) AS grouped FROM (SELECT b FROM users WHERE b IS NOT NULL GROUP BY b) g;
RESET enable_sort; RESET enable_indexscan; RESET enable_indexonlyscan;
SELECT count(DISTINCT remind_bitmap_hash(b)) AS single_bits FROM bits WHERE remind_bitmap_count(b) = 1;
SELECT bool_and(remind_bitmap_hash(a)::bit(32) = remind_bitmap_hash_extended(a, 0)::bit(32)) AS same_low_half,
       count(DISTINCT remind_bitmap_hash_extended(a, 1)) > 4000 AS spread, bool_and(remind_bitmap_hash_extended(a, 1) <> remind_bitmap_hash_extended(a, 0)) AS seeded FROM pairs;
CREATE TABLE parted (b remind_bitmap) PARTITION BY HASH (b);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO parted SELECT a FROM pairs;
SELECT count(*) FILTER (WHERE tableoid = 'parted_0'::regclass) BETWEEN 1500 AND 3500 AS halves FROM parted;
CREATE INDEX users_hash ON users USING hash (b);
SET enable_seqscan = off; DROP INDEX users_b;
SELECT plan_has($$SELECT FROM users WHERE b = '{app@5}'$$, 'users_hash');
SELECT count(*) FILTER (WHERE id > 10000) FROM users WHERE b = '{app@5}';
RESET enable_seqscan;

-- the aggregate, alone and in parallel
SELECT remind_bitmap_union(b) FROM (VALUES ('{sms@10}'::remind_bitmap), (NULL), ('{email@20}'), ('{sms@10}')) x(b);
SELECT remind_bitmap_union(b) IS NULL AS null_of_nothing FROM users WHERE b IS NULL;
SELECT remind_bitmap_union(b) OVER (ORDER BY id) FROM (VALUES (1, '{sms@10}'::remind_bitmap), (2, '{app@5}')) x(id, b);
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2;
SELECT plan_has('SELECT remind_bitmap_union(b) FROM users', 'Partial Aggregate') AS partial, plan_has('SELECT remind_bitmap_union(b) FROM users', 'Parallel') AS parallel;
SELECT remind_bitmap_union(b)::bigint = (SELECT bit_or(b::bigint) FROM users) AS same FROM users;
RESET parallel_setup_cost; RESET parallel_tuple_cost; RESET min_parallel_table_scan_size; RESET max_parallel_workers_per_gather;

-- partial results that differ, put together
CREATE TABLE halves (id int, b remind_bitmap) PARTITION BY LIST (id);
CREATE TABLE halves_0 PARTITION OF halves FOR VALUES IN (0);
CREATE TABLE halves_1 PARTITION OF halves FOR VALUES IN (1);
INSERT INTO halves SELECT i % 2, CASE i % 2 WHEN 0 THEN '{sms@10,app@5}' ELSE '{email@20,app@5}' END::remind_bitmap FROM generate_series(1, 10000) i;
ANALYZE halves;
SET enable_partitionwise_aggregate = on; SET max_parallel_workers_per_gather = 0;
SELECT plan_has('SELECT remind_bitmap_union(b) FROM halves', 'Partial Aggregate') AS partial, (SELECT remind_bitmap_union(b) FROM halves);
RESET enable_partitionwise_aggregate; RESET max_parallel_workers_per_gather;

-- what the catalogs say of it
SELECT amname, opcname, opcdefault, amvalidate(o.oid) FROM pg_opclass o JOIN pg_am a ON a.oid = o.opcmethod WHERE opcintype = 'remind_bitmap'::regtype ORDER BY 1;
SELECT oprname, oprcom::regoper::text AS commutator, oprnegate::regoper::text AS negator, oprcanmerge, oprcanhash, oprcode, oprrest, oprjoin
FROM pg_operator WHERE oprleft = 'remind_bitmap'::regtype ORDER BY oprname COLLATE "C";
SELECT o.oid::regoperator FROM pg_operator o WHERE 'remind_bitmap'::regtype IN (oprleft, oprright) AND
    (oprcode = 0 OR (oprcom <> 0 AND NOT EXISTS (SELECT FROM pg_operator c WHERE c.oid = o.oprcom AND c.oprcom = o.oid AND c.oprleft = o.oprright AND c.oprright = o.oprleft))
     OR (oprnegate <> 0 AND NOT EXISTS (SELECT FROM pg_operator n WHERE n.oid = o.oprnegate AND n.oprnegate = o.oid AND n.oid <> o.oid AND n.oprleft = o.oprleft))
     OR (oprrest = 0) <> (oprjoin = 0) OR (oprresult = 'boolean'::regtype) <> (oprrest <> 0));
-- functions by what is promised of them; those that may raise are not leakproof
SELECT provolatile, proisstrict, proparallel, proleakproof, count(*), string_agg(replace(proname, 'remind_bitmap_', ''), ' ' ORDER BY proname COLLATE "C") FROM pg_proc
WHERE proname ~ '^remind_bitmap' GROUP BY 1, 2, 3, 4 ORDER BY 4;
-- everything has a comment, nothing is PUBLIC's
SELECT count(*), count(*) FILTER (WHERE obj_description(objid, classid::regclass::name) IS NULL) AS silent
FROM pg_depend d, pg_identify_object(classid, objid, objsubid) o
WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'coupon') AND deptype = 'e' AND o.identity ~ 'remind_bitmap' AND o.identity !~ '\[\]$' AND o.type NOT IN ('operator of access method', 'function of access method');
CREATE ROLE regress_remind_user; CREATE ROLE regress_remind_nobody;
GRANT USAGE ON SCHEMA regress_remind TO regress_remind_user, regress_remind_nobody;
GRANT CREATE ON SCHEMA regress_remind TO regress_remind_user, regress_remind_nobody;
SELECT coupon_grant('regress_remind_user', 'application');
SET ROLE regress_remind_nobody;
SELECT '{sms@10}'::remind_bitmap | '{app@5}';
CREATE TABLE mine (b remind_bitmap);
SET ROLE regress_remind_user;
SELECT '{sms@10}'::remind_bitmap | '{app@5}', remind_bitmap('ch3', 60)::bigint, (SELECT remind_bitmap_union(b) FROM (VALUES ('{}'::remind_bitmap)) x(b));
CREATE TABLE mine (b remind_bitmap PRIMARY KEY);
INSERT INTO mine VALUES ('{sms@10}'), ('{app@5}');
SELECT * FROM mine WHERE b @> '{app@5}' ORDER BY b;
RESET ROLE;
SELECT coupon_grant_revoke('regress_remind_user', 'application');
SELECT has_type_privilege('regress_remind_user', 'remind_bitmap', 'USAGE'), has_function_privilege('regress_remind_user', 'remind_bitmap_or(remind_bitmap, remind_bitmap)', 'EXECUTE');

\set VERBOSITY terse
SET client_min_messages = warning;
DROP SCHEMA regress_remind CASCADE;
RESET client_min_messages;
DROP OWNED BY regress_remind_user, regress_remind_nobody;
DROP ROLE regress_remind_user, regress_remind_nobody;
