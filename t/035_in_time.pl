# What has a moment comes in time, whatever else there is to do.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('in_time', "coupon.databases = 'postgres'\ncoupon.batch_size = 20");
$DeliverTest::node = $node;

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

# Shops take turns: thirty distributions of one do not keep the one of another waiting.
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, shop_number, issuer)
	VALUES (5, 'of shop 5', 1, 'published', 5, 'shop'), (6, 'of shop 6', 1, 'published', 6, 'shop')});
sql(q{DO $$
DECLARE
	t record;
BEGIN
	FOR i IN 1..31 LOOP
		SELECT * INTO t FROM coupon_task_create('turn ' || i, CASE i WHEN 31 THEN 6 ELSE 5 END);
		EXECUTE format('INSERT INTO %s (user_id) SELECT (%s + g)::text FROM generate_series(1, 60) g', t.stage, i * 60);
		PERFORM coupon_task_submit(t.task_id, 'infinity');
	END LOOP;
	UPDATE coupon_task SET send_at = now() + make_interval(secs => 0.001 * (template_id = 6)::int) WHERE template_id IN (5, 6);
	PERFORM coupon_worker_wake();
END $$});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 71 FROM coupon_task WHERE state = 'success'}), 'all come to their end again');
cmp_ok(sql(q{SELECT count(*) FROM coupon_task WHERE template_id = 5 AND finished_at < (SELECT finished_at FROM coupon_task WHERE template_id = 6)}),
	'<', 20, 'another shop is not the last');
sql('DROP TRIGGER takes_time ON user_coupon');

# An operator of one shop does not have the worker commit for each line.
sql(q{CREATE ROLE shop7 LOGIN; SELECT coupon_grant('shop7', 'operator', 7);
	INSERT INTO coupon_template (id, name, discount_value, status, shop_number, issuer) VALUES (7, 'of shop 7', 1, 'published', 7, 'shop')});
my $task = $node->safe_psql('postgres', q{SELECT task_id FROM coupon_task_create('shop', 7)}, extra_params => [ '-U', 'shop7' ]);
sql("INSERT INTO coupon_stage_$task (user_id) SELECT generate_series(1, 2500)");
$node->safe_psql('postgres', "SET coupon.batch_size = 1; SELECT coupon_task_submit($task, 'infinity')", extra_params => [ '-U', 'shop7' ]);
is(sql("SELECT count(*) FROM coupon_task_batch WHERE task_id = $task"), '3', 'batches of a thousand lines at least');

# Nor does a shop have the worker look at any number of sales to come.
sql(q{INSERT INTO coupon_template (shop_number, issuer, name, discount_value, status, receive_start)
	SELECT 7, 'shop', 'comes', 1, 'published', now() + interval '1 day' FROM generate_series(1, 10000)});
my $come = q{SELECT outcome FROM coupon_template_create('one more', 1, 1, jsonb_build_object('status', 'published', 'receive_start', now() + interval '%s'))};
like(($node->psql('postgres', sprintf($come, '1 hour'), extra_params => [ '-U', 'shop7' ]))[2], qr/shop 7 would have more than 10000 templates that have not begun/, 'ten thousand sales to come are enough');
is($node->safe_psql('postgres', sprintf($come, '-1 hour'), extra_params => [ '-U', 'shop7' ]), 'ok', 'one that has begun is none of them');

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

# Of what waits at a channel that is held back, reminders are sent before announcements, and
# the shops of these take turns: of a large one and of a small one every second is the small
# one's, as long as it has any.
($node, my $receiver) = start_both('turns', "coupon.databases = 'postgres'");
sub distribute
{
	my ($template, $first, $last) = @_;
	my $id = sql("SELECT task_id FROM coupon_task_create('to $template', $template, notify => '{app}')");
	sql("INSERT INTO coupon_stage_$id (user_id) SELECT g::text FROM generate_series($first, $last) g; CALL coupon_task_run($id)");
	return;
}
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, shop_number, receive_start)
	SELECT 800 + g, 'announced ' || g, 1, 'published', g, now() FROM generate_series(1, 2) g});
channel('app', 'ok/turns', 'enabled => false, max_in_flight => 8');
distribute(801, 1, 2000);
distribute(802, 5001, 5050);
my $sale = reminders_due('app', 9001, 9020);
await(q{count(*) = 20 FROM coupon_notification WHERE kind = 'reminder'}, 'the channel has reminders, and 2,050 announcements before them');
sql(q{SELECT coupon_channel_enable('app')});
await('count(*) = 0 FROM coupon_notification', 'all are delivered');
my @users = map { users_of($_) } arrived('ok/turns');
my ($reminded) = grep { $users[$_] == 9020 } 0 .. $#users;
cmp_ok($reminded, '<', 30, 'reminders overtake what has no moment, but for its share');
my ($small) = grep { $users[$_] == 5050 } 0 .. $#users;
cmp_ok($small, '<', 150, 'a small shop does not wait for a large one');
is(scalar(grep { $_ < 5000 } @users), 2000, 'nobody is left out');

# Announcements that hang have not all the places.
channel('app', 'hang-on/announced', q{timeout => '10 min', max_in_flight => 8});
distribute(801, 10001, 10100);
await("leased = 7 FROM coupon_stat_channel WHERE channel = 'app'", 'announcements hang in seven places of eight');
reminders_due('app', 20001, 20005);
await(q{count(*) = 5 FROM coupon_notification_history WHERE kind = 'reminder' AND state = 'delivered' AND user_ids[1] > 20000}, 'reminders pass them by');

