package CouponTest;

# What the TAP tests of coupon share: a node with the extension, pgbench
# scripts, and the books that must balance after everything.

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(new_node start_pgbench stop_pgbench script books_balance start_again
  start_receiver received start_nginx await_file stop_process);

sub new_node
{
	my ($name, $conf, %init) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(%init);
	# Acknowledged means durable: the default of test clusters is fsync = off,
	# which kill -9 does not mind, but the rest is as users run it.
	$node->append_conf('postgresql.conf', <<"X");
shared_preload_libraries = 'coupon'
max_connections = 100
autovacuum_naptime = 1s
log_statement = none
log_min_messages = warning
$conf
X
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION coupon');
	return $node;
}

# Write a pgbench script and return its path.
sub script
{
	my ($text) = @_;
	our $n;
	my $path = PostgreSQL::Test::Utils::tempdir() . '/script' . ++$n . '.sql';
	append_to_file($path, $text);
	return $path;
}

# Start pgbench in the background; finish the handle to wait for it.
sub start_pgbench
{
	my ($node, @args) = @_;
	local %ENV = ($node->_get_env(), PGAPPNAME => 'pgbench');
	my ($in, $out) = ('', '');
	my $h = IPC::Run::start([ 'pgbench', '-n', @args, 'postgres' ],
		'<', \$in, '>', \$out, '2>&1');
	return { handle => $h, out => \$out };
}

# End it before its time, and wait until the server has done with it too.  By TERM:
# where the tests were started in the background, INT is ignored.
sub stop_pgbench
{
	my ($node, $bench) = @_;
	$bench->{handle}->signal('TERM');
	$bench->{handle}->finish;
	$node->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'})
		or BAIL_OUT('sessions of pgbench do not end');
	return;
}

# issued + left = total, nobody above the limit, and coupon_verify agrees.
sub books_balance
{
	my ($node, $what, $db) = @_;
	$db ||= 'postgres';
	is($node->safe_psql($db, q{
		SELECT template_id, problem FROM coupon_verify() WHERE NOT ok}),
		'', "$what: coupon_verify agrees");
	is($node->safe_psql($db, q{
		SELECT t.id, count(c.id), coupon_stock_left(t.id), t.total_stock
		FROM coupon_template t LEFT JOIN user_coupon c ON c.template_id = t.id AND c.holder = 0
		WHERE t.total_stock IS NOT NULL
		GROUP BY t.id HAVING count(c.id) + coupon_stock_left(t.id) <> t.total_stock}),
		'', "$what: issued + left = total");
	is($node->safe_psql($db, q{
		SELECT c.template_id, c.user_id FROM user_coupon c JOIN coupon_template t ON t.id = c.template_id
		GROUP BY c.template_id, c.user_id, t.per_user_limit HAVING count(*) > t.per_user_limit}),
		'', "$what: nobody is above the limit");
	is($node->safe_psql($db, q{
		SELECT template_id, in_flight FROM coupon_stat WHERE in_flight <> 0}),
		'', "$what: nothing stays in flight");
	return;
}

# Start a node whose postmaster was killed: its children may take a moment to
# notice, and hold the shared memory until then.
sub start_again
{
	my ($node) = @_;
	for (1 .. 300)
	{
		return 1 if $node->start(fail_ok => 1);
		$node->{_pid} = undef;	# the dead postmaster's pid file is still there
		# Waits for the orphans' socket of the data directory to go.
		select(undef, undef, undef, 0.1);
	}
	BAIL_OUT('server does not start again');
}

my @processes;

# Those of a test that gave up.
END
{
	local $?;
	stop_process($_) for @processes;
}

# Wait until a file is there, and return what is in it.
sub await_file
{
	my ($path) = @_;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return slurp_file($path) if -e $path;
		select(undef, undef, undef, 0.1);
	}
	BAIL_OUT("$path does not appear");
}

# Start t/lib/receiver.py; its ports are in {port}.
sub start_receiver
{
	my (@certificate) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $handle = IPC::Run::start([ '/usr/bin/python3', 't/lib/receiver.py', $dir, @certificate ],
		'<', \undef, '>', "$dir/out", '2>', "$dir/err");
	push @processes, { handle => $handle, dir => $dir };
	$processes[-1]{port} = decode_json(await_file("$dir/ports"));
	return $processes[-1];
}

# What has arrived at a receiver over http or smtp, oldest first.
sub received
{
	my ($receiver, $protocol) = @_;
	return map { decode_json($_) } split /\n/, slurp_file("$receiver->{dir}/$protocol");
}

# Start nginx with a configuration of servers and the like, and its log format;
# lines of its log are in {dir}/log.
sub start_nginx
{
	my ($format, $servers) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$dir/conf", <<"X");
daemon off;
worker_processes 1;
pid $dir/pid;
error_log $dir/error;
events { worker_connections 1024; }
http {
	log_format l '$format';
	access_log $dir/log l;
	@{[map { "${_}_temp_path $dir/$_;" } qw(client_body proxy fastcgi uwsgi scgi)]}
	$servers
}
X
	my $handle = IPC::Run::start([ 'nginx', '-p', $dir, '-c', "$dir/conf", '-e', "$dir/error" ],
		'<', \undef, '>', "$dir/out", '2>', "$dir/err");
	push @processes, { handle => $handle, dir => $dir };
	await_file("$dir/pid");
	return $processes[-1];
}

sub stop_process
{
	my ($process) = @_;
	@processes = grep { $_ != $process } @processes;
	$process->{handle}->signal('TERM');
	$process->{handle}->finish;
	return;
}

1;
