# Logical replication: triggers fire on the subscriber too, so that its cache
# follows what arrives.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $pub = new_node('publisher', "coupon.databases = ''", allows_streaming => 'logical');
my $sub = new_node('subscriber', 'coupon.node_id = 1', allows_streaming => 'logical');
$pub->safe_psql('postgres', 'CREATE PUBLICATION p FOR TABLE coupon_template, coupon_stock, coupon_watermark, user_coupon');
$pub->safe_psql('postgres', q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'a', 10, 10, 'published')});
my $connstr = $pub->connstr . ' dbname=postgres';
$sub->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p");
$sub->wait_for_subscription_sync;
is($sub->safe_psql('postgres', 'SELECT coupon_stock_left(1)'), '10', 'arrived');
sub step
{
	my ($sql, $left, $what) = @_;
	$pub->safe_psql('postgres', $sql);
	$pub->wait_for_catchup('s');
	is($sub->safe_psql('postgres', 'SELECT coupon_stock_left(1)'), $left, $what);
}
step(q{SELECT coupon_receive_many(1, '{1,2,3}')}, 7, 'coupons are counted as they arrive');
step('SELECT coupon_fold()', 7, 'so is folding');
step(q{SELECT coupon_receive_many(1, '{4,5}')}, 5, 'and what follows');
step('UPDATE coupon_template SET total_stock = 6 WHERE id = 1', 1, 'a smaller total');
step(q{UPDATE user_coupon SET status = 4 WHERE user_id = 1}, 1, 'a revoked coupon stays issued');
books_balance($sub, 'subscriber');

# A distribution meets a claim between its look and its insert: the gate of a
# recount holds it there.  Subscribers never see the row that was refused.
{
	my $task = $pub->safe_psql('postgres', q{
		INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (2, 'b', 100, 10, 'published');
		SELECT task_id FROM coupon_task_create('b', 2)});
	$pub->safe_psql('postgres', qq{
		INSERT INTO coupon_stage_$task (user_id) SELECT g FROM generate_series(1, 20) g;
		SELECT coupon_task_submit($task)});
	my $claimer = $pub->background_psql('postgres');
	$claimer->query_safe('BEGIN; SELECT coupon_receive(2, 999)');
	my @waiting;
	for my $sql ('SELECT coupon_stock_rebuild(2)', "CALL coupon_task_run($task)")
	{
		local %ENV = $pub->_get_env();
		push @waiting, IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', '-c', $sql ], '<', \'', '>', \my $out, '2>&1');
		ok($pub->poll_query_until('postgres', qq{
			SELECT count(*) = 1 FROM pg_stat_activity WHERE query = '$sql' AND state = 'active' AND wait_event_type IN ('IPC', 'Extension', 'Lock')}),
			"$sql waits");
	}
	$claimer->query_safe('SELECT coupon_receive(2, 7); COMMIT');
	$_->finish for @waiting;
	$claimer->quit;
	is($pub->safe_psql('postgres', "SELECT state, issued, failed FROM coupon_task WHERE id = $task"),
		'success|19|1', 'the user who claimed meanwhile is not given another');
	is($pub->safe_psql('postgres', "SELECT user_id, cause FROM coupon_task_failure WHERE task_id = $task"),
		'7|already_received', 'and is told of');
	books_balance($pub, 'distribution and claim');
	$pub->wait_for_catchup('s');
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM user_coupon WHERE template_id = 2'), '21', 'the subscriber has all');
}

# Counts come from the publisher, which folded three.
my $turns = q{SELECT turns FROM coupon_stat_worker WHERE database = 'postgres'};
$sub->poll_query_until('postgres', "SELECT ($turns) > 0");
for (1 .. 3)
{
	my $before = $sub->safe_psql('postgres', $turns);
	$sub->safe_psql('postgres', 'SELECT coupon_worker_wake()');
	$sub->poll_query_until('postgres', "SELECT ($turns) > $before");
}
is($sub->safe_psql('postgres', 'SELECT folded, (SELECT count(*) FROM user_coupon) FROM coupon_stock WHERE template_id = 1'),
	'3|26', 'a worker leaves the counts of a subscription alone');
is($sub->safe_psql('postgres', q{SELECT code FROM coupon_receive(1, 9)}), '0', 'after a switch-over the rest can be claimed here');
is($sub->safe_psql('postgres', q{SELECT code FROM coupon_receive(1, 10)}), '2', 'and no more');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s; SELECT coupon_worker_wake()');
ok($sub->poll_query_until('postgres', 'SELECT folded = 6 FROM coupon_stock WHERE template_id = 1'),
	'without the subscription the worker folds');
is($sub->safe_psql('postgres', q{SELECT (id >> 12) & 1023 FROM user_coupon WHERE user_id = 9 AND template_id = 1}), '1', 'with ids of this node');

# Pushes that arrive are the publisher's to send.
$pub->safe_psql('postgres', q{
	CREATE PUBLICATION pushes FOR TABLE coupon_notification, coupon_notification_history;
	INSERT INTO coupon_notification (channel, kind, user_ids, address, due_at, next_at)
		VALUES ('sms', 'test', '{0}', 'a', now(), now())});
$sub->safe_psql('postgres', "CREATE SUBSCRIPTION pushes CONNECTION '$connstr' PUBLICATION pushes");
$sub->wait_for_subscription_sync;
$sub->safe_psql('postgres', q{SELECT coupon_channel_set('sms', 'http://127.0.0.1:1/')});
for (1 .. 3)
{
	my $before = $sub->safe_psql('postgres', $turns);
	$sub->safe_psql('postgres', 'SELECT coupon_worker_wake()');
	$sub->poll_query_until('postgres', "SELECT ($turns) > $before");
}
my $attempts = 'SELECT attempts FROM coupon_notification';
is($sub->safe_psql('postgres', $attempts), '0', 'the subscriber does not send them');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION pushes; SELECT coupon_worker_wake()');
ok($sub->poll_query_until('postgres', "SELECT ($attempts) > 0"), 'without the subscription it does');
$sub->stop; $pub->stop;
done_testing();