# Many sales of one shop that are due at once do not hold up the one of another.
sql(q{SELECT coupon_channel_enable('app', false); DELETE FROM coupon_notification;
	INSERT INTO coupon_template (id, name, discount_value, status, shop_number, receive_start)
		SELECT 100000 + g, 'many', 1, 'published', 1, now() + interval '1 day' FROM generate_series(1, 40) g
		UNION ALL SELECT 200000, 'one', 1, 'published', 2, now() + interval '1 day';
	INSERT INTO coupon_remind (user_id, template_id, bitmap) SELECT u, 100000 + g, '{app@5}' FROM generate_series(1, 40) g, generate_series(1, 1000) u;
	INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (1, 200000, '{app@5}');
	UPDATE coupon_template SET receive_start = now() + interval '4 min 55 s' WHERE id > 100000});
await("count(*) = 40001 FROM coupon_notification WHERE kind = 'reminder'", 'all of them fire');
cmp_ok(sql('SELECT count(*) FROM coupon_notification WHERE id < (SELECT id FROM coupon_notification WHERE template_id = 200000)'), '<=', 10000, 'the one of the other shop in the first look');
sql('DELETE FROM coupon_notification');

# Nor do many with all that a user can ask for: a sale costs more than its rows, and a look
# ends after a moment.
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, shop_number, receive_start)
		SELECT 300000 + g, 'full', 1, 'published', 1, now() + interval '1 day' FROM generate_series(1, 3000) g;
	INSERT INTO coupon_remind (user_id, template_id, bitmap) SELECT 1, 300000 + g, ((1::bigint << 60) - 1)::remind_bitmap FROM generate_series(1, 3000) g;
	UPDATE coupon_template SET receive_start = now() WHERE id > 300000});
await("sum(cardinality(user_ids)) = 180000 FROM coupon_notification_history WHERE template_id > 300000 AND state = 'missed'", 'all of them are recorded');
cmp_ok(sql('SELECT count(DISTINCT xmin::text) FROM coupon_notification_history WHERE template_id > 300000'), '>', 2, 'in several looks');
sql('DELETE FROM coupon_notification_history WHERE template_id > 300000; DELETE FROM coupon_remind WHERE template_id > 300000');

# What has fired and cannot leave is given back when its sale is put off, or offline, and
# fires again when it is time: once, and with what is true then.
for my $case ([ 'offline', "status = 'offline'", "status = 'published'", 30 ], [ 'put off', "receive_start = now() + interval '1 day'", "receive_start = now() + interval '19 min 30 s'", 20 ])
{
	my ($what, $away, $back, $minutes) = @$case;
	channel('app', 'ok/' . $what =~ tr/ /_/r, 'enabled => false, batch_size => 2');
	my $id = reminders_due('app', 40001, 40003);
	await("count(*) = 2 FROM coupon_notification WHERE template_id = $id", "$what: reminders wait for their channel");
	sql("UPDATE coupon_template SET $away WHERE id = $id; SELECT coupon_channel_enable('app')");
	await("count(*) = 0 FROM coupon_notification WHERE template_id = $id", "$what: they are given back");
	is(sql("SELECT count(*), bool_and(fired = '{}' AND notifications IS NULL) FROM coupon_remind WHERE template_id = $id"), '3|t', "$what: and have not fired");
	is(sql("SELECT count(*) FROM coupon_notification_history WHERE template_id = $id"), '0', "$what: nor are they missed");
	sql("UPDATE coupon_template SET $back WHERE id = $id");
	await("sum(cardinality(user_ids)) = 3 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", "$what: they come when it is time");
	is(sql("SELECT DISTINCT minutes FROM coupon_notification_history WHERE template_id = $id"), $minutes, "$what: and say how long it is");
}

# DDL on one partition of the coupons: folding comes back for it, and nothing else waits.
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, receive_start) VALUES (900003, 'claimed', 1, 'published', '2020-01-01')});
is(sql('SELECT outcome FROM coupon_receive(900003, 900000)'), 'ok', 'a template that is loaded');
my $ddl = $node->background_psql('postgres');
$ddl->query_safe('BEGIN; LOCK TABLE user_coupon_9 IN ACCESS EXCLUSIVE MODE');
my ($turns, $errors) = split /\|/, sql(q{SELECT turns, errors FROM coupon_stat_worker WHERE database = 'postgres'});
is(sql(q{SELECT outcome FROM (SELECT u FROM generate_series(900001, 900999) u WHERE satisfies_hash_partition('user_coupon'::regclass, 32, 8, u::bigint) LIMIT 1) x, coupon_receive(900003, u)}), 'ok', 'a claim in another partition');
await("turns > $turns + 3 FROM coupon_stat_worker WHERE database = 'postgres'", 'the worker goes on');
is(sql(q{SELECT errors FROM coupon_stat_worker WHERE database = 'postgres'}), $errors, 'and no duty of it fails for a lock');
$ddl->query_safe('COMMIT');
$ddl->quit;
await(q{NOT EXISTS (SELECT FROM user_coupon WHERE id > (SELECT upto FROM coupon_watermark WHERE holder = 0) AND holder = 0)}, 'then it is folded');
$node->stop;
done_testing();
