# What has a moment comes in time, whatever else there is to do.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('in_time', "coupon.databases = 'postgres'\ncoupon.batch_size = 20");
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Forty distributions become due at the same time, and a reminder a second later: it waits
# for some of them at most, not for a turn of each.  A batch takes ten milliseconds here, on
# whatever machine, so that none is over within its turn.
sql(q{
	INSERT INTO coupon_template (id, name, discount_value, status, receive_start)
	VALUES (1, 'given', 1, 'published', now()), (2, 'later', 1, 'published', now() + interval '1 hour');
	SELECT outcome FROM coupon_remind_create(2, 1, 'app', 5);
	CREATE FUNCTION takes_time() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
	CREATE TRIGGER takes_time BEFORE INSERT ON user_coupon FOR EACH ROW WHEN (NEW.user_id % 20 = 0) EXECUTE FUNCTION takes_time()});
sql(q{DO $$
DECLARE
	t record;
BEGIN
	FOR i IN 1..40 LOOP
		SELECT * INTO t FROM coupon_task_create('task ' || i, 1);
		EXECUTE format('INSERT INTO %s (user_id) SELECT (%s + g)::text FROM generate_series(1, 600) g', t.stage, i * 600);
		PERFORM coupon_task_submit(t.task_id, 'infinity');
	END LOOP;
END $$});
sql(q{BEGIN; UPDATE coupon_task SET send_at = now() + interval '2 s';
	UPDATE coupon_template SET receive_start = now() + interval '5 min 3 s' WHERE id = 2; SELECT coupon_worker_wake(); COMMIT});
ok($node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM coupon_notification'), 'the reminder is there');
my $before = sql(q{SELECT count(DISTINCT c.request_id) FROM user_coupon c, coupon_notification n WHERE c.id < n.id AND n.kind = 'reminder'});
cmp_ok($before, '>', 0, 'some distributions have begun before it');
cmp_ok($before, '<', 25, 'but not all');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 40 FROM coupon_task WHERE state = 'success'}), 'all come to their end');
is(sql('SELECT count(*) FROM user_coupon'), '24000', 'with all their coupons');
sql('DROP TRIGGER takes_time ON user_coupon');

# An operator of one shop does not have the worker commit for each line.
sql(q{CREATE ROLE shop7 LOGIN; SELECT coupon_grant('shop7', 'operator', 7);
	INSERT INTO coupon_template (id, name, discount_value, status, shop_number, issuer) VALUES (7, 'of shop 7', 1, 'published', 7, 'shop')});
my $task = $node->safe_psql('postgres', q{SELECT task_id FROM coupon_task_create('shop', 7)}, extra_params => [ '-U', 'shop7' ]);
sql("INSERT INTO coupon_stage_$task (user_id) SELECT generate_series(1, 2500)");
$node->safe_psql('postgres', "SET coupon.batch_size = 1; SELECT coupon_task_submit($task, 'infinity')", extra_params => [ '-U', 'shop7' ]);
is(sql("SELECT count(*) FROM coupon_task_batch WHERE task_id = $task"), '3', 'batches of a thousand lines at least');

# Nobody goes on with a task when the postmaster is gone.
$node->append_conf('postgresql.conf', "coupon.databases = ''");
$node->restart;
$task = sql(q{SELECT task_id FROM coupon_task_create('long', 1)});
sql("INSERT INTO coupon_stage_$task (user_id) SELECT (1000000 + g)::text FROM generate_series(1, 200000) g");
my $call;
{
	local %ENV = $node->_get_env();
	$call = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', '-c', 'SET coupon.batch_size = 1', '-c', "CALL coupon_task_run($task)" ], '<', \undef, '>', \my $out, '2>', \my $err);
}
ok($node->poll_query_until('postgres', "SELECT count(*) > 10 FROM coupon_task_batch WHERE task_id = $task AND done_at IS NOT NULL"), 'a call is at its batches');
my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE query ~ '^CALL coupon_task_run' AND state <> 'idle'});
$node->kill9;
my $gone = 0;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if $gone = !kill(0, $pid);
	select(undef, undef, undef, 0.1);
}
ok($gone, 'its backend has left');
eval { $call->finish };
start_again($node);
cmp_ok(sql("SELECT count(*) FROM coupon_task_batch WHERE task_id = $task AND done_at IS NULL"), '>', 0, 'before the end of the task');
$node->stop;
done_testing();
