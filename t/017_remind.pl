# Reminders with the real worker: they fire at their moment though nobody asks,
# whatever was open then; what was late is sent, what was too late is recorded;
# each exactly once, whoever is killed at any moment.
#
# COUPON_KILLS (default 8) and COUPON_SEED make it longer, or repeat a run.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib $FindBin::RealBin;
use CouponTest;
use Time::HiRes qw(usleep);
use PostgreSQL::Test::Utils;
use Test::More;

my $kills = $ENV{COUPON_KILLS} || 8;
my $seed = $ENV{COUPON_SEED} || time;
srand($seed);
note("seed $seed, $kills kills");

my $node = new_node('main', "restart_after_crash = on\ncheckpoint_timeout = 1h", allows_streaming => 'logical');

sub template
{
	my ($id, $start, $db) = @_;
	$node->safe_psql($db || 'postgres', qq{
		INSERT INTO coupon_template (id, name, discount_value, status, receive_start)
		VALUES ($id, 't$id', 1, 'published', clock_timestamp() + '$start')});
	return;
}

sub move
{
	my ($id, $start) = @_;
	$node->safe_psql('postgres', "UPDATE coupon_template SET receive_start = clock_timestamp() + '$start' WHERE id = $id");
	return;
}

# Wait until so many pushes of a template are there, in whatever state.
sub pushed
{
	my ($id, $n, $what, $where, $db) = @_;
	$where ||= 'true';
	ok($node->poll_query_until($db || 'postgres', qq{
		SELECT count(*) = $n FROM (
			SELECT 'waiting' AS state, template_id, unnest(user_ids) AS user_id FROM coupon_notification
			UNION ALL SELECT state, template_id, unnest(user_ids) FROM coupon_notification_history) p
		WHERE template_id = $id AND $where}), $what)
		or diag($node->safe_psql($db || 'postgres', 'SELECT * FROM coupon_stat_worker'));
	return;
}

# The same, and soon: the worker would look by itself only a minute after its
# last turn.
sub pushed_soon
{
	my ($id, $n, $what, @more) = @_;
	my $since = time;
	pushed($id, $n, $what, @more);
	cmp_ok(time - $since, '<', 20, "$what: soon");
	return;
}

# How late the pushes of a template went into the outbox: from, to.
sub late
{
	my ($id) = @_;
	return split /\|/, $node->safe_psql('postgres', qq{
		SELECT extract(epoch FROM min(next_at - due_at)), extract(epoch FROM max(next_at - due_at))
		FROM coupon_notification WHERE template_id = $id});
}

# Let a look at all that is due take so many seconds; it needs the table.
sub slow_look
{
	my ($table, $seconds) = @_;
	my $lock = $node->background_psql('postgres');
	$lock->query_safe("BEGIN; LOCK TABLE $table IN ACCESS EXCLUSIVE MODE");
	$node->safe_psql('postgres', 'SELECT coupon_worker_wake()');
	ok($node->poll_query_until('postgres', q{
		SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'coupon worker' AND datname = 'postgres'}), 'a look is held up');
	$lock->query_safe("SELECT pg_sleep($seconds); COMMIT");
	$lock->quit;
	return;
}

# Wait for so many turns of the worker, and return how often it has asked the
# table of reminders through an index meanwhile.
sub probes_of_turns
{
	my ($n) = @_;
	my $worker = q{FROM coupon_stat_worker WHERE kind = 'worker' AND database = 'postgres'};
	my $probes = q{SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 'coupon_remind'};
	my $before = $node->safe_psql('postgres', $probes);
	my $turns = $node->safe_psql('postgres', "SELECT turns $worker");
	$node->poll_query_until('postgres', "SELECT turns >= $turns + $n $worker") or BAIL_OUT('no turns');
	return $node->safe_psql('postgres', $probes) - $before;
}

# At its moment, not before, and soon after.
template(1, '5 min 3 s');
$node->safe_psql('postgres', q{SELECT coupon_remind_create(1, u, 'sms', 5) FROM generate_series(1, 100) u});
pushed(1, 100, 'reminders fire by themselves');
my ($from, $to) = late(1);
cmp_ok($from, '>=', 0, 'not before their moment');
cmp_ok($to, '<', 2, 'and within two seconds');

