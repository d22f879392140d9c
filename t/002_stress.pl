# Everything at once: claims, aborts, savepoints, deadlocks, cancels,
# terminated backends, changing totals and folding; then the books must
# balance.  In all three protocols of pgbench, and through pgbouncer.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('stress',
	"deadlock_timeout = 50ms\ncoupon.max_templates = 16\nrestart_after_crash = on");
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
	SELECT g, 't' || g, 3000, 10, 'published', 1 + g % 3 FROM generate_series(1, 20) g;
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
	VALUES (21, 'changing', 100000, 10, 'published')});

my $claim = script(<<'X');
\set t random(1, 20)
\set u random(1, 4000)
SELECT * FROM coupon_receive(:t, :u);
X
my $press = script(<<'X');
\set u random(1, 30)
SELECT * FROM coupon_receive(1, :u, 'r' || :u);
X
my $savepoints = script(<<'X');
\set t random(1, 20)
\set u random(1, 4000)
BEGIN;
SELECT code FROM coupon_receive(:t, :u);
SAVEPOINT a;
SELECT code FROM coupon_receive(:t, :u + 1);
SAVEPOINT b;
SELECT code FROM coupon_receive(:t, :u + 2);
RELEASE b;
ROLLBACK TO a;
SELECT code FROM coupon_receive(:t, :u + 3);
COMMIT;
X
my $abort = script(<<'X');
\set t random(1, 20)
\set u random(1, 4000)
BEGIN;
SELECT count(*) FROM coupon_receive_many(:t, ARRAY[:u, :u + 1, :u + 2, :u + 3]::bigint[]);
ROLLBACK;
X
my $many = script(<<'X');
\set t random(1, 20)
\set u random(1, 4000)
SELECT count(*) FROM coupon_receive_many(:t, ARRAY(SELECT generate_series(:u, :u + 20)));
X
# Users in either order: these deadlock with each other.
my $deadlock = script(<<'X');
\set a random(1, 20)
\set b random(1, 20)
\set t random(1, 20)
BEGIN;
SELECT code FROM coupon_receive(:t, 5000 + :a);
SELECT code FROM coupon_receive(:t, 5000 + :b);
COMMIT;
X
my $exception = script(<<'X');
\set t random(1, 20)
\set u random(1, 4000)
DO $$ BEGIN
  BEGIN PERFORM coupon_require(code, outcome) FROM coupon_receive(21, (random() * 4000)::bigint + 1); RAISE division_by_zero;
  EXCEPTION WHEN division_by_zero OR SQLSTATE 'VC104' OR SQLSTATE 'VC102' THEN NULL; END;
  PERFORM coupon_receive(21, (random() * 1e9)::bigint + 1);
END $$;
X
my $slow = script(<<'X');
\set u random(1, 4000)
BEGIN;
SELECT code FROM coupon_receive(2, :u);
SELECT count(*) FROM generate_series(1, 20000);
COMMIT;
X
my $change = script(<<'X');
\set total random(30000, 100000)
UPDATE coupon_template SET total_stock = :total, usage_note = :total WHERE id = 21;
X
my $fold = script("SELECT * FROM coupon_fold();\n");
my $cancel = script(<<'X');
SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%coupon%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) x;
X
my $terminate = script(<<'X');
SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'victim' ORDER BY random() LIMIT 1) x;
X

# Some of these fail by design (deadlock, cancel); --max-tries would retry only
# what pgbench calls serialization failures, so a client that stops is simply
# followed by the next run.
sub start_everything
{
	my ($mode) = @_;
	return map { start_pgbench($node, '-M', $mode, @$_) } (
		[ '-c', 6, '-T', 4, '-f', "$claim\@6", '-f', "$press\@2", '-f', "$many\@1" ],
		[ '-c', 3, '-T', 4, '-f', $savepoints, '-f', $abort, '-f', $exception ],
		[ '-c', 4, '-T', 4, '-f', $deadlock, '--max-tries=100' ],
		[ '-c', 2, '-T', 4, '-f', $slow ],
		[ '-c', 1, '-T', 4, '-f', $fold ],
		[ '-c', 1, '-T', 4, '-f', $change ],
		[ '-c', 1, '-T', 3, '-R', 15, '-f', $cancel ],
		[ '-c', 1, '-T', 3, '-R', 10, '-f', $terminate ]);
}

