# Deliveries when processes die: kill -9 at any moment loses none and invents
# none; DROP DATABASE, DROP EXTENSION, a dropped role, SIGTERM and promotion
# neither wait for a receiver nor leave anything undelivered.
#
# COUPON_KILLS (default 5) and COUPON_SEED make it longer, or repeat a run.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $kills = $ENV{COUPON_KILLS} || 5;
seeded();
my ($node, $receiver) = start_both('crash', 'coupon.batch_size = 100');

# Killed in the middle of everything: a worker, a backend, the whole server.
{
	channel('sms', 'slow/killed/50', q{timeout => '1 s'});
	channel('app', 'slow/killed/20', q{timeout => '1 s', batch_size => 10});
	my $id = new_template('-1 hour');
	my $task = sql("SELECT task_id FROM coupon_task_create('killed', $id, '{app}')");
	sql("INSERT INTO coupon_stage_$task (user_id) SELECT u FROM generate_series(1, 1000) u; SELECT coupon_task_submit($task)");
	my $remind = reminders_due('sms,app', 1, 500);

	# What a client heard of as committed, by address.
	my %pushed;
	for my $n (1 .. $kills)
	{
		my $run = start_psql(join('', map { my $a = "$n-$_"; "SELECT '$a', notification_id FROM coupon_channel_test('sms', '$a');\n" } 1 .. 300));
		usleep(100_000 + rand(600_000));
		my $what = qw(worker backend server)[ $n % 3 ];
		my $pid = $what eq 'worker' ? pid_of('worker') : sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() LIMIT 1});
		if ($what eq 'server' || !$pid)
		{
			kill 'KILL', $node->{_pid};
			%pushed = (%pushed, finish($run) =~ /^(\d+-\d+)\|(\d+)$/mg);
			$node->{_pid} = undef;
			start_again($node);
		}
		else
		{
			kill 'KILL', $pid;
			%pushed = (%pushed, finish($run) =~ /^(\d+-\d+)\|(\d+)$/mg);
			$node->poll_query_until('postgres', 'SELECT true') or BAIL_OUT('no recovery');
		}
	}
	await("state = 'success' FROM coupon_task WHERE id = $task", 'killed: the task is done');
	await("count(*) = 0 FROM coupon_remind WHERE next_minutes IS NOT NULL", 'killed: all reminders have fired');
	await('count(*) = 0 FROM coupon_notification', 'killed: the queue runs empty');
	is(sql('SELECT DISTINCT state FROM coupon_notification_history'), 'delivered', 'killed: everything is delivered');
	is(sql(q{SELECT kind, channel, min(n), max(n), count(*) FROM (SELECT kind, channel, u, count(*) AS n
		FROM coupon_notification_history, unnest(user_ids) u WHERE kind <> 'test' GROUP BY 1, 2, 3) x GROUP BY 1, 2 ORDER BY 1, 2}),
		"coupon|app|1|1|1000\nreminder|app|1|1|500\nreminder|sms|1|1|500", 'killed: one push for each coupon and each reminder');

	my %row = map { split /\|/ } split /\n/, sql(q{SELECT id, COALESCE(address, kind || channel || array_to_string(user_ids, ',')) FROM coupon_notification_history});
	my (%seen, %ids_of_recipient, $times);
	for my $line (lines_arrived('killed'))
	{
		my ($id) = $line =~ /"webhook-id": "(\d+)"/;
		my ($path) = $line =~ /"path": "([^"]+)"/;
		my ($type) = $line =~ /\\"type\\":\\"([\w.]+)/;
		$times++;
		$seen{$id}++;
		$ids_of_recipient{"$path $type $_"}{$id} = 1 for $line =~ /\\"address\\":\\"([^\\]+)/g;
	}
	note(scalar(keys %seen) . " pushes in $times requests");
	is(scalar(grep { !$seen{$_} } keys %row), 0, 'killed: each row of the history has arrived');
	is(scalar(grep { !$row{$_} } keys %seen), 0, 'killed: each webhook-id that arrived is of a row');
	is(scalar(grep { keys %$_ != 1 } values %ids_of_recipient), 0, 'killed: nobody got the same under two');
	is(scalar(grep { ($row{ $pushed{$_} } || '') ne $_ } keys %pushed), 0, 'killed: nothing that was acknowledged is lost');
	cmp_ok(scalar(keys %pushed), '>', 0, 'killed: something was');
	is(scalar(keys %ids_of_recipient), 2000 + grep({ /^\d+-\d+$/ } values %row), 'killed: every recipient was told');
}

