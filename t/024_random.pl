# Random sessions change templates, coupons, triggers and tables, and claim all the
# while.  When they have ended, each claim is answered as the tables say it must be,
# whatever shared memory remembers.  COUPON_SEED repeats what the sessions do.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{COUPON_SEED} || time;
srand($seed);
note("COUPON_SEED=$seed");
my $node = new_node('random', q{
coupon.databases = ''
coupon.gate_timeout = 1s
lock_timeout = 60ms
deadlock_timeout = 20ms
max_prepared_transactions = 10
log_min_messages = error
});

# Templates and users are few, so that sessions meet, and ever new ones, since what
# was once noted of one stays noted.
my ($phase, $step) = (0, 0);
sub any { return $_[ rand @_ ]; }
sub user { return 1 + int(rand(40)); }
sub template { return $phase * 100_000 + int($step / 4) + 1 + int(rand(60)); }

sub claim
{
	my ($id, $user) = (template(), user());
	my $users = join ',', map { user() } 1 .. 8;
	return any("SELECT outcome FROM coupon_receive($id, $user);", "SELECT outcome FROM coupon_receive($id, $user, 'r" . int(rand(5)) . q{');},
		"SELECT count(*) FROM generate_series($id - 60, $id + 60) t, coupon_receive(t, $user);",
		"SELECT count(*) FROM coupon_receive_many($id, '{$users}');");
}

sub change_rows
{
	my ($id, $user) = (template(), user());
	my $limit = any(1, 1, 2, 3);
	return any(
		"INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
		 VALUES ($id, 't', @{[ any(3, 50) ]}, 1, 'published', $limit) ON CONFLICT DO NOTHING;",
		"INSERT INTO coupon_template (id, name, discount_value, status) VALUES ($id, 't', 1, 'published');",
		"COPY coupon_template (id, name, discount_value, status) FROM stdin;\n$id\tt\t1\tpublished\n\\.",
		"MERGE INTO coupon_template t USING (SELECT ${id}::bigint AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'm'
		 WHEN NOT MATCHED THEN INSERT (id, name, discount_value, status) VALUES (s.id, 'm', 1, 'published');",
		"UPDATE coupon_template SET name = name || 'y' WHERE id = $id;",
		"DELETE FROM coupon_template WHERE id = $id;",
		"INSERT INTO user_coupon (template_id, user_id, receive_seq, use_end) VALUES ($id, $user, 1, 'infinity') ON CONFLICT DO NOTHING;",
		"COPY user_coupon (template_id, user_id, receive_seq, use_end) FROM stdin;\n$id\t$user\t1\tinfinity\n\\.",
		"DELETE FROM user_coupon WHERE template_id = $id AND user_id = $user;",
		"DELETE FROM user_coupon WHERE template_id = $id;",
		"UPDATE user_coupon SET user_id = $user WHERE template_id = $id AND user_id % 40 = $user - 1;",
		'SELECT coupon_fold();', "SELECT coupon_stock_rebuild($id);");
}

my $template_triggers = join ', ', map { "ENABLE ALWAYS TRIGGER zz_coupon_template_$_" } qw(created guard truncate);
my $coupon_triggers = join ', ', map { "ENABLE ALWAYS TRIGGER zz_user_coupon_$_" } qw(insert update truncate);
my @tables = (
	(map { "DROP TRIGGER IF EXISTS $_->[0] ON coupon_template; CREATE TRIGGER $_->[0] $_->[1] ON coupon_template
	 FOR EACH ROW EXECUTE FUNCTION my_claim();" } [ 'aa_mine', 'AFTER INSERT' ], [ 'zzz_mine', 'BEFORE UPDATE' ]),
	'DROP TRIGGER IF EXISTS aa_mine ON coupon_template;',
	'ALTER TABLE coupon_template ADD COLUMN IF NOT EXISTS mine text DEFAULT random()::text;',
	'ALTER TABLE coupon_template DROP COLUMN IF EXISTS mine;',
	'VACUUM FULL coupon_template;', 'VACUUM coupon_template;', 'REINDEX TABLE coupon_template;');
my @past_triggers = (
	'ALTER TABLE coupon_template DISABLE TRIGGER USER;', 'ALTER TABLE user_coupon DISABLE TRIGGER USER;',
	'ALTER TABLE user_coupon_7 DISABLE TRIGGER USER;', 'SET session_replication_role = replica;',
	('RESET session_replication_role;', "ALTER TABLE coupon_template $template_triggers;", "ALTER TABLE user_coupon $coupon_triggers;") x 2,
	'ALTER TABLE coupon_template ALTER COLUMN id TYPE bigint USING id + 50;');

sub statement
{
	my @ddl = @_;
	my $which = rand;
	return $which < 0.55 ? claim() : $which < 0.93 || !@ddl ? change_rows() : any(@ddl);
}

# Some statements of one session, in transactions of all kinds.
sub session
{
	my ($name, @ddl) = @_;
	my $sql = any('', "\\set ON_ERROR_ROLLBACK on\n");
	for my $n (1 .. 300)
	{
		$step = $n;
		my @some = map { statement(@ddl) } 1 .. 6;
		my $end = any('COMMIT;', 'COMMIT;', 'ROLLBACK;');
		my $level = any('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE');
		my $back = any('RELEASE', 'ROLLBACK TO');
		$sql .= any($some[0], $some[0], "BEGIN ISOLATION LEVEL $level;\n$some[0]\n$some[1]\n$some[2]\n$end",
			"BEGIN;\n$some[0]\nSAVEPOINT a;\n$some[1]\n$some[2]\n$back a;\n$some[3]\n$end",
			"BEGIN;\n$some[4]\nPREPARE TRANSACTION '$name';\n$some[5]\n" . any('COMMIT', 'ROLLBACK') . " PREPARED '$name';") . "\n";
	}
	my $path = script($sql . "RESET session_replication_role;\n");
	local %ENV = $node->_get_env();
	return IPC::Run::start([ 'psql', '-Xq', '-d', 'postgres', '-f', $path ], '<', \undef, '>', '/dev/null', '2>', '/dev/null');
}

$node->safe_psql('postgres', q{
	CREATE FUNCTION my_claim() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM coupon_receive(new.id, 7);
		RETURN new;
	END $$});

# What the tables say of each claim, and what is said that differs.  First refusals,
# which write nothing and so may be answered from memory; then claims, rolled back.
$node->safe_psql('postgres', q{
	CREATE TABLE expected (template_id bigint, user_id bigint, outcome text);
	CREATE FUNCTION answer(template_id bigint, user_id bigint) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		answer text;
	BEGIN
		SELECT r.outcome INTO answer FROM coupon_receive(template_id, user_id) r;
		RAISE EXCEPTION USING ERRCODE = 'P0001';
	EXCEPTION WHEN raise_exception THEN
		RETURN answer;
	END $$});

sub differences
{
	my ($first) = @_;
	my $last = $first + 99_999;
	$node->safe_psql('postgres', qq{
		TRUNCATE expected;
		INSERT INTO expected
		SELECT t.id, u, CASE WHEN h.seq >= t.per_user_limit THEN 'over_limit'
			WHEN coupon_stock_left(t.id) <= 0 THEN 'out_of_stock' ELSE 'ok' END
		FROM coupon_template t, generate_series(1, 40) u,
		LATERAL (SELECT COALESCE(max(c.receive_seq), 0) AS seq FROM user_coupon c
			WHERE c.template_id = t.id AND c.user_id = u) h
		WHERE t.id BETWEEN $first AND $last;
		INSERT INTO expected SELECT t, 1, 'not_found' FROM generate_series($first, $first + 200) t
		WHERE NOT EXISTS (SELECT FROM coupon_template x WHERE x.id = t)});
	my $refused = $node->safe_psql('postgres', q{
		SELECT e.*, r.outcome FROM expected e, coupon_receive(template_id, user_id) r
		WHERE e.outcome <> 'ok' AND r.outcome <> e.outcome});
	my $claimed = $node->safe_psql('postgres', q{
		SELECT e.*, answer(template_id, user_id) FROM expected e
		WHERE e.outcome = 'ok' AND answer(template_id, user_id) <> 'ok'});
	return ($refused, $claimed);
}

for my $kind ([ 'rows' ], [ 'tables', @tables ], [ 'past triggers', @tables, @past_triggers ])
{
	my ($what, @ddl) = @$kind;
	$phase++;
	$_->finish for map { session("p$_", @ddl) } 1 .. 5;
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, "$what: the server has stayed up");
	$node->safe_psql('postgres', "DROP TRIGGER IF EXISTS aa_mine ON coupon_template; ALTER TABLE coupon_template $template_triggers;"
		  . " ALTER TABLE user_coupon $coupon_triggers;");
	$node->safe_psql('postgres', "SELECT coupon_stock_rebuild(id) FROM coupon_template") if $what eq 'past triggers';
	my ($refused, $claimed) = differences($phase * 100_000);
	my $asked = $node->safe_psql('postgres', 'SELECT outcome, count(*) > 10 FROM expected GROUP BY 1 ORDER BY 1');
	is($asked, join("\n", map { "$_|t" } qw(not_found ok out_of_stock over_limit)), "$what: there was something of each kind to ask");
	is($refused, '', "$what: refusals are as the tables say") if $what ne 'past triggers';
	is($claimed, '', "$what: claims too");
	next if $what eq 'past triggers';
	is($node->safe_psql('postgres', 'SELECT template_id, problem FROM coupon_verify() WHERE NOT ok'), '', "$what: the books balance");
}
$node->stop;
done_testing();