# Two moments, the second while the worker sleeps; moved by one UPDATE.
template(2, '1 day');
$node->safe_psql('postgres', q{
	SELECT coupon_remind_create(2, u, 'sms', m) FROM generate_series(1, 10) u, unnest(ARRAY[5, 10]) m});
my $rows = $node->safe_psql('postgres', 'SELECT array_agg(xmin::text || ctid::text ORDER BY ctid) FROM coupon_remind WHERE template_id = 2');
move(2, '10 min 1 s');
is($node->safe_psql('postgres', 'SELECT array_agg(xmin::text || ctid::text ORDER BY ctid) FROM coupon_remind WHERE template_id = 2'),
	$rows, 'moving a start touches no reminder');
pushed(2, 10, 'a sale that came nearer');
($from, $to) = late(2);
cmp_ok($from, '>=', 0, 'not before the new moment');
cmp_ok($to, '<', 2, 'soon after it');
move(2, '5 min 1 s');
pushed(2, 20, 'and the second of two');

# Created before its moment, committed after it; nothing else wakes the worker.
template(3, '5 min 2 s');
my $open = $node->background_psql('postgres');
is($open->query_safe(q{BEGIN; SELECT code FROM coupon_remind_create(3, 1, 'sms', 5)}), '0', 'created before its moment');
$open->query_safe(q{SELECT FROM pg_sleep_until((SELECT receive_start - interval '4 min 59 s' FROM coupon_template WHERE id = 3))});
pushed(3, 0, 'not seen before the commit');
$open->query_safe('COMMIT');
pushed_soon(3, 1, 'fires when it is committed');

# Being taken back over its moment.
template(4, '5 min 2 s');
$node->safe_psql('postgres', q{SELECT coupon_remind_create(4, u, 'sms', 5) FROM generate_series(1, 3) u});
is($open->query_safe(q{BEGIN; SELECT code FROM coupon_remind_cancel(4, 1, 'sms', 5)}), '0', 'being taken back');
pushed(4, 2, 'the others fire');
$open->query_safe('ROLLBACK');
pushed_soon(4, 3, 'it fires when that has rolled back, although nobody wakes the worker');

# A look at all that is due, made to take 4 s, is made again by itself only 40 s
# later.  Meanwhile what becomes due fires at its moment all the same, and what
# is committed after its moment makes the worker look at all.
template(5, '5 min 12 s');
$node->safe_psql('postgres', q{SELECT coupon_remind_create(5, u, 'sms', 5) FROM generate_series(1, 3) u});
slow_look('coupon_remind', 4);
is($open->query_safe(q{BEGIN; SELECT code FROM coupon_remind_create(5, 4, 'sms', 5)}), '0', 'once more created before its moment');
pushed(5, 3, 'the others fire, although it is not the time to look at all');
($from, $to) = late(5);
cmp_ok($from, '>=', 0, 'not before their moment');
cmp_ok($to, '<', 2, 'and soon after it');
# Until then the worker has seen that nothing is left.
$open->query_safe('SELECT pg_sleep(2); COMMIT');
pushed_soon(5, 4, 'it fires when it is committed');

# What somebody holds makes the worker come back for that sale, and not ask the
# hundred others each time.
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, discount_value, status, receive_start)
	SELECT t, 'other', 1, 'published', clock_timestamp() + '40 min' FROM generate_series(1001, 1100) t;
	SELECT coupon_remind_create(t, 1, 'sms', 5) FROM generate_series(1001, 1100) t});
template(6, '5 min 2 s');
template(7, '5 min 20 s');
template(8, '1 day');
$node->safe_psql('postgres', q{
	SELECT coupon_remind_create(t, u, 'sms', CASE t WHEN 8 THEN 60 ELSE 5 END) FROM generate_series(6, 8) t, generate_series(1, 3) u});
