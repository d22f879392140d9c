# Nobody gets the rights of the extension's owner, a superuser: not by a trigger, a
# CHECK or a default of the shop's that trips over a temporary table, not by a
# function, operator or view that takes the place of what our SQL means.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('rights', "coupon.databases = ''");
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Runs statements as a role, and returns output and errors.
sub as_role
{
	my ($role, $sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', $role ], on_error_stop => 0);
	return ($out, $err);
}
sub supers { return sql(q{SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles WHERE rolsuper}); }

my $owner = sql('SELECT current_user');
sql(q{
	CREATE ROLE app LOGIN; CREATE ROLE office LOGIN; CREATE ROLE watch LOGIN;
	SELECT coupon_grant('app', 'application'), coupon_grant('office', 'operator'), coupon_grant('watch', 'monitor');
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
	VALUES (1, 'a', 1000, 1, 'published', now()), (2, 'b', 1000, 1, 'published', now() + interval '2 hours')});

# A trigger that says "audit" and means the shop's table; a session that has a
# temporary table of that name, and a trigger on it that wants more.
sql(q{
	CREATE TABLE public.audit (who name, what text);
	CREATE FUNCTION public.audits() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO audit VALUES (current_user, TG_TABLE_NAME);
		RETURN COALESCE(NEW, OLD);
	END $$});
my $trap = q{
	CREATE TEMP TABLE audit (who name, what text);
	CREATE FUNCTION pg_temp.wants() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE format('ALTER ROLE %I SUPERUSER', session_user);
		RETURN NEW;
	END $$;
	CREATE TRIGGER wants BEFORE INSERT ON pg_temp.audit FOR EACH ROW EXECUTE FUNCTION pg_temp.wants();
};
my %calls = (
	user_coupon => [ app => 'SELECT outcome FROM coupon_receive(1, 1)' ],
	coupon_remind => [ app => q{SELECT outcome FROM coupon_remind_create(2, 1, 'app', 30)} ],
	coupon_contact => [ app => q{SELECT coupon_contact_set(1, 'app', 'x')} ],
	coupon_task => [ office => q{SELECT task_id FROM coupon_task_create('t', 1)} ],
	coupon_channel => [ office => q{SELECT coupon_channel_set('app', 'http://127.0.0.1:1/')} ],
	coupon_message => [ office => q{SELECT coupon_message_set('reminder', 'app', 's', 'b')} ],
	coupon_notification => [ office => q{SELECT * FROM coupon_channel_test('app', 'x')} ],
	coupon_stock => [ office => 'SELECT coupon_fold()' ],
	coupon_watermark => [ office => 'SELECT coupon_fold()' ],
	coupon_template => [ office => q{SELECT coupon_template_change(2, '{"name": "x"}')} ]);
sql(q{SELECT coupon_channel_set('app', 'http://127.0.0.1:1/'); SELECT coupon_receive(1, 99)});
for my $table (sort keys %calls)
{
	my ($role, $call) = @{ $calls{$table} };
	for my $when ('BEFORE', 'AFTER')
	{
		sql("CREATE TRIGGER audits $when INSERT OR UPDATE OR DELETE ON $table FOR EACH ROW EXECUTE FUNCTION public.audits()");
		my ($out, $err) = as_role($role, "$trap $call");
		is(supers(), $owner, "$table, $when: a temporary table gives $role nothing");
		like($err, qr/permission denied|must be superuser|[Oo]nly roles/, "$table, $when: the trigger was at work, as $role");
		sql("DROP TRIGGER audits ON $table");
	}
}
# A deferred trigger, which fires when our SQL is over: as the session, or not at all.
for my $table ('coupon_contact', 'user_coupon')
{
	sql("CREATE CONSTRAINT TRIGGER audits AFTER INSERT ON $table DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.audits()");
	my $call = $table eq 'user_coupon' ? 'SELECT outcome FROM coupon_receive(1, 77)' : q{SELECT coupon_contact_set(77, 'app', 'x')};
	for my $end ('', 'SET CONSTRAINTS ALL IMMEDIATE;')
	{
		my ($out, $err) = as_role('app', "$trap BEGIN; $call; $end COMMIT");
		is(supers(), $owner, "$table, deferred: a temporary table gives app nothing");
		like($err, qr/permission denied|must be superuser|[Oo]nly roles|cannot fire deferred trigger/, "$table, deferred: it was at work as app, or refused");
	}
	sql("DROP TRIGGER audits ON $table");
}

# What functions of ours in PL/pgSQL write.
sql(q{GRANT EXECUTE ON PROCEDURE coupon_purge() TO office; ALTER ROLE office SET coupon.keep_tasks = 1});
for my $table ('coupon_task', 'coupon_task_failure')
{
	my $old = sql(q{SELECT task_id FROM coupon_task_create('old', 1)});
	sql("INSERT INTO coupon_stage_$old (user_id) VALUES ('x')");
	$node->safe_psql('postgres', "CALL coupon_task_run($old)");
	sql("UPDATE coupon_task SET finished_at = now() - interval '3 days' WHERE id = $old;"
	  . " CREATE TRIGGER audits BEFORE DELETE ON $table FOR EACH ROW EXECUTE FUNCTION public.audits()");
	my ($out, $err) = as_role('office', "$trap CALL coupon_purge()");
	is(supers(), $owner, "$table, purged: a temporary table gives office nothing");
	like($err, qr/permission denied|must be superuser|[Oo]nly roles/, "$table, purged: the trigger was at work, as office");
	sql("DROP TRIGGER audits ON $table");
}
# And an event trigger, at the table that a verb makes.
sql(q{
	CREATE FUNCTION public.watches() RETURNS event_trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF current_setting('coupon_test.watch', true) = 'on' THEN INSERT INTO audit VALUES (current_user, tg_tag); END IF;
	END $$;
	CREATE EVENT TRIGGER watches ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.watches()});
like((as_role('office', "$trap SET coupon_test.watch = on; SELECT task_id FROM coupon_task_create('watched', 1)"))[1],
	qr/permission denied|must be superuser|[Oo]nly roles/, 'an event trigger was at work, as office');
is(supers(), $owner, 'which gives office nothing');
sql('DROP EVENT TRIGGER watches');
is(sql('SELECT count(*) FROM audit'), '0', 'none of them has come through');

# A role whose last grant is revoked, amid a cursor that goes on with its rights.
sql(q{
	CREATE ROLE ten LOGIN; 
	SELECT coupon_grant('ten', 'operator', 10), coupon_grant('ten', 'application', 10);
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, shop_number)
	VALUES (110, 'ten', 10, 1, 'published', 10), (111, 'eleven', 10, 1, 'published', 11)});
{
	my $holding = $node->background_psql('postgres', extra_params => [ '-U', 'ten' ]);
	$holding->query_safe(q{BEGIN;
		DECLARE before CURSOR FOR SELECT id FROM coupon_template;
		DECLARE claims CURSOR FOR SELECT (coupon_receive(i, 1)).outcome FROM generate_series(110, 111) i});
	sql(q{SELECT coupon_grant_revoke('ten', 'operator', 10), coupon_grant_revoke('ten', 'application', 10)});
	is($holding->query_safe('FETCH ALL before'), '', 'revoked: a cursor sees no shop');
	is($holding->query_safe('FETCH ALL claims'), "not_found\nnot_found", 'revoked: and claims nothing');
	$holding->query_safe('COMMIT');
	$holding->quit;
}
like((as_role('ten', 'SELECT * FROM coupon_template'))[1], qr/permission denied/, 'revoked: nothing is left to begin with');
sql(q{SELECT coupon_grant('ten', 'operator', 10)});
is((as_role('ten', 'SELECT id FROM coupon_template'))[0], '110', 'granted again');