# SIGTERM: another worker comes, and sends what the first could not finish when
# its leases have run out.  Meanwhile the next tests.
switch_to('term', 'hang');
channel('sms', 'switch/term', q{timeout => '1 s', max_in_flight => 5});
my $terminated = tests('sms', 20, 't');
await('count(*) = 5 FROM coupon_notification WHERE leased_until IS NOT NULL', 'term: some are on their way');
my $worker = pid_of('worker');
switch_to('term', 'ok');
sql("SELECT pg_terminate_backend($worker)");
await("pid <> $worker FROM coupon_stat_worker WHERE kind = 'worker' AND database = 'postgres' AND pid IS NOT NULL", 'term: another worker comes');

# DROP DATABASE does not wait for a receiver.
{
	sql('CREATE DATABASE other');
	sql('CREATE EXTENSION coupon', 'other');
	channel('sms', 'hang/dropped', q{timeout => '60 s'}, 'other');
	tests('sms', 50, 'x', 'other');
	await('count(*) = 50 FROM coupon_notification WHERE leased_until IS NOT NULL', 'drop: all hang', 'other');
	# It waits for five seconds, and fails while anybody is there.
	sql('DROP DATABASE other');
	is(pid_of('worker', 'other'), '', 'drop: its worker is gone');
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^coupon' AND datname IS NULL}), '1', 'drop: the launcher is not');
}

# DROP EXTENSION, and everything anew, while answers are awaited.  The owner of
# the extension goes as well.
{
	sql(q{CREATE DATABASE other; CREATE ROLE boss SUPERUSER});
	sql('SET ROLE boss; CREATE EXTENSION coupon', 'other');
	channel('sms', 'slow/old/300', q{timeout => '1 s'}, 'other');
	tests('sms', 20, 'x', 'other');
	await('count(*) > 0 FROM coupon_notification WHERE leased_until IS NOT NULL', 'extension: some are on their way', 'other');
	# The launcher hears of both at once: the worker has left, and is wanted again.
	my $launcher = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'coupon launcher'});
	kill 'STOP', $launcher;
	sql('DROP EXTENSION coupon', 'other');
	is($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'coupon worker' AND datname = 'other'}), 1, 'extension: dropped, the worker leaves');
	sql('SET ROLE boss; CREATE EXTENSION coupon', 'other');
	kill 'CONT', $launcher;
	channel('sms', 'slow/new/200', q{timeout => '1 s'}, 'other');
	my $ids = tests('sms', 20, 'x', 'other');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($ids)", 'extension: created again, it delivers', 'other');
	is(ids_of(arrived('slow/new')), sorted($ids), 'extension: each once');
	# In one transaction, so that the worker stays and has to notice.
	my $worker = pid_of('worker', 'other');
	sql('BEGIN; DROP EXTENSION coupon; SET ROLE boss; CREATE EXTENSION coupon; COMMIT', 'other');
	channel('sms', 'ok/newer', undef, 'other');
	$ids = tests('sms', 20, 'x', 'other');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($ids)", 'extension: dropped and created at once', 'other');
	is(pid_of('worker', 'other'), $worker, 'extension: by the worker that was there');
	sql('REASSIGN OWNED BY boss TO CURRENT_USER; DROP OWNED BY boss', 'other');
	sql(q{UPDATE pg_extension SET extowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) WHERE extname = 'coupon';
		DELETE FROM pg_shdepend WHERE refobjid = 'boss'::regrole;
		DROP ROLE boss}, 'other');
	$ids = tests('sms', 20, 'x', 'other');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($ids)", 'role: its owner was dropped, it delivers', 'other');
	sql('DROP DATABASE other');
}

await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($terminated) AND state = 'delivered'", 'term: everything is delivered');
is(join(',', sort keys %{ { map { $_ => 1 } split(/,/, ids_of(arrived('switch/term'))) } }), sorted($terminated), 'term: under the ids that it had');

# A standby sends nothing until it is promoted; then it sends what waits.
{
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	switch_to('promoted', 'status/500');
	channel('sms', 'switch/promoted', q{timeout => '1 s'});
	my $ids = tests('sms', 10, 'p');
	await("count(*) = 10 FROM coupon_notification WHERE id IN ($ids) AND last_status = 500", 'promoted: pushes wait');
	$node->wait_for_catchup($standby);
	$node->stop;
	switch_to('promoted', 'ok');
	my $sent = scalar(arrived('switch/promoted'));
	is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^coupon'}), '0', 'promoted: a standby has no worker');
	is($standby->safe_psql('postgres', "SELECT count(*) FROM coupon_notification WHERE id IN ($ids)"), '10', 'promoted: they wait there as well');
	$standby->promote;
	ok($standby->poll_query_until('postgres', "SELECT count(*) = 10 FROM coupon_notification_history WHERE id IN ($ids) AND state = 'delivered'"),
		'promoted: the new primary delivers them');
	my @requests = arrived('switch/promoted');
	is(ids_of(splice(@requests, $sent)), sorted($ids), 'promoted: once each, under the same ids');
	$standby->stop;
}

stop_process($receiver);
done_testing();
