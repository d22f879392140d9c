# What a push tells of is on disk before it leaves, although nothing else is:
# all commit asynchronously here and the WAL writer is stopped, so that a crash
# takes everything away that nobody has flushed on purpose.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use Test::More;

# Nothing but a commit may flush: also no page that has to make room.
my ($node, $receiver) = start_both('flushed', <<'X');
synchronous_commit = off
autovacuum = off
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
shared_buffers = 128MB
wal_buffers = 16MB
X

my $walwriter;

# From now on only what asks for it reaches the disk.
sub stop_flushing
{
	sql('CHECKPOINT');
	$walwriter = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	kill 'STOP', $walwriter;
	return;
}

# The server is started anew, as after any crash of one of its processes.
sub crash
{
	kill 'KILL', $walwriter;
	$node->poll_query_until('postgres', "SELECT pid <> $walwriter FROM pg_stat_activity WHERE backend_type = 'walwriter'")
		or BAIL_OUT('no recovery');
	return;
}

# The first request to a path, as soon as it is there.
sub first_arrived
{
	my ($path) = @_;
	for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my ($request) = arrived($path);
		return $request if $request;
		select(undef, undef, undef, 0.01);
	}
	BAIL_OUT("nothing arrives at $path");
}

# The means work: what has only been committed is gone.
stop_flushing();
sql('CREATE TABLE witness ()');
is(sql('SELECT count(*) FROM witness'), '0', 'committed');
crash();
is(sql(q{SELECT to_regclass('witness') IS NULL}), 't', 'and lost, for nothing was flushed');

# A coupon of a distribution that does not end, since a claim of user 7 is open:
# its end would flush.
{
	switch_to('coupon', 'hang');
	channel('app', 'switch/coupon', q{timeout => '1 s', batch_size => 10});
	my $id = new_template('-1 hour');
	my $task = sql("SELECT task_id FROM coupon_task_create('flushed', $id, '{app}')");
	sql("INSERT INTO coupon_stage_$task (user_id) SELECT u FROM generate_series(1, 10) u");
	stop_flushing();
	my $claim = start_psql("BEGIN; SELECT code FROM coupon_receive($id, 7); SELECT pg_sleep(600)");
	await(q{count(*) = 1 FROM pg_stat_activity WHERE query ~ 'pg_sleep' AND wait_event = 'PgSleep'}, 'coupon: a claim is open');
	sql("SELECT coupon_task_submit($task)");
	my $told = join(',', sort { $a <=> $b } users_of(first_arrived('switch/coupon')));
	is($told, '1,2,3,4,5,6,8,9,10', 'coupon: told, all but the one whose claim is open');
	is(sql("SELECT state FROM coupon_task WHERE id = $task"), 'in_progress', 'coupon: the distribution goes on');
	crash();
	finish($claim);
	is(sql("SELECT string_agg(user_id::text, ',' ORDER BY user_id) FROM user_coupon WHERE template_id = $id AND user_id = ANY ('{$told}')"),
		$told, 'coupon: after a crash, whoever was told has one');
	switch_to('coupon', 'ok');
	await("state = 'success' FROM coupon_task WHERE id = $task", 'coupon: the distribution ends');
	await('count(*) = 0 FROM coupon_notification', 'coupon: all are told');
	is(sql("SELECT count(*) FROM user_coupon WHERE template_id = $id"), '10', 'coupon: one each');
}

# A reminder: what has fired has fired, or it would be sent under two ids.
{
	switch_to('reminder', 'hang');
	channel('sms', 'switch/reminder', q{timeout => '1 s'});
	my $id = new_template('10 hours');
	is(sql("SELECT code FROM coupon_remind_create($id, 1, 'sms', 30)"), '0', 'reminder: made');
	stop_flushing();
	sql("UPDATE coupon_template SET receive_start = now() + interval '20 minutes' WHERE id = $id");
	my $push = ids_of(first_arrived('switch/reminder'));
	crash();
	is(sql("SELECT fired, notifications FROM coupon_remind WHERE template_id = $id"), "{sms\@30}|{$push}",
		'reminder: after a crash, what was sent has fired');
	switch_to('reminder', 'ok');
	await("state = 'delivered' FROM coupon_notification_history WHERE template_id = $id", 'reminder: it is delivered');
	my %ids = map { ids_of($_) => 1 } arrived('switch/reminder');
	is(join(',', keys %ids), $push, 'reminder: under one id');
}

$node->stop;
stop_process($receiver);
done_testing();