# The same role, that becomes another one amid a statement, or loses what it has by other means.
sql(q{
	SELECT coupon_grant('ten', 'application', 10);
	CREATE ROLE nothing; GRANT nothing TO ten;
	CREATE ROLE team; GRANT USAGE ON SCHEMA public TO team; CREATE ROLE bob LOGIN; CREATE ROLE noin LOGIN NOINHERIT;
	SELECT coupon_grant('team', 'operator', 10), coupon_grant('team', 'application', 10); GRANT team TO bob, noin});
is((as_role('ten', q{
	SELECT c.outcome FROM (SELECT set_config('role', 'nothing', false) AS x OFFSET 0) s, LATERAL coupon_template_change(111 + 0 * length(s.x), '{"name": "taken"}') c;
	RESET ROLE;
	SELECT r.outcome FROM (SELECT set_config('role', 'nothing', false) AS x OFFSET 0) s, LATERAL coupon_receive(111 + 0 * length(s.x), 7) r;
	RESET ROLE;
	SELECT name FROM (SELECT set_config('role', 'nothing', false) AS x OFFSET 0) s, LATERAL coupon_template_get(111 + 0 * length(s.x));
	RESET ROLE;
	SELECT user_id FROM (SELECT set_config('role', 'nothing', false) AS x OFFSET 0) s, LATERAL (SELECT * FROM coupon_contact WHERE x IS NOT NULL OFFSET 0) c}))[0],
	"not_found\nnot_found", 'SET ROLE amid a statement shows no shop');
like((as_role('ten', q{SELECT coupon_channel_set(left(x, 0) || 'sms', 'http://127.0.0.1:1/') FROM (SELECT set_config('role', 'nothing', false) AS x OFFSET 0) s}))[1],
	qr/ERROR/, 'nor sets channels');
is((as_role('ten', q{BEGIN; DECLARE c CURSOR FOR SELECT id FROM coupon_template; SET ROLE nothing; FETCH ALL c; ROLLBACK}))[0], '', 'SET ROLE amid a cursor');
is((as_role('noin', q{SET ROLE team; SELECT r.outcome FROM (SELECT set_config('role', 'none', false) AS x OFFSET 0) s, LATERAL coupon_receive(111 + 0 * length(s.x), 8) r}))[0],
	'not_found', 'nor for a role that does not inherit');