$open->query_safe('BEGIN; SELECT FROM coupon_remind WHERE template_id = 6 AND user_id = 1 FOR UPDATE');
pushed(6, 2, 'the others fire');
slow_look('coupon_template', 5);
# Numbers of what was before come late, on a busy machine by several seconds.
my $probes = 200;
for (my $i = 0; $i < 5 && $probes >= 200; $i++)
{
	$probes = probes_of_turns(12);
	note("$probes probes in 12 turns");
}
cmp_ok($probes, '<', 200, 'the worker asks for what is held, not everywhere');
pushed_soon(7, 3, 'what becomes due meanwhile fires');
($from, $to) = late(7);
cmp_ok($to, '<', 2, 'at its moment');
pushed(6, 2, 'what is held does not');
$open->query_safe('ROLLBACK');
pushed_soon(6, 3, 'until it is free');

# A look at all is still far ahead; a start that moves makes one, since what was
# not due when the worker looked has been due for long.
move(8, '40 min');
pushed_soon(8, 3, 'a sale that came nearer than its reminders');
$open->quit;

# The server was down: late is sent, too late is recorded; a draft is neither.
template($_, '1 day') for 10 .. 14;
$node->safe_psql('postgres', q{
	SELECT coupon_remind_create(t, u, 'email', 60) FROM generate_series(10, 14) t, generate_series(1, 5) u});
$node->safe_psql('postgres', q{
	ALTER SYSTEM SET coupon.databases = ''; SELECT pg_reload_conf();});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM coupon_stat_worker WHERE database = 'postgres'}), 'no worker');
$node->safe_psql('postgres', q{
	UPDATE coupon_template SET receive_start = clock_timestamp() + CASE id
		WHEN 10 THEN '40 min' WHEN 11 THEN '1 s' WHEN 12 THEN '-3 days' WHEN 13 THEN '1 day' ELSE '40 min' END::interval,
		status = CASE id WHEN 14 THEN 'offline' ELSE 'published' END
	WHERE id BETWEEN 10 AND 14});
$node->stop;
$node->append_conf('postgresql.auto.conf', "coupon.databases = '*'");
sleep 1;	# the start of 11 must pass
$node->start;
pushed_soon(10, 5, 'late ones are sent', q{state = 'waiting'});
pushed(11, 5, 'those of a sale that has begun meanwhile are missed', q{state = 'missed'});
pushed_soon(12, 5, 'also long ago', q{state = 'missed'});
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM coupon_remind WHERE template_id IN (13, 14) AND fired = '{}'}),
	'10', 'tomorrow waits, and what is offline');
$node->safe_psql('postgres', q{UPDATE coupon_template SET status = 'published' WHERE id = 14});
pushed_soon(14, 5, 'published again, late ones are sent', q{state = 'waiting'});

