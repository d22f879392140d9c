# What hangs on our tables belongs to a superuser, or the tables are not written: whoever
# owns a function, domain or type there can change what is evaluated as the owner of
# the extension, or in a background worker.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('attached', "coupon.databases = ''");
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Runs statements as a role, and returns output and errors.
sub as_role
{
	my ($role, $sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql", extra_params => [ '-U', $role ], on_error_stop => 0);
	return ($out, $err);
}

my $proof = $node->basedir . '/written_as_superuser';
my $export = "pg_catalog.lo_export(4242, '$proof')";
sql(qq{
	CREATE ROLE app LOGIN; CREATE ROLE office LOGIN; CREATE ROLE shop LOGIN;
	SELECT coupon_grant('app', 'application'), coupon_grant('office', 'operator');
	CREATE SCHEMA shop AUTHORIZATION shop; GRANT USAGE ON SCHEMA shop TO PUBLIC;
	SELECT lo_from_bytea(4242, 'x');
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
	VALUES (1, 'a', 100000, 1, 'published', now()), (2, 'b', 1000, 1, 'published', now() + interval '2 hours')});
as_role('shop', q{
	CREATE FUNCTION shop.f(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT $1';
	CREATE DOMAIN shop.d AS bigint;
	CREATE DOMAIN shop.arg AS bigint;
	CREATE TYPE shop.pair AS (a shop.d);
	CREATE TYPE shop.span AS RANGE (subtype = shop.d);
	CREATE TYPE shop.color AS ENUM ('1', '2', '3');
	CREATE FUNCTION shop.color(bigint) RETURNS shop.color LANGUAGE sql IMMUTABLE AS $$SELECT '1'::shop.color$$;
	CREATE CAST (bigint AS shop.color) WITH FUNCTION shop.color(bigint) AS IMPLICIT;
	CREATE TABLE shop.colors (id shop.color PRIMARY KEY);
	INSERT INTO shop.colors VALUES ('1');
	CREATE TABLE shop.plain (id bigint PRIMARY KEY);
	INSERT INTO shop.plain SELECT generate_series(0, 1000);
	GRANT ALL ON shop.colors, shop.plain TO PUBLIC;
	CREATE FUNCTION shop.audits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'});
# A superuser's own, which uses a type of the shop.
sql(q{CREATE FUNCTION public.g(u shop.arg) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN u; END';
	CREATE FUNCTION public.h(u bigint) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN u;
	CREATE FUNCTION public.text_body(u bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT shop.f(u)';
	CREATE FUNCTION public.audits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
	CREATE TYPE public.color AS ENUM ('1', '2', '3');
	CREATE TABLE public.colors (id public.color PRIMARY KEY);
	CREATE TABLE public.plain (id bigint PRIMARY KEY); INSERT INTO public.plain SELECT generate_series(0, 1000)});
as_role('shop', q{
	CREATE OPERATOR shop.=== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = pg_catalog.int8eq);
	CREATE SEQUENCE shop.seq; GRANT ALL ON SEQUENCE shop.seq TO PUBLIC;
	CREATE TABLE shop.refers (task_id bigint, user_id bigint, channel text)});

# What the shop makes of each afterwards, so that it would run as the owner.
my $default = "CREATE OR REPLACE FUNCTION shop.f(bigint, x int DEFAULT $export) RETURNS bigint LANGUAGE sql AS 'SELECT \$1'; DROP FUNCTION shop.f(bigint)";
my $check = "ALTER DOMAIN shop.%s ADD CHECK ($export > 0) NOT VALID";
my %calls = (
	user_coupon => [ app => 'SELECT outcome FROM coupon_receive(1, %d)', 'user_id' ],
	user_coupon_7 => [ app => 'SELECT string_agg(DISTINCT outcome, $$ $$) FROM coupon_receive_many(1, ARRAY(SELECT %d + generate_series(1, 200)))', 'user_id' ],
	coupon_remind => [ app => q{SELECT outcome FROM coupon_remind_create(2, %d, 'app', 30)}, 'user_id' ],
	coupon_contact => [ app => q{SELECT coupon_contact_set(%d, 'app', 'x')}, 'user_id' ],
	coupon_notification => [ office => q{SELECT coupon_channel_test('app', 'user-%d') > 0}, 'id' ],
	coupon_task => [ office => q{SELECT task_id > 0 FROM coupon_task_create('t%d', 1)}, 'id' ],
	coupon_stock => [ office => 'SELECT %d FROM coupon_fold()', 'template_id' ]);
sql(q{SELECT coupon_channel_set('app', 'http://127.0.0.1:1/')});

my $user = 100;
sub refused
{
	my ($table, $what, $add, $drop, $attack, $why) = @_;
	my ($role, $call) = @{ $calls{$table} };
	sql('SELECT coupon_receive(1, ' . ++$user . ')') if $table eq 'coupon_stock';	# something to fold
	sql($add);
	as_role('shop', $attack) if $attack;
	$user += 300;
	my ($out, $err) = as_role($role, sprintf($call, $user));
	$why ||= 'belongs to role shop';
	like($err, qr/VC016: table "\w+" cannot be used: .*$why/, "$table: $what");
	is(sql(q{SELECT status FROM coupon_health WHERE check_name = 'attached'}), 'critical', 'and coupon_health says so') unless $why =~ /itself/;
	ok(!-e $proof, 'nothing was written as a superuser');
	sql($drop);
	$user += 300;
	is((as_role($role, sprintf($call, $user)))[1], '', 'and again without it');
	return;
}

for my $table (sort keys %calls)
{
	my $column = $calls{$table}[2];
	refused($table, "the shop's function in a CHECK",
		"ALTER TABLE $table ADD CONSTRAINT c CHECK (shop.f($column) > 0) NOT VALID", "ALTER TABLE $table DROP CONSTRAINT c");
	next if $table eq 'user_coupon_7';
	refused($table, "a column of the shop's domain",
		"ALTER TABLE $table ADD COLUMN via shop.d", "ALTER TABLE $table DROP COLUMN via", sprintf($check, 'd'));
	as_role('shop', 'ALTER DOMAIN shop.d DROP CONSTRAINT d_check');
	refused($table, "a superuser's function that takes the shop's domain, in a WHEN",
		"CREATE TRIGGER w AFTER INSERT OR UPDATE ON $table FOR EACH ROW WHEN (public.g(NEW.$column) > 0) EXECUTE FUNCTION public.audits()",
		"DROP TRIGGER w ON $table", sprintf($check, 'arg'));
	as_role('shop', 'ALTER DOMAIN shop.arg DROP CONSTRAINT arg_check');
}
for my $case (
	[ 'a default', 'ADD COLUMN n bigint, ALTER COLUMN n SET DEFAULT shop.f(1)' ],
	[ 'a generated column', 'ADD COLUMN n bigint GENERATED ALWAYS AS (shop.f(user_id)) STORED' ],
	[ 'a composite type', 'ADD COLUMN n shop.pair' ],
	[ 'an array', 'ADD COLUMN n shop.d[]' ],
	[ 'a range', 'ADD COLUMN n shop.span' ],
	[ 'a foreign key that casts', 'ADD COLUMN n shop.color REFERENCES shop.colors' ])
{
	refused('coupon_contact', $case->[0], "ALTER TABLE coupon_contact $case->[1]", 'ALTER TABLE coupon_contact DROP COLUMN n');
}
refused('coupon_contact', "a foreign key of a superuser's type", q{ALTER TABLE coupon_contact ADD COLUMN n public.color REFERENCES public.colors},
	'ALTER TABLE coupon_contact DROP COLUMN n', undef, 'is between columns that are not of one built-in type');
refused('coupon_contact', 'an index', 'CREATE INDEX i ON coupon_contact (shop.f(user_id))', 'DROP INDEX i');
refused('coupon_contact', 'a partial index', 'CREATE INDEX i ON coupon_contact (user_id) WHERE shop.f(user_id) > 0', 'DROP INDEX i');
refused('coupon_contact', 'a constraint that names no column', 'ALTER TABLE coupon_contact ADD CONSTRAINT c EXCLUDE USING btree (user_id WITH =, channel WITH =) WHERE (shop.f(1) > 0)',
	'ALTER TABLE coupon_contact DROP CONSTRAINT c');
refused('coupon_contact', "a superuser's SQL function that can be put in place of its call", 'CREATE INDEX i ON coupon_contact (public.text_body(user_id))', 'DROP INDEX i',
	undef, 'is an SQL function whose body is a text, without a SET clause');
refused('coupon_contact', 'a rule', 'CREATE RULE r AS ON DELETE TO coupon_contact DO ALSO DELETE FROM public.colors', 'DROP RULE r ON coupon_contact', undef, 'is a rule');
refused('coupon_contact', "an operator of the shop's, whose negator is to come", 'ALTER TABLE coupon_contact ADD CONSTRAINT c CHECK (NOT (user_id OPERATOR(shop.===) 4711))', 'ALTER TABLE coupon_contact DROP CONSTRAINT c');
sql(q{ALTER OPERATOR shop.===(bigint, bigint) OWNER TO } . sql('SELECT current_user'));
as_role('shop', q{CREATE FUNCTION shop.ne(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END'});
sql('CREATE OPERATOR shop.!== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shop.ne, NEGATOR = OPERATOR(shop.===))');
refused('coupon_contact', 'an operator whose negator calls the shop', 'ALTER TABLE coupon_contact ADD CONSTRAINT c CHECK (NOT (user_id OPERATOR(shop.===) 4711))', 'ALTER TABLE coupon_contact DROP CONSTRAINT c');
sql(q{CREATE TYPE public.tone AS ENUM ('1')});
sql('CREATE FUNCTION shop.jtone(public.tone) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN 1; END$$; ALTER FUNCTION shop.jtone OWNER TO shop; CREATE CAST (public.tone AS json) WITH FUNCTION shop.jtone(public.tone)');
refused('coupon_contact', "a superuser's type with the shop's cast", 'ALTER TABLE coupon_contact ADD COLUMN n public.tone', 'ALTER TABLE coupon_contact DROP COLUMN n');
for my $index ('(shop.f(user_id))', '(status) WHERE user_id > shop.f(0)')
{
	refused('user_coupon_7', "an index where claims go past the executor: $index", "CREATE INDEX i ON user_coupon $index", 'DROP INDEX i');
}
refused('coupon_contact', "a key to a table of the shop's", 'ALTER TABLE coupon_contact ADD CONSTRAINT c FOREIGN KEY (user_id) REFERENCES shop.plain NOT VALID', 'ALTER TABLE coupon_contact DROP CONSTRAINT c');
refused('coupon_contact', "a key of a table of the shop's", 'ALTER TABLE shop.refers ADD CONSTRAINT c FOREIGN KEY (user_id, channel) REFERENCES coupon_contact', 'ALTER TABLE shop.refers DROP CONSTRAINT c');
refused('coupon_contact', "a sequence of the shop's", q{ALTER TABLE coupon_contact ADD COLUMN n bigint DEFAULT nextval('shop.seq')}, 'ALTER TABLE coupon_contact DROP COLUMN n');
refused('coupon_task', "a child table of the shop's", 'CREATE TABLE shop.old_tasks () INHERITS (coupon_task); ALTER TABLE shop.old_tasks OWNER TO shop', 'DROP TABLE shop.old_tasks', undef, 'the table itself belongs to role shop');
as_role('shop', q{CREATE FUNCTION shop.cmp(bigint, bigint) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN btint8cmp($1, $2); END'});
sql(q{CREATE OPERATOR CLASS public.shop_ops FOR TYPE bigint USING btree AS
	OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 shop.cmp(bigint, bigint)});
refused('coupon_contact', "a superuser's operator class that calls the shop", 'CREATE INDEX i ON coupon_contact (user_id public.shop_ops)', 'DROP INDEX i');
sql(q{CREATE VIEW public.reads AS SELECT shop.f(1) AS x; CREATE FUNCTION public.atomic() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT x FROM public.reads; END});
refused('coupon_contact', "a superuser's function that reads a view of the shop's function", 'ALTER TABLE coupon_contact ADD CONSTRAINT c CHECK (public.atomic() > 0) NOT VALID', 'ALTER TABLE coupon_contact DROP CONSTRAINT c');
# An array and a row type compare by the default operator class of their parts.
sql(q{CREATE TYPE public.tag AS (v int); CREATE TYPE public.tagbox AS (t public.tag)});
as_role('shop', q{CREATE FUNCTION shop.tagcmp(public.tag, public.tag) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN btint4cmp($1.v, $2.v); END'});
my $n = 0;
for my $op ('<', '<=', '=', '>=', '>')
{
	$n++;
	sql("CREATE FUNCTION public.tag$n(public.tag, public.tag) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN \$1.v $op \$2.v; END';
		CREATE OPERATOR public.$op# (LEFTARG = public.tag, RIGHTARG = public.tag, FUNCTION = public.tag$n)");
}
sql(q{CREATE OPERATOR CLASS public.tag_ops DEFAULT FOR TYPE public.tag USING btree AS OPERATOR 1 public.<#, OPERATOR 2 public.<=#, OPERATOR 3 public.=#,
	OPERATOR 4 public.>=#, OPERATOR 5 public.>#, FUNCTION 1 shop.tagcmp(public.tag, public.tag)});
for my $type ('public.tag[]', 'public.tagbox')
{
	refused('coupon_contact', "a $type, whose parts the shop compares", "ALTER TABLE coupon_contact ADD COLUMN n $type; CREATE INDEX i ON coupon_contact (n)", 'ALTER TABLE coupon_contact DROP COLUMN n');
}
# What hangs on tables that a superuser's function reads, or that keys join with ours, whoever owns them.
sql(q{CREATE TABLE public.banned (id bigint PRIMARY KEY); CREATE FUNCTION public.is_ok(u bigint) RETURNS boolean LANGUAGE sql STABLE BEGIN ATOMIC SELECT NOT EXISTS (SELECT FROM public.banned b WHERE b.id = u); END;
	CREATE ROLE boss SUPERUSER; CREATE TABLE public.orders (user_id bigint, channel text); ALTER TABLE public.orders OWNER TO boss});
as_role('shop', q{CREATE FUNCTION shop.goes() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'});
my $is_ok = 'ALTER TABLE coupon_contact ADD CONSTRAINT c CHECK (public.is_ok(user_id)) NOT VALID';
my $drop = 'ALTER TABLE coupon_contact DROP CONSTRAINT c';
refused('coupon_contact', "an index of a table that a superuser's function reads", "$is_ok; CREATE INDEX i ON public.banned (id) WHERE id > shop.f(0)", "$drop; DROP INDEX i");
refused('coupon_contact', 'statistics of it', "$is_ok; CREATE STATISTICS public.st ON (shop.f(id)), id FROM public.banned", "$drop; DROP STATISTICS public.st");
refused('coupon_contact', 'a child of it', "$is_ok; CREATE TABLE shop.child (id bigint NOT NULL); ALTER TABLE shop.child INHERIT public.banned; ALTER TABLE shop.child OWNER TO shop", "$drop; DROP TABLE shop.child");
my $key = 'ALTER TABLE public.orders ADD CONSTRAINT k FOREIGN KEY (user_id, channel) REFERENCES coupon_contact ON DELETE CASCADE';
refused('coupon_contact', "a trigger of another superuser's table that refers to ours", "CREATE TRIGGER t BEFORE DELETE ON public.orders FOR EACH ROW EXECUTE FUNCTION shop.goes(); $key", 'ALTER TABLE public.orders DROP CONSTRAINT k; DROP TRIGGER t ON public.orders');
refused('coupon_contact', "an index of another superuser's table that ours refers to", 'ALTER TABLE public.banned OWNER TO boss; CREATE INDEX i ON public.banned (id) WHERE id > shop.f(0); ALTER TABLE coupon_contact ADD COLUMN n bigint REFERENCES public.banned',
	'ALTER TABLE coupon_contact DROP COLUMN n; DROP INDEX i');
sql($key);
is((as_role('app', "SELECT coupon_contact_set(4712, 'app', 'x'), coupon_contact_set(4712, 'app', NULL)"))[1], '', 'a key of a table that nothing of the shop hangs on is well');
sql('ALTER TABLE public.orders DROP CONSTRAINT k');

# What is planned is evaluated, though it is only read.
for my $what ('STATISTICS i ON (shop.f(user_id)), channel FROM coupon_contact', 'INDEX i ON coupon_contact (channel) WHERE user_id > shop.f(0)')
{
	sql("CREATE $what");
	like((as_role('office', q{SELECT * FROM coupon_channel_preview('test', 'app', 5)}))[1], qr/VC016: table "coupon_contact" cannot be used: .* belongs to role shop/, "read: $what");
	sql('DROP ' . ($what =~ /^(\w+)/)[0] . ' i');
	is((as_role('office', q{SELECT endpoint FROM coupon_channel_preview('test', 'app', 5)}))[0], 'http://127.0.0.1:1', 'and again without it');
}
sql(q{CREATE TABLE shop.roles () INHERITS (coupon_role); ALTER TABLE shop.roles OWNER TO shop; INSERT INTO shop.roles (role, kind, id) VALUES ('app', 'operator', 1)});
like((as_role('app', 'SELECT outcome FROM coupon_receive(1, 7777)'))[1], qr/VC016: table "roles" cannot be used/, 'a role gets no grants by a child table');
sql('DROP TABLE shop.roles');
for my $table (sort keys %calls)
{
	refused($table, "a trigger function of the shop's", "CREATE TRIGGER w BEFORE INSERT OR UPDATE OR DELETE ON $table FOR EACH ROW EXECUTE FUNCTION shop.audits()", "DROP TRIGGER w ON $table");
}
refused('user_coupon', "a deferred trigger of the shop's", 'CREATE CONSTRAINT TRIGGER w AFTER INSERT ON user_coupon DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION shop.audits()', 'DROP TRIGGER w ON user_coupon');
refused('user_coupon_7', "a partition of the shop's", q{ALTER TABLE user_coupon_9 OWNER TO shop}, "ALTER TABLE user_coupon_9 OWNER TO postgres", undef, 'the table itself belongs to role shop')
	if sql('SELECT current_user') eq 'postgres';
# In a session that has written the table before: what changes is judged anew.
for my $change ("CREATE OR REPLACE FUNCTION public.h(u bigint, x shop.d DEFAULT 1) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN u",
	'ALTER FUNCTION public.h(bigint) OWNER TO shop')
{
	sql('ALTER TABLE coupon_contact ADD CONSTRAINT c CHECK (public.h(user_id) > 0)');
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $call = q{SELECT coupon_contact_set(5, 'app', 'x');};
	is($session->query($call), '', "a superuser's function is well");
	sql($change =~ /REPLACE/ ? "ALTER TABLE coupon_contact DROP CONSTRAINT c; DROP FUNCTION public.h(bigint); $change; ALTER TABLE coupon_contact ADD CONSTRAINT c CHECK (public.h(user_id) > 0)" : $change);
	$session->query($call);
	like($session->{stderr}, qr/table "coupon_contact" cannot be used/, "until: $change");
	$session->quit;
	sql('ALTER TABLE coupon_contact DROP CONSTRAINT c');
	sql(q{DROP FUNCTION public.h; CREATE FUNCTION public.h(u bigint) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN u});
}

# What is harmless goes on: a superuser's functions, and a foreign key to a table of his.
sql(q{ALTER TABLE coupon_contact ADD CONSTRAINT c FOREIGN KEY (user_id) REFERENCES public.plain NOT VALID;
	CREATE TRIGGER t BEFORE INSERT ON coupon_contact FOR EACH ROW EXECUTE FUNCTION public.audits();
	CREATE INDEX i ON coupon_contact (public.h(user_id))});
is((as_role('app', q{SELECT coupon_contact_set(6, 'app', 'x')}))[1], '', "a superuser's trigger, index and key are well");
is(sql(q{SELECT status FROM coupon_health WHERE check_name = 'attached'}), 'ok', 'coupon_health agrees');
sql('ALTER TABLE coupon_contact DROP CONSTRAINT c; DROP TRIGGER t ON coupon_contact; DROP INDEX i');

# Nobody stops a table by a cast of its types to one of his own.
as_role('shop', q{CREATE TYPE shop.mine AS (a int)});
sql(q{GRANT USAGE ON TYPE remind_bitmap TO shop});
is((as_role('shop', q{CREATE FUNCTION shop.mine(remind_bitmap) RETURNS shop.mine LANGUAGE sql IMMUTABLE AS 'SELECT ROW(1)::shop.mine';
	CREATE CAST (remind_bitmap AS shop.mine) WITH FUNCTION shop.mine(remind_bitmap)}))[1], '', 'a cast of the shop');
is((as_role('app', q{SELECT outcome FROM coupon_remind_create(2, 9999, 'app', 30)}))[0], 'ok', 'is no matter of ours');

# What others create and drop makes nobody judge anew; what is used does.
sql(q{CREATE TRIGGER t BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION public.audits();
	CREATE SEQUENCE public.used; ALTER TABLE coupon_contact ADD COLUMN n bigint DEFAULT nextval('public.used')});
my $session = $node->background_psql('postgres', on_error_stop => 0);
sub judged { return $session->query(q{SELECT pg_stat_get_xact_function_calls('coupon_attached_objects'::regproc)}); }
$session->query(q{SET track_functions = 'all'; BEGIN; SELECT coupon_receive(1, 8001); SELECT coupon_contact_set(1, 'app', 'x')});
my $judged = judged();
cmp_ok($judged, '>', 0, 'tables are judged');
as_role('shop', 'CREATE TEMP TABLE x (a int); DROP TABLE x; CREATE FUNCTION shop.new(bigint) RETURNS bigint LANGUAGE sql RETURN 1; CREATE TYPE shop.new AS (a int)');
$session->query(q{SELECT coupon_receive(1, 8002); SELECT coupon_contact_set(2, 'app', 'x')});
is(judged(), $judged, 'once, whatever others create');
sql(q{CREATE OR REPLACE FUNCTION public.audits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'});
$session->query(q{SELECT coupon_receive(1, 8003)});
cmp_ok(judged(), '>', $judged, 'again when what they use has changed');
$session->query('COMMIT');
is($session->query(q{SELECT coupon_contact_set(3, 'app', 'x')}), '', 'a sequence of a superuser');
sql('ALTER SEQUENCE public.used OWNER TO shop');
$session->query(q{SELECT coupon_contact_set(4, 'app', 'x')});
like($session->{stderr}, qr/sequence public.used belongs to role shop/, 'until it is not his any more');
$session->quit;
sql(q{ALTER TABLE coupon_contact DROP COLUMN n; DROP TRIGGER t ON user_coupon;
	CREATE TABLE public.refers (user_id bigint, channel text, FOREIGN KEY (user_id, channel) REFERENCES coupon_contact)});
$session = $node->background_psql('postgres', on_error_stop => 0);
is($session->query(q{SELECT coupon_contact_set(3, 'app', 'y')}), '', 'a table of a superuser that refers to ours');
sql('ALTER TABLE public.refers OWNER TO shop');
$session->query(q{SELECT coupon_contact_set(4, 'app', 'y')});
like($session->{stderr}, qr/table public.refers belongs to role shop/, 'until it is not his any more');
$session->quit;
sql('DROP TABLE public.refers');

# Nor does a worker call what is the shop's, at once or deferred.
as_role('shop', qq{
	CREATE TABLE shop.seen (who name);
	CREATE OR REPLACE FUNCTION shop.audits() RETURNS trigger LANGUAGE plpgsql AS \$\$
	BEGIN
		INSERT INTO shop.seen VALUES (current_user);
		BEGIN PERFORM $export; EXCEPTION WHEN insufficient_privilege THEN NULL; END;
		RETURN NEW;
	END \$\$});
sql(q{CREATE TRIGGER at_once AFTER INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION shop.audits();
	SELECT coupon_task_create('t', 1)});
my $task = sql('SELECT max(id) FROM coupon_task');
sql("INSERT INTO coupon_stage_$task (user_id) VALUES ('50001'); SELECT coupon_task_submit(${task}::bigint)");
$node->adjust_conf('postgresql.conf', 'coupon.databases', "'*'");
$node->restart;
ok($node->poll_query_until('postgres', "SELECT last_error LIKE '%belongs to role shop%' FROM coupon_task WHERE id = $task"), 'a distribution waits for the trigger to go');
is(sql('SELECT count(*) FROM shop.seen'), '0', 'which has not run');
sql('DROP TRIGGER at_once ON user_coupon; SELECT coupon_task_submit(' . $task . ')');
ok($node->poll_query_until('postgres', "SELECT state = 'success' FROM coupon_task WHERE id = $task"), 'and goes on');
ok(!-e $proof, 'nothing was written as a superuser');
$node->stop;
done_testing();