for my $by ('REVOKE team FROM bob', 'ALTER ROLE bob NOINHERIT', q{SELECT coupon_grant_revoke('team', 'operator', 10), coupon_grant_revoke('team', 'application', 10); DROP OWNED BY team; DROP ROLE team})
{
	my $holding = $node->background_psql('postgres', extra_params => [ '-U', 'bob' ]);
	is($holding->query_safe(q{BEGIN; DECLARE c CURSOR FOR SELECT id FROM coupon_template; FETCH 1 c}), '110', 'bob sees one');
	sql($by);
	is($holding->query_safe('SELECT count(*) > 0 FROM pg_database; FETCH ALL c'), 't', "and no more after $by");
	$holding->query_safe('COMMIT');
	$holding->quit;
	sql('GRANT team TO bob; ALTER ROLE bob INHERIT') unless $by =~ /DROP/;
}
# Revoked amid a statement that has asked for it before, and for another role since.
sql(q{
	CREATE ROLE one; CREATE ROLE two; CREATE ROLE atk LOGIN; GRANT one, two TO atk;
	SELECT coupon_grant('one', 'operator', 10), coupon_grant('two', 'operator', 10)});
{
	my ($stop, $stdin, $stdout, $stderr) = ($node->background_psql('postgres'), '', '', '');
	$stop->query_safe('SELECT pg_advisory_lock(20)');
	my $asking = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-U', 'atk', '-c', q{
		DO $$DECLARE a bigint; b bigint; BEGIN
			SET LOCAL ROLE one; a := coupon_stock_left(111);
			SET LOCAL ROLE two; PERFORM coupon_shop_allowed(10);
			PERFORM pg_advisory_lock(20);
			SET LOCAL ROLE one; b := coupon_stock_left(111);
			RAISE NOTICE 'before % after %', a, b; END$$} ], \$stdin, \$stdout, \$stderr);
	ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)}), 'it waits');
	sql(q{SELECT coupon_grant_revoke('one', 'operator', 10)});
	$stop->query_safe('SELECT pg_advisory_unlock(20)');
	$stop->quit;
	$asking->finish;
	like($stderr, qr/before <NULL> after <NULL>/, 'revoked amid a statement: it sees nothing more');
}
# Many roles, so that the rights on a function no longer fit into its row, and memberships that
# come and go: never more than the shop.
sql(q{
	CREATE ROLE emp LOGIN; CREATE ROLE ten_app; SELECT coupon_grant('ten_app', 'application', 10); GRANT ten_app TO emp;
	DO $$BEGIN FOR i IN 1..800 LOOP EXECUTE format('CREATE ROLE many%s', i); END LOOP;
		EXECUTE (SELECT 'GRANT EXECUTE ON FUNCTION coupon_shop_allowed(bigint) TO ' || string_agg('many' || i, ', ') FROM generate_series(1, 800) i); END$$;
	INSERT INTO coupon_role (role, kind, shop_number) SELECT ('many' || i)::regrole, 'application', 1000 + i FROM generate_series(1, 800) i});
{
	my $toggle = start_pgbench($node, '-c', 1, '-T', 300, '-f', script("REVOKE ten_app FROM emp;\nGRANT ten_app TO emp;\n"));
	my $seen = 0;
	for (1 .. 8)
	{
		my ($out) = as_role('emp', q{SELECT count(*) FILTER (WHERE l IS NOT NULL) FROM (SELECT coupon_stock_left(111 + 0 * i) AS l FROM generate_series(1, 1000) i OFFSET 0) x});
		$seen += $out || 0;
	}
	stop_pgbench($node, $toggle);
	is($seen, 0, 'memberships that come and go show no other shop');
	sql(q{DELETE FROM coupon_role WHERE role::text LIKE 'many%';
		DO $$BEGIN EXECUTE (SELECT 'REVOKE ALL ON FUNCTION coupon_shop_allowed(bigint) FROM ' || string_agg('many' || i, ', ') FROM generate_series(1, 800) i);
			FOR i IN 1..800 LOOP EXECUTE format('DROP ROLE many%s', i); END LOOP; END$$});
}
# Rights that were given by hand, or came back alone from a dump, show no shop: a grant does.
sql('CREATE ROLE hand LOGIN; GRANT EXECUTE ON FUNCTION coupon_receive(bigint, bigint, text, text) TO hand');
is((as_role('hand', 'SELECT outcome FROM coupon_receive(111, 20)'))[0], 'not_found', 'by hand: no shop');
sql('GRANT EXECUTE ON FUNCTION coupon_shop_allowed(bigint) TO hand');
is((as_role('hand', 'SELECT outcome FROM coupon_receive(111, 20)'))[0], 'not_found', 'by hand: nor with another right');
sql(q{SELECT coupon_grant('hand', 'application')});
is((as_role('hand', 'SELECT outcome FROM coupon_receive(111, 20)'))[0], 'ok', 'by hand: with a grant');

