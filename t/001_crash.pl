# kill -9 of the postmaster and of backends under load: every claim that was
# acknowledged by COMMIT is there afterwards, and nothing is oversold.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('crash', 'restart_after_crash = on');
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
	VALUES (1, 'hot', 20000, 10, 'published', 2), (2, 'unlimited', NULL, 10, 'published', 1), (3, 'ten', 10, 10, 'published', 1)});

# Each line of the log is a claim whose COMMIT was acknowledged.
my $claim = q{
SELECT 'ack ' || user_coupon_id FROM coupon_receive(1, (random() * 100000)::bigint + 1) WHERE code = 0;
SELECT 'ack ' || user_coupon_id FROM coupon_receive(2, (random() * 1e15)::bigint + 1) WHERE code = 0;
};

sub run_and_kill
{
	my ($kill, $lines) = @_;
	my (@handles, @outputs);
	my $claims = script($claim x 20000);
	local %ENV = $node->_get_env();
	for my $i (1 .. 6)
	{
		my $file = PostgreSQL::Test::Utils::tempdir() . "/acks$i";
		unlink $file;
		push @outputs, $file;
		push @handles, IPC::Run::start(
			[ 'psql', '-XAtq', '-d', 'postgres', '-f', $claims ],
			'<', \undef, '>', $file, '2>', '/dev/null');
	}
	# Kill once enough has been acknowledged, wherever the others are.
	select(undef, undef, undef, 0.01) while (-s $outputs[0] || 0) < 23 * $lines;
	$kill->();
	$_->finish for @handles;
	return map { slurp_file($_) =~ /^ack (\d+)$/mg } @outputs;
}

sub check_acks
{
	my ($what, @acks) = @_;
	cmp_ok(scalar(@acks), '>', 100, "$what: claims were acknowledged");
	my $list = join(',', @acks);
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM unnest('{$list}'::bigint[]) a WHERE NOT EXISTS (SELECT FROM user_coupon WHERE id = a)"),
		'0', "$what: each of them is there");
	my $newest = $node->safe_psql('postgres', 'SELECT max(id) FROM user_coupon');
	cmp_ok($node->safe_psql('postgres', 'SELECT coupon_next_id()'), '>', $newest, "$what: ids go on above");
	books_balance($node, $what);
}

for my $round (1 .. 3)
{
	my @seen = run_and_kill(sub { $node->kill9 }, 1000 * $round);
	start_again($node);
	check_acks("postmaster killed $round", @seen);
	$node->safe_psql('postgres', 'SELECT coupon_fold()') if $round == 2;
}

# A backend killed -9 makes the postmaster throw shared memory away.
for my $round (1 .. 2)
{
	my @seen = run_and_kill(sub {
		my $pid = $node->safe_psql('postgres', q{
			SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
			AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1});
		kill 'KILL', $pid;
	}, 1000 * $round);
	$node->poll_query_until('postgres', 'SELECT true') or die 'no recovery';
	check_acks("backend killed $round", @seen);
}

# Terminated in the middle of a transaction: FATAL takes the abort path once.
my $left = $node->safe_psql('postgres', 'SELECT coupon_stock_left(3)');
my $idle = $node->background_psql('postgres');
$idle->query_safe("BEGIN; SELECT coupon_receive(3, 900001); SELECT coupon_receive_many(3, '{900002,900003}')");
is($node->safe_psql('postgres', 'SELECT coupon_stock_left(3)'), $left - 3, 'an open transaction holds its units');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'});
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE state = 'idle in transaction'});
is($node->safe_psql('postgres', 'SELECT coupon_stock_left(3)'), $left, 'and gives them back once');
eval { $idle->quit; };

# The clock set back, as far as ids can tell: rows from the future exist when
# the server starts.
$node->safe_psql('postgres', q{
	INSERT INTO user_coupon (id, user_id, template_id, use_end, holder)
	SELECT coupon_next_id() + (86400000::bigint << 22), 900009, 2, 'infinity', 0});
my $future = $node->safe_psql('postgres', 'SELECT max(id) FROM user_coupon');
# Those of another system do not count.
my $foreign = $node->safe_psql('postgres', q{
	INSERT INTO user_coupon (id, user_id, template_id, use_end, holder) VALUES
	(4000000000000000001, 900010, 2, 'infinity', NULL), (4000000000000000002, 900010, 3, 'infinity', 3) RETURNING id});
$node->restart;
cmp_ok($node->safe_psql('postgres', 'SELECT coupon_next_id()'), '>', $future, 'ids start above the newest row');
cmp_ok($node->safe_psql('postgres', 'SELECT coupon_next_id()'), '<', 4000000000000000000, 'that was made here');
$node->safe_psql('postgres', 'DELETE FROM user_coupon WHERE id > 4000000000000000000');
is($node->safe_psql('postgres', q{SELECT status FROM coupon_health WHERE check_name = 'clock'}), 'warning', 'coupon_health tells');
books_balance($node, 'after all');
$node->stop;
done_testing();