# Killed at any moment, while reminders become due and users come and go.
{
	my ($first, $users) = (100, 1_500);
	my $last = $first + $kills - 1;
	$node->safe_psql('postgres', 'CREATE TABLE made (template_id bigint, user_id bigint, PRIMARY KEY (template_id, user_id))');
	for my $id ($first .. $last)
	{
		template($id, '1 day');
		# Of those of even number, one fires with the sale an hour away.
		$node->safe_psql('postgres', qq{
			SELECT coupon_remind_create($id, u, c, 5) FROM generate_series(1, $users) u, unnest(ARRAY['sms', 'app']) c
			WHERE c = 'sms' OR u % 2 = 0});
	}
	# Users above create, and record it; below some change their mind.
	my $load = script(qq{
\\set t random($first, $last)
\\set u random(@{[ $users + 1 ]}, @{[ $users * 100 ]})
\\set back random(1, $users)
WITH c AS (SELECT code FROM coupon_remind_create(:t, :u, 'sms', 5))
INSERT INTO made SELECT :t, :u FROM c WHERE code = 0 ON CONFLICT DO NOTHING;
SELECT code FROM coupon_remind_cancel(:t, :back, 'app', 5);
});
	my %how;
	for my $id ($first .. $last)
	{
		my $bench = start_pgbench($node, '-c', 2, '-T', 20, '-f', $load);
		move($id, '5 min ' . sprintf('%.3f s', 0.1 + rand(0.4)));
		my $pid = $node->safe_psql('postgres', q{
			SELECT COALESCE((SELECT pid FROM pg_stat_activity WHERE backend_type = 'coupon worker' AND datname = 'postgres'), 0)});
		usleep(rand(900_000));
		my $kind = ('worker', 'postmaster', 'asked')[ int(rand(3)) ];
		$kind = 'postmaster' if $pid == 0;
		$how{$kind}++;
		if ($kind eq 'postmaster')
		{
			kill 'KILL', $node->{_pid};
			$node->{_pid} = undef;
			start_again($node);
		}
		else
		{
			kill $kind eq 'worker' ? 'KILL' : 'TERM', $pid;
			usleep(rand(300_000));
			$node->poll_query_until('postgres', 'SELECT true') or BAIL_OUT('no recovery');
		}
		$bench->{handle}->kill_kill;
		eval { $bench->{handle}->finish };
	}
	note(join ', ', map { "$_: $how{$_}" } sort keys %how);
	ok($node->poll_query_until('postgres', qq{
		SELECT count(*) = 0 FROM coupon_remind WHERE template_id BETWEEN $first AND $last AND next_minutes IS NOT NULL}),
		'nothing stays behind');
	is($node->safe_psql('postgres', qq{
		SELECT count(*) FROM coupon_remind WHERE template_id BETWEEN $first AND $last AND user_id <= $users AND bitmap @> '{sms\@5}'}),
		$kills * $users, 'every reminder is there');
	is($node->safe_psql('postgres', qq{
		SELECT count(*) FROM made m LEFT JOIN coupon_remind r USING (template_id, user_id) WHERE r.fired IS DISTINCT FROM '{sms\@5}'}),
		'0', 'also those that were made meanwhile');
	note('made meanwhile: ' . $node->safe_psql('postgres', 'SELECT count(*) FROM made'));
	# What the rows say has fired, and what is in the outbox: the same, once each.
	$node->safe_psql('postgres', qq{
		CREATE VIEW fired AS
		SELECT r.template_id, r.user_id, s.channel, s.minutes, s.id
		FROM coupon_remind r CROSS JOIN LATERAL ROWS FROM (remind_bitmap_slots(r.fired, 'epoch'), unnest(r.notifications))
			AS s (remind_at, channel, minutes, id)
		WHERE r.template_id BETWEEN $first AND $last;
		CREATE VIEW outbox AS
		SELECT n.template_id, u.user_id, n.channel, n.minutes::int, n.id
		FROM (SELECT id, template_id, channel, minutes, user_ids FROM coupon_notification UNION ALL
			SELECT id, template_id, channel, minutes, user_ids FROM coupon_notification_history) n, unnest(n.user_ids) AS u (user_id)
		WHERE n.template_id BETWEEN $first AND $last});
	is($node->safe_psql('postgres', q{
		SELECT count(*) FROM ((TABLE fired EXCEPT ALL TABLE outbox) UNION ALL (TABLE outbox EXCEPT ALL TABLE fired)) d}),
		'0', 'each that has fired is in the outbox, exactly once');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM outbox GROUP BY template_id, user_id, channel, minutes HAVING count(*) > 1) d'),
		'0', 'none twice');
	cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM outbox}), '>=', $kills * $users, 'none is lost');
}

# A dump brings them back, and nothing is tidied away amid a restore.
{
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
	$node->command_ok([ 'pg_dump', '-f', $dump, '--exclude-table=made', 'postgres' ], 'pg_dump');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', 'restored', '-f', $dump ], 'restored');
	my $all = 'SELECT count(*), sum(hashtext(r::text)) FROM coupon_remind r';
	is($node->safe_psql('restored', $all), $node->safe_psql('postgres', $all), 'with every reminder');
	$node->safe_psql('restored', 'TRUNCATE coupon_template');
	$node->safe_psql('restored', 'CALL coupon_purge()');
	is($node->safe_psql('restored', $all), $node->safe_psql('postgres', $all), 'kept while there are no templates');
	template(13, '-8 days', 'restored');
	$node->safe_psql('restored', 'CALL coupon_purge()');
	is($node->safe_psql('restored', 'SELECT count(*) FROM coupon_remind'), '0', 'tidied away when there are');
	$node->safe_psql('postgres', 'DROP DATABASE restored');
}