# With the grant of an operator go its rights on stages, where no other one gives them.
sql(q{CREATE ROLE twice LOGIN; SELECT coupon_grant('twice', 'operator'), coupon_grant('twice', 'operator', 10), coupon_grant('twice', 'application', 20);
	INSERT INTO coupon_template (id, name, discount_value, status, shop_number, issuer) VALUES (901, 'of 10', 1, 'published', 10, 'shop'), (902, 'of 20', 1, 'published', 20, 'shop')});
my %stage = map { $_ => (as_role('twice', "SELECT stage FROM coupon_task_create('of $_', $_)"))[0] } 901, 902;
sql(q{SELECT coupon_grant_revoke('twice', 'operator')});
is((as_role('twice', "INSERT INTO $stage{901} (user_id) VALUES ('1')"))[1], '', 'a stage of the shop that is left');
like((as_role('twice', "INSERT INTO $stage{902} (user_id) VALUES ('1')"))[1], qr/permission denied/, 'one of another shop');
sql(q{SELECT coupon_grant_revoke('twice', 'operator', 10)});
like((as_role('twice', "INSERT INTO $stage{901} (user_id) VALUES ('1')"))[1], qr/permission denied/, 'none without the grant');
# A template that has become another shop's tells nothing of who has it.
sql(q{SELECT coupon_grant('twice', 'operator', 10); UPDATE coupon_template SET shop_number = 20 WHERE id = 901; SELECT coupon_receive(901, 6001)});
my ($of_901) = $stage{901} =~ /(\d+)$/;
sql("INSERT INTO $stage{901} (user_id) VALUES ('6001')");
is((as_role('twice', "SELECT n FROM coupon_task_check($of_901) WHERE check_name = 'held'"))[0], '0', 'nor its check');

# What a shop's function calls may set the search path, which then lasts: what we run
# after it means the same all the same.
sql(q{
	GRANT ALL ON public.audit TO office;
	CREATE SCHEMA evil AUTHORIZATION office});
is((as_role('office', q{
	CREATE FUNCTION evil.format(text, text) RETURNS text LANGUAGE sql AS $$SELECT 'ALTER ROLE office SUPERUSER'::text$$;
	CREATE FUNCTION evil.format(text, bigint) RETURNS text LANGUAGE sql AS $$SELECT 'ALTER ROLE office SUPERUSER'::text$$;
	CREATE FUNCTION evil.same(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE WARNING 'evil'; RETURN true; END$$;
	CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.same)}))[1], '', 'functions of office');