for my $mode (qw(simple extended prepared))
{
	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM user_coupon');
	my @load = start_everything($mode);
	{
		# Victims that are terminated at any point, and come again.
		local $ENV{PGAPPNAME} = 'victim';
		for (1 .. 6)
		{
			my $victims = start_pgbench($node, '-c', 4, '-T', 1, '-M', $mode, '-f', $savepoints, '-f', $claim);
			eval { $victims->{handle}->finish };
		}
	}
	for (@load) { eval { $_->{handle}->finish } }
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM user_coupon'), '>', $before, "$mode: claims went through");
	$node->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	books_balance($node, "pgbench -M $mode");
}
cmp_ok($node->safe_psql('postgres', 'SELECT evictions FROM coupon_stat_cache'), '>', 0, 'entries were evicted meanwhile');

# And kill -9 in the middle of all that, of a backend and of the postmaster:
# what COMMIT acknowledged is there, and the books balance as ever.
for my $victim (qw(backend postmaster backend postmaster))
{
	our $first;
	my $acks = PostgreSQL::Test::Utils::tempdir() . '/acks';
	my $claims = script(join "\n", map {
		"SELECT 'ack ' || user_coupon_id FROM coupon_receive(21, " . (1_000_000 + ++$first) . ") WHERE code = 0;" } 1 .. 20_000);
	unlink $acks;
	my @load = start_everything('simple');
	my $buyer;
	{
		local %ENV = $node->_get_env();
		$buyer = IPC::Run::start([ 'psql', '-XAtq', '-d', 'postgres', '-f', $claims ],
			'<', \undef, '>', $acks, '2>', '/dev/null');
	}
	select(undef, undef, undef, 0.01) while (-s $acks || 0) < 23 * 100;
	if ($victim eq 'backend')
	{
		# At the moment of a look nobody may be claiming, and who was may be
		# gone; the look itself may be cancelled.
		my $killed;
		for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
		{
			my (undef, $pid) = $node->psql('postgres', q{
				SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query ~ 'coupon_receive'
				AND pid <> pg_backend_pid() LIMIT 1});
			last if $killed = $pid && kill 'KILL', $pid;
			select(undef, undef, undef, 0.1);
		}
		ok($killed, 'a claiming backend was killed');
	}
	else
	{
		$node->kill9;
	}
	for (@load) { eval { $_->{handle}->finish } }
	$buyer->finish;
	start_again($node) if $victim eq 'postmaster';
	$node->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	my @seen = slurp_file($acks) =~ /^ack (\d+)$/mg;
	cmp_ok(scalar(@seen), '>=', 50, "$victim killed: claims were acknowledged");
	is($node->safe_psql('postgres', sprintf q{
		SELECT count(*) FROM unnest('{%s}'::bigint[]) a WHERE NOT EXISTS (SELECT FROM user_coupon WHERE id = a)}, join(',', @seen)),
		'0', "$victim killed: each of them is there");
	books_balance($node, "$victim killed");
}

is($node->safe_psql('postgres', q{SELECT count(*) FROM user_coupon c JOIN coupon_template t ON t.id = c.template_id
	WHERE t.id <= 20 GROUP BY t.id HAVING count(*) > 3000}), '', 'no template is oversold');

# Through pgbouncer in transaction mode.
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/users.txt", '"' . getpwuid($<) . "\" \"\"\n");
append_to_file("$dir/pgbouncer.ini", <<"X");
[databases]
postgres = host=${\$node->host} port=${\$node->port} dbname=postgres
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users.txt
pool_mode = transaction
default_pool_size = 4
logfile = $dir/pgbouncer.log
pidfile = $dir/pgbouncer.pid
X
my $bouncer = IPC::Run::start([ 'pgbouncer', "$dir/pgbouncer.ini" ], '<', \undef, '>', "$dir/out", '2>&1');
my $up = 0;
for (1 .. 200)
{
	last if $up = -S "$dir/.s.PGSQL.$port";
	select(undef, undef, undef, 0.05);
}
ok($up, 'pgbouncer is up');
$node->safe_psql('postgres', q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (30, 'pooled', 1000, 10, 'published')});
my $pooled = script(<<'X');
\set u random(1, 3000)
SELECT * FROM coupon_receive(30, :u);
BEGIN;
SELECT code FROM coupon_receive(30, :u + 1);
ROLLBACK;
X
for my $mode (qw(simple extended))
{
	my $out = '';
	IPC::Run::run([ 'pgbench', '-n', '-h', $dir, '-p', $port, '-U', scalar getpwuid($<), '-M', $mode, '-c', 16, '-t', 100, '-f', $pooled, 'postgres' ],
		'>', \$out, '2>&1');
	like($out, qr{actually processed: 1600/1600}, "pooled claims, $mode protocol") or diag($out);
}
books_balance($node, 'pgbouncer');
kill 'INT', $bouncer->{KIDS}[0]{PID};
$bouncer->finish;
$node->stop;
done_testing();