# Where they arrive by subscription, they are the publisher's to send.
{
	template(200, '1 day');
	$node->safe_psql('postgres', q{SELECT coupon_remind_create(200, u, 'sms', 5) FROM generate_series(1, 3) u});
	$node->safe_psql('postgres', 'CREATE DATABASE copy');
	$node->safe_psql('copy', 'CREATE EXTENSION coupon');
	$node->safe_psql('postgres', q{
		CREATE PUBLICATION p FOR TABLE coupon_remind, coupon_template;
		SELECT pg_create_logical_replication_slot('s', 'pgoutput')});
	my $conn = $node->connstr('postgres') =~ s/'/''/gr;
	$node->safe_psql('copy', qq{
		CREATE SUBSCRIPTION s CONNECTION '$conn' PUBLICATION p WITH (create_slot = false)});
	ok($node->poll_query_until('copy', q{SELECT count(*) = 3 FROM coupon_remind JOIN coupon_template t ON t.id = template_id WHERE template_id = 200}),
		'reminders are replicated');
	move(200, '4 min');
	pushed(200, 3, 'the publisher sends');
	ok($node->poll_query_until('copy', q{SELECT count(*) = 3 FROM coupon_remind WHERE template_id = 200 AND fired = '{sms@5}'}),
		'the subscriber sees it');
	$node->safe_psql('copy', q{UPDATE coupon_remind SET fired = '{}' WHERE template_id = 200});
	is($node->safe_psql('copy', 'SELECT fired, missed FROM coupon_remind_tick()'), '0|0', 'and does not send');
	my $worker = q{FROM coupon_stat_worker WHERE kind = 'worker' AND database = 'copy'};
	my $turns = $node->safe_psql('copy', "SELECT turns $worker");
	# The second turn from now begins after it.
	ok($node->poll_query_until('copy', "WITH wake AS MATERIALIZED (SELECT coupon_worker_wake()) SELECT turns > $turns + 1 $worker AND (SELECT true FROM wake)"), 'its worker looks');
	is($node->safe_psql('copy', 'SELECT count(*) FROM coupon_notification'), '0', 'nor does its worker');
	$node->safe_psql('copy', 'ALTER SUBSCRIPTION s DISABLE');
	$node->safe_psql('copy', 'ALTER SUBSCRIPTION s SET (slot_name = NONE)');
	$node->safe_psql('copy', 'DROP SUBSCRIPTION s');
	$node->safe_psql('copy', 'SELECT coupon_worker_wake()');
	pushed(200, 3, 'promoted to a master of its own, it does', undef, 'copy');
	$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('s')});
}

# Two ticks that meet at the same rows, over and over, divide them: neither waits
# for what the other has, though both keep their transactions open.
{
	my $users = 100_000;
	$node->safe_psql('postgres', q{ALTER SYSTEM SET coupon.databases = ''});
	$node->reload;
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'coupon worker'}), 'no worker');
	template(300, '1 day');
	$node->safe_psql('postgres', qq{
		INSERT INTO coupon_remind (user_id, template_id, bitmap) SELECT u, 300, '{sms\@5}' FROM generate_series(1, $users) u});
	move(300, '4 min');
	my $gate = $node->background_psql('postgres');
	$gate->query_safe('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
	my $at = sub { return "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $_[0] AND NOT granted)"; };
	my $ticks = start_pgbench($node, '-c', 2, '-t', 1, '-f', script(q{
		BEGIN;
		SELECT pg_advisory_xact_lock_shared(1);
		SET LOCAL lock_timeout = '5s';
		SELECT * FROM coupon_remind_tick();
		SET LOCAL lock_timeout = 0;
		SELECT pg_advisory_xact_lock_shared(2);
		COMMIT;}));
	ok($node->poll_query_until('postgres', 'SELECT ' . $at->(1) . ' = 2'), 'two ticks begin');
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	ok($node->poll_query_until('postgres', 'SELECT ' . $at->(2) . q{ = count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'}), 'and end');
	$gate->query_safe('SELECT pg_advisory_unlock(2)');
	$gate->quit;
	ok($ticks->{handle}->finish, 'neither waits for the other') or diag(${ $ticks->{out} });
	is($node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT user_ids) FROM coupon_notification WHERE template_id = 300}),
		"$users|$users", 'all have fired, each once');
}

$node->stop;
done_testing();