for my $how ([ 'plain', '' ], [ 'with a setting', "SET work_mem = '8MB'" ], [ 'with a path', 'SET search_path = public, pg_temp' ])
{
	my $old = sql(q{SELECT task_id FROM coupon_task_create('older', 1)});
	my $options = $how->[1];
	sql("SELECT coupon_task_cancel($old);
		UPDATE coupon_task SET state = 'failed', finished_at = now() - interval '3 days' WHERE id = $old;
		INSERT INTO coupon_task_failure VALUES ($old, 2, 'x', 'invalid_user_id');
		CREATE FUNCTION public.sets() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit VALUES (current_user, TG_TABLE_NAME); RETURN COALESCE(NEW, OLD); END';
		" . ($options ? "ALTER FUNCTION public.sets() $options;" : '') . "
		CREATE TRIGGER sets AFTER UPDATE ON coupon_task FOR EACH ROW EXECUTE FUNCTION public.sets();
		CREATE TRIGGER sets AFTER DELETE ON coupon_task_failure FOR EACH ROW EXECUTE FUNCTION public.sets()");
	my ($out, $error) = as_role('office', q{
		CREATE TEMP TABLE audit (who name, what text);
		GRANT ALL ON audit TO PUBLIC;
		CREATE FUNCTION pg_temp.sets() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM set_config('search_path', 'evil, pg_catalog', false);
			PERFORM set_config('statement_timeout', '77s', false);
			RAISE WARNING 'set by %', current_user;
			RETURN NEW;
		END $$;
		CREATE TRIGGER sets BEFORE INSERT ON pg_temp.audit FOR EACH ROW EXECUTE FUNCTION pg_temp.sets();
		SET search_path = pg_catalog, public;
		CALL coupon_purge();
		SHOW statement_timeout; SHOW search_path});
	is(supers(), $owner, "a trigger $how->[0]: a search path that was set gives office nothing");
	like($error, qr/set by/, 'it was set') if $how->[0] ne 'with a path';
	unlike($error, qr/evil|ERROR/, 'and nothing of evil was called');
	is($out, "0\npg_catalog, public", 'nothing of it is left');
	is(sql("SELECT count(*) FROM coupon_task WHERE id = $old"), '0', 'and the purge has gone on');
	sql('DROP TRIGGER sets ON coupon_task; DROP TRIGGER sets ON coupon_task_failure; DROP FUNCTION public.sets()');
}

sql('TRUNCATE audit; REVOKE ALL ON audit FROM office');

# The same by a CHECK, a default, and an index.
sql(q{
	CREATE FUNCTION public.notes_look() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO audit VALUES (current_user, 'looks');
	END $$;
	CREATE FUNCTION public.looks(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
	BEGIN
		PERFORM public.notes_look();
		RETURN $1;
	END $$});
for my $how (
	[ 'ALTER TABLE user_coupon ADD CONSTRAINT looks CHECK (public.looks(user_id) > 0) NOT VALID', 'ALTER TABLE user_coupon DROP CONSTRAINT looks' ],
	[ 'ALTER TABLE user_coupon ADD COLUMN looks bigint; ALTER TABLE user_coupon ALTER COLUMN looks SET DEFAULT public.looks(1)', 'ALTER TABLE user_coupon DROP COLUMN looks' ],
	[ 'TRUNCATE user_coupon, coupon_stock, coupon_watermark; CREATE INDEX looks ON user_coupon (public.looks(user_id))', 'DROP INDEX looks' ])
{
	sql($how->[0]);
	my ($out, $err) = as_role('app', "$trap SELECT outcome FROM coupon_receive(1, 7)");
	is(supers(), $owner, "$how->[0]");
	like($err, qr/permission denied|must be superuser|[Oo]nly roles/, 'it was at work, as app');
	sql($how->[1]);
}

# What a shop's trigger may do is what its caller may; or its author, who says so.
sql(q{
	CREATE OR REPLACE FUNCTION public.audits() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.audit VALUES (current_user, current_setting('search_path'));
		RETURN NEW;
	END $$;
	CREATE TRIGGER audits AFTER INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION public.audits()});
like((as_role('app', 'SELECT outcome FROM coupon_receive(1, 10)'))[1], qr/permission denied for table audit/, 'without a right to the table');
sql('GRANT INSERT ON audit TO app');
is((as_role('app', 'SELECT outcome FROM coupon_receive(1, 10)'))[0], 'ok', 'with one');
is(sql('SELECT * FROM audit'), 'app|"$user", public', "it runs as the caller, on the caller's search path");
sql(q{REVOKE INSERT ON audit FROM app; TRUNCATE audit; ALTER FUNCTION public.audits() SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp});
is((as_role('app', 'SELECT outcome FROM coupon_receive(1, 11)'))[0], 'ok', 'with rights of its own');
is(sql('SELECT * FROM audit'), "$owner|pg_catalog, public, pg_temp", 'it runs as its owner, on its own path');
is(sql('SELECT code FROM coupon_receive(1, 12)'), '0', 'for a superuser too');
# It calls others, which keep its rights; an error in it is caught, and the next goes on as before.
sql(q{
	TRUNCATE audit;
	CREATE FUNCTION public.notes(text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.audit VALUES (current_user, $1)';
	CREATE OR REPLACE FUNCTION public.audits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	BEGIN
		BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN PERFORM public.notes('caught'); END;
		PERFORM public.notes('after');
		RETURN NEW;
	END $$;
	CREATE FUNCTION public.says() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		BEGIN
			PERFORM coupon_receive(1, 13);
			PERFORM 1 / 0;
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
		RAISE NOTICE 'says %', current_user;
		RETURN NEW;
	END $$;
	CREATE TRIGGER zays AFTER INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION public.says()});
like((as_role('app', 'SELECT outcome FROM coupon_receive(1, 14)'))[1], qr/says app/, 'a caught error leaves the caller who he is');
is(sql('SELECT * FROM audit'), "$owner|caught\n$owner|after", 'and the other trigger who it is');
sql('DROP TRIGGER audits ON user_coupon; DROP TRIGGER zays ON user_coupon');

# Functions and operators that fit an untyped literal, or another type, better.
# Each raises an error; our SQL never calls one.
sql(q{
	CREATE SCHEMA shop;
	GRANT CREATE, USAGE ON SCHEMA shop TO app;
	DROP EXTENSION coupon CASCADE});
my $decoy = q{RETURNS %s LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''decoy''; END'};
my @bodies;
for my $f ('count(text)', 'max(text)', 'min(text)', 'sum(text)', 'unnest(text)', 'statement_timestamp(text)', 'clock_timestamp(text)', 'make_interval(text)',
	'round(text)', 'format(text, int)', 'format(text, name)', 'format(text, regprocedure)', 'format(text, text)', 'format(text, bigint)', 'string_agg(text, text)', 'jsonb_typeof(text)',
	'cardinality(text)', 'array_position(bigint[], text)', 'pg_has_role(text, text)', 'pg_extension_config_dump(text, text)', 'acldefault(text, oid)', 'quote_ident(name)')
{
	push @bodies, "CREATE FUNCTION shop.$f " . sprintf($decoy, 'text') . ';';
}
for my $op ('=(text, varchar)', '<>(text, varchar)', '=(text, name)', '=(name, text)', '~(name, text)', '>(int, smallint)', '=(bigint, smallint)', '>(bigint, smallint)', '=(smallint, text)',
	'>(numeric, int)', '||(text, name)', '<=(timestamptz, text)', '=(regproc, oid)', '+(text, int)')
{
	my ($name, $left, $right) = $op =~ /^([^(]+)\((.*), (.*)\)$/;
	(my $f = "d_$left$right" . unpack('H*', $name)) =~ s/\W/_/g;
	push @bodies, "CREATE FUNCTION shop.$f($left, $right) " . sprintf($decoy, 'boolean') . ";\n"
	  . "CREATE OPERATOR shop.$name (LEFTARG = $left, RIGHTARG = $right, FUNCTION = shop.$f);";
}
is((as_role('app', join "\n", @bodies))[1], '', 'decoys before CREATE EXTENSION');
my ($rc, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION coupon SCHEMA shop');
like($err, qr/^psql:\S+ WARNING:  objects can be created in the schema of the extension by app\n.*HINT:  Give it a schema of its own/s, 'a warning, and nothing else');
like(sql(q{SET search_path = shop; SELECT status, detail, advice FROM coupon_health WHERE check_name = 'schema'}),
	qr/^warning\|objects can be created in schema shop by app\|REVOKE CREATE ON SCHEMA shop/, 'coupon_health tells');
is(sql(q{
	SELECT d.classid::regclass, d.objid, d.refclassid::regclass, pg_describe_object(d.refclassid, d.refobjid, 0)
	FROM pg_depend d
	WHERE (d.refclassid, d.refobjid) IN (SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE proowner = 'app'::regrole
		UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprowner = 'app'::regrole)
	AND (d.classid, d.objid) NOT IN (SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprowner = 'app'::regrole)}),
	'', 'nothing that was installed depends on a decoy');

# And around each function of ours: the same with text, and with numbers of another width, in place of each argument.
@bodies = split /\n;\n/, sql(q{
	SELECT DISTINCT format('CREATE FUNCTION shop.%I(%s) RETURNS text LANGUAGE plpgsql AS %L', p.proname,
		string_agg(CASE WHEN x.n <> a.n THEN format_type(a.type, NULL) ELSE x.other END, ', ' ORDER BY a.n),
		'BEGIN RAISE EXCEPTION ''decoy''; END') || E'\n;'
	FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	CROSS JOIN LATERAL unnest(p.proargtypes) WITH ORDINALITY AS a (type, n)
	CROSS JOIN LATERAL (SELECT n, other FROM unnest(p.proargtypes) WITH ORDINALITY AS t (type, n), unnest(ARRAY['text', 'int', 'bigint']) other
		WHERE other::regtype <> t.type) x
	WHERE p.pronamespace = 'shop'::regnamespace AND p.prokind = 'f' AND NOT ('internal'::regtype = ANY (p.proargtypes))
	GROUP BY p.oid, p.proname, x.n, x.other});
s/\n;\s*$// for @bodies;
push @bodies, map {
	"CREATE FUNCTION shop.d_" . unpack('H*', $_) . "(shop.remind_bitmap, text) " . sprintf($decoy, 'boolean') . ";\n"
	  . "CREATE OPERATOR shop.$_ (LEFTARG = shop.remind_bitmap, RIGHTARG = text, FUNCTION = shop.d_" . unpack('H*', $_) . ')'
} ('=', '<>', '-', '&', '|', '@>', '<@');
sql(q{GRANT USAGE ON TYPE shop.remind_bitmap TO app});
my ($made, $refused) = as_role('app', join "\n", map { "$_;" } @bodies);
unlike($refused, qr/ERROR:  (?!function "\w+" already exists)/, 'decoys around ours');
cmp_ok(sql(q{SELECT count(*) FROM pg_proc WHERE proowner = 'app'::regrole}), '>', 100, 'many of them');

# All of our verbs, by users whose search path begins in that schema.
sql(q{
	SELECT shop.coupon_grant('app'::regrole, 'application'::text, NULL::bigint), shop.coupon_grant('office'::regrole, 'operator'::text, NULL::bigint),
	       shop.coupon_grant('watch'::regrole, 'monitor'::text, NULL::bigint);
	ALTER ROLE ALL SET search_path = shop, public;
	INSERT INTO shop.coupon_template (id, name, total_stock, discount_value, status, receive_start)
	VALUES (1, 'a', 1000, 1, 'published', now()), (2, 'b', 1000, 1, 'published', now() + interval '2 hours')});
for my $call (
	[ app => 'coupon_receive(1::bigint, 1::bigint, NULL::text, \'center\'::text)' ],
	[ app => "coupon_receive_many(1::bigint, '{2,3}'::bigint[], 'center'::text, NULL::text)" ],
	[ app => 'coupon_receive_new_user(4::bigint)' ],
	[ app => 'coupon_template_get(1::bigint)' ],
	[ app => 'coupon_browse(NULL::text, NULL::bigint, 20::int, NULL::bigint)' ],
	[ app => 'coupon_wallet(1::bigint, NULL::text, 20::int, NULL::bigint)' ],
	[ app => 'coupon_wallet_count(1::bigint)' ],
	[ app => q{coupon_remind_create(2::bigint, 1::bigint, 'app'::text, 30::int)} ],
	[ app => 'coupon_remind_list(1::bigint, 20::int, NULL::bigint)' ],
	[ app => q{coupon_remind_cancel(2::bigint, 1::bigint, 'app'::text, 30::int)} ],
	[ app => q{coupon_remind_create(2::bigint, 1::bigint, 'app'::text, 60::int)} ],
	[ app => q{coupon_contact_set(1::bigint, 'app'::text, 'x'::text)} ],
	[ office => 'coupon_fold()' ],
	[ office => 'coupon_stock_rebuild(1::bigint)' ],
	[ office => 'coupon_verify(NULL::bigint)' ],
	[ office => q{coupon_channel_set('app'::text, 'http://127.0.0.1:1/'::text, NULL::text, NULL::jsonb, NULL::text, NULL::text, NULL::text, NULL::text, 1::int, 64::int, '10 s'::interval, true::boolean)} ],
	[ office => q{coupon_channel_enable('app'::text, true)} ],
	[ office => q{coupon_message_set('coupon'::text, 'app'::text, 's'::text, 'b'::text)} ],
	[ office => q{coupon_channel_test('app'::text, 'x'::text)} ],
	[ office => q{coupon_channel_preview('coupon'::text, 'app'::text, 1::bigint)} ],
	[ office => 'coupon_notification_replay(NULL::bigint, NULL::text)' ],
	[ office => 'coupon_remind_tick()' ],
	[ office => q{coupon_task_create('t'::text, 1::bigint, '{app}'::text[], 2::bigint, NULL::text)} ],
	[ office => q{coupon_stuck('1 second'::interval)} ],
	(map { [ watch => $_ ] } qw(coupon_health coupon_stat coupon_stat_cache coupon_stat_worker coupon_stat_channel coupon_task_progress coupon_held coupon_reminders)),
	[ $owner => q{coupon_cron_jobs()} ])
{
	my ($role, $what) = @$call;
	my ($answer, $error) = as_role($role, "SELECT * FROM $what");
	is($error, '', "$role: " . substr($what, 0, 40));
}
my $task = sql('SELECT max(id) FROM coupon_task');
is((as_role('office', "INSERT INTO coupon_stage_$task (user_id) SELECT 'x' || g FROM generate_series(1, 3) g; INSERT INTO coupon_stage_$task (user_id) SELECT g FROM generate_series(1, 30) g;"
	  . " CALL coupon_task_run(${task}::bigint)"))[1] =~ /ERROR/, '', 'office: a distribution');
is(sql("SELECT state, issued, failed FROM coupon_task WHERE id = $task"), 'success|27|6', 'has done what it should');
is((as_role($owner, 'SET coupon.keep_coupons = 1; SET coupon.keep_tasks = 1; SET coupon.keep_notifications = 1; SET coupon.keep_reminders = 1; CALL coupon_expire(); CALL coupon_purge()'))[1],
	'', 'tidying');
is(supers(), $owner, 'and there is one superuser');

# A domain whose CHECK trips over a function of the session's.
sql(q{
	CREATE FUNCTION public.short(v text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN v IS NULL OR length(v) <= 20; END';
	CREATE DOMAIN public.short AS text CHECK (short(value));
	ALTER TABLE shop.user_coupon ADD COLUMN via public.short DEFAULT 'web';
	CREATE SCHEMA app_evil AUTHORIZATION app});
is((as_role('app', 'SELECT outcome FROM shop.coupon_receive(1, 910100)'))[0], 'ok', 'a column of a domain');
for my $first ('SELECT 1', q{SELECT 'web'::short})
{
	my ($out, $error) = as_role('app', qq{
		CREATE OR REPLACE FUNCTION app_evil.length(text) RETURNS int LANGUAGE sql AS \$\$SELECT pg_catalog.lo_export(4242, '/nowhere/at/all')\$\$;
		SET search_path = app_evil, pg_catalog, public, shop;
		$first;
		SELECT outcome FROM coupon_receive(1, 910101)});
	like($error, qr/permission denied for function lo_export/, "a function in the CHECK of a domain runs as app, after $first");
	unlike($error, qr/large object|nowhere/, 'and as nobody else');
}
sql('ALTER TABLE shop.user_coupon DROP COLUMN via');

# A function that sets a path of its own has that one.
sql(q{
	CREATE TABLE public.paths (p text); GRANT INSERT ON paths TO PUBLIC;
	CREATE FUNCTION public.own_path() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$BEGIN
		INSERT INTO paths VALUES (current_setting('search_path')); RETURN NEW; END$$;
	CREATE TRIGGER own_path AFTER INSERT ON shop.user_coupon FOR EACH ROW EXECUTE FUNCTION public.own_path()});
sql('SELECT outcome FROM shop.coupon_receive(1, 910000)');
is(sql('SELECT p FROM paths'), 'public, pg_temp', 'a trigger with a path of its own');
sql('DROP TRIGGER own_path ON shop.user_coupon');

# A function of a shop that is safe for any table, with a path and rights of its own, is so
# for ours: a trigger that it fires finds what its path has, not what the session has made.
sql(q{
	CREATE SCHEMA boutique; CREATE TABLE boutique.audit (w name, t text);
	CREATE ROLE buyer LOGIN; GRANT USAGE ON SCHEMA boutique TO buyer;
	CREATE FUNCTION boutique.note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		BEGIN INSERT INTO audit VALUES (current_user, TG_TABLE_NAME); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN NEW; END$$;
	CREATE TRIGGER note AFTER INSERT ON shop.user_coupon FOR EACH ROW EXECUTE FUNCTION boutique.note();
	CREATE FUNCTION boutique.buy(u bigint) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
		SET search_path = pg_catalog, boutique, shop, pg_temp AS $$BEGIN RETURN (SELECT outcome FROM coupon_receive(1, u)); END$$});
is((as_role('buyer', q{
	CREATE TEMP TABLE audit (w name, t text);
	CREATE FUNCTION pg_temp.wants() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN EXECUTE format('ALTER ROLE %I SUPERUSER', session_user); RETURN NEW; END$$;
	CREATE TRIGGER wants BEFORE INSERT ON pg_temp.audit FOR EACH ROW EXECUTE FUNCTION pg_temp.wants();
	SELECT boutique.buy(910001)}))[0], 'ok', 'a definer that claims');
is(sql('SELECT count(*) FROM boutique.audit'), '1', 'its trigger finds its table');
is(supers(), $owner, 'and nobody else a superuser');
sql('DROP TRIGGER note ON shop.user_coupon');

# A stage that is something else by now.
$task = sql(q{SELECT task_id FROM coupon_task_create('t'::text, 1::bigint, '{}'::text[], 2::bigint, NULL::text)});
sql("INSERT INTO coupon_stage_$task (user_id) VALUES ('50'); SELECT * FROM coupon_task_submit(${task}::bigint, 'infinity'::timestamptz); DROP TABLE coupon_stage_$task");
is((as_role('app', qq{
	CREATE FUNCTION shop.wants() RETURNS text LANGUAGE plpgsql AS 'BEGIN ALTER ROLE app SUPERUSER; RETURN 51; END';
	CREATE VIEW shop.coupon_stage_$task AS SELECT shop.wants() AS user_id, 1::bigint AS line}))[1], '', 'a view in its place');
like((as_role($owner, "CALL coupon_task_run(${task}::bigint)"))[1], qr/"coupon_stage_\d+" is not the stage that was made for its task/, 'is not read');
is((as_role($owner, "SELECT outcome FROM coupon_task_cancel(${task}::bigint)"))[1] =~ /superuser/, '', 'nor dropped by a cancel');
sql("DROP VIEW shop.coupon_stage_$task");
is((as_role('app', "CREATE TABLE shop.coupon_stage_$task (user_id text, line bigint); INSERT INTO shop.coupon_stage_$task VALUES ('51', 1)"))[1], '', "a table of somebody's");
like((as_role($owner, "CALL coupon_task_run(${task}::bigint)"))[1], qr/is not the stage that was made|cancelled/, 'is not read either');
is(supers(), $owner, 'and there is still one superuser');

# A dump holds no grant of a role that was dropped: its number would be another role's.
sql(q{CREATE ROLE gone; CREATE ROLE kept; SELECT coupon_grant('gone'::regrole, 'operator'::text), coupon_grant('kept'::regrole, 'monitor'::text, 77::bigint); DROP OWNED BY gone; DROP ROLE gone});
is(sql(q{SELECT count(*) FROM coupon_role WHERE role::text ~ '^[0-9]+$'}), '1', 'a grant without its role');
my $dump_file = PostgreSQL::Test::Utils::tempdir() . '/roles.sql';
$node->command_ok([ 'pg_dump', '--data-only', '-f', $dump_file, 'postgres' ], 'a dump');
my ($dumped) = slurp_file($dump_file) =~ /COPY \S*coupon_role .*?\n(.*?)^\\\./ms;
like($dumped, qr/kept\tmonitor\t77/, 'with the others');
unlike($dumped, qr/^[0-9]+\toperator/m, 'without it');

# What an operator is just making is his until a revoke sees it.
sql(q{CREATE ROLE late LOGIN; SELECT coupon_grant('late'::regrole, 'operator'::text, 1::bigint), coupon_grant('late'::regrole, 'application'::text, 2::bigint);
	INSERT INTO coupon_template (id, shop_number, name, discount_value) VALUES (77001::bigint, 1::bigint, 'late'::text, 1::numeric)});
my $late = $node->background_psql('postgres', extra_params => [ '-U', 'late' ]);
my $of_late = $late->query_safe(q{BEGIN; SELECT task_id FROM coupon_task_create('late'::text, 77001::bigint, '{}'::text[], 2::bigint, NULL::text)});
my $revoke = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', q{SELECT coupon_grant_revoke('late'::regrole, 'operator'::text, 1::bigint)} ], '<', \undef, '>', \my $revoked, '2>&1');
$node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'shop.coupon_task'::regclass)}) or die;
$late->query_safe('COMMIT');
$revoke->finish;
is($revoked, "\n", 'a revoke waits for it');
$late->quit;
like((as_role('late', "INSERT INTO coupon_stage_$of_late (user_id) VALUES ('1')"))[1], qr/permission denied/, 'and takes the stage as well');
$node->stop;
done_testing();
