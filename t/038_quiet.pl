# Who wants nothing, when a channel is quiet, and how many requests it may begin in a second.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $receiver) = start_both('quiet', "coupon.databases = 'postgres'");
sub error_of { my ($statement) = @_; return ($node->psql('postgres', $statement))[2]; }

# Give a coupon of a template to users first to last, and tell them through a channel.
sub announce
{
	my ($template, $channel, $first, $last) = @_;
	sql("INSERT INTO coupon_template (id, name, discount_value, status) VALUES ($template, 'a', 1, 'published') ON CONFLICT DO NOTHING");
	my $task = sql("SELECT task_id FROM coupon_task_create('to $template', $template, notify => '{$channel}')");
	sql("INSERT INTO coupon_stage_$task (user_id) SELECT generate_series($first, $last); CALL coupon_task_run($task)");
	return;
}

# Muted: by a channel, or by all.
channel('app', 'ok/app', 'batch_size => 4');
channel('ch3', 'ok/ch3');
sql(q{SELECT coupon_contact_mute(2, 'app'), coupon_contact_mute(2, 'app'), coupon_contact_mute(3), coupon_contact_mute(4, 'sms'), coupon_contact_mute(5), coupon_contact_mute(5, 'app', false)});
is(sql('SELECT user_id, string_agg(channel, \',\' ORDER BY channel) FROM coupon_mute GROUP BY 1 ORDER BY 1'), "2|app\n3|app,ch3,ch4,email,sms\n4|sms\n5|ch3,ch4,email,sms", 'who is muted');
announce(101, 'app', 1, 8);
announce(101, 'ch3', 11, 13);
announce(102, 'ch3', 1, 5);
await('count(*) = 0 FROM coupon_notification', 'all are over');
is(sql(q{SELECT state, channel, string_agg(u::text, ',' ORDER BY u), bool_or(sent_at IS NOT NULL) FROM coupon_notification_history, unnest(user_ids) u WHERE template_id < 103 GROUP BY 1, 2 ORDER BY 1, 2}),
	"delivered|app|1,4,5,6,7,8|t\ndelivered|ch3|1,2,4,11,12,13|t\nmuted|app|2,3|f\nmuted|ch3|3,5|f", 'each in the history as it was');
is(join(',', sort map { users_of($_) } arrived('ok/app')), '1,4,5,6,7,8', 'nobody is told who wants nothing');
is(sql(q{SELECT count(*) = count(DISTINCT id) FROM coupon_notification_history}), 't', 'under ids of their own');
my $id = reminders_due('app', 1, 3);
await("count(*) FILTER (WHERE state = 'delivered') = 1 AND count(*) FILTER (WHERE state = 'muted') >= 1 AND sum(cardinality(user_ids)) = 3 FROM coupon_notification_history WHERE template_id = $id", 'nor reminded');
my $test = tests('app', 1, 'device');
await("state = 'delivered' FROM coupon_notification_history WHERE id = $test", 'a test goes to an address, not to a user');
sql('SELECT coupon_contact_mute(3, muted => false)');
announce(103, 'app', 3, 3);
await("state = 'delivered' FROM coupon_notification_history WHERE template_id = 103", 'until it is wanted again');
like(error_of("SELECT coupon_contact_mute($_->[0])"), $_->[1], "mute $_->[0]") for [ 'NULL', qr/user_id must not be null/ ], [ '0', qr/user id|user_id/ ], [ "1, 'fax'", qr/fax/ ], [ "1, 'app', NULL", qr/muted must not be null/ ];
sql(q{CREATE ROLE shop1 LOGIN; CREATE ROLE apps LOGIN; CREATE ROLE screen LOGIN; SELECT coupon_grant('shop1', 'application', 1), coupon_grant('apps', 'application'), coupon_grant('screen', 'monitor')});
like(($node->psql('postgres', "SELECT coupon_contact_mute(9, 'app')", extra_params => [ '-U', 'shop1' ]))[2], qr/bound to|common to all shops/, 'not by who is bound to a shop');
is(($node->psql('postgres', "SELECT coupon_contact_mute(9, 'app')", extra_params => [ '-U', 'apps' ]))[0], 0, 'by an application');
like(($node->psql('postgres', 'SELECT count(*) FROM coupon_mute', extra_params => [ '-U', 'screen' ]))[2], qr/permission denied/, 'and no business of monitors');

# A dump keeps it.
my $dump = $node->backup_dir . '/quiet.sql';
mkdir $node->backup_dir;
$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'a dump');
like(slurp_file($dump), qr/COPY public\.coupon_mute .*^2\tapp\t/ms, 'holds who wants nothing');

# Quiet: by the clock of a time zone.  It is noon somewhere: there an hour before and after is quiet.
my $quiet = sql(q{SELECT format('quiet_from => %L, quiet_until => %L, time_zone => %L', (now() AT TIME ZONE 'Asia/Shanghai' - interval '1 hour')::time, (now() AT TIME ZONE 'Asia/Shanghai' + interval '1 hour')::time, 'Asia/Shanghai')});
channel('app', 'ok/night', $quiet);
is(sql(q{SELECT channel, begins < now(), ends > now(), ends - begins FROM coupon_quiet_hours ORDER BY begins LIMIT 1}), 'app|t|t|02:00:00', 'it is quiet now');
announce(201, 'app', 1, 3);
$id = reminders_due('app', 11, 13);
await("count(*) = 3 FROM coupon_notification_history WHERE template_id = $id AND state = 'missed' AND last_error = 'the channel is quiet at this time'", 'reminders are not sent then');
$test = tests('app', 1, 'device');
await("state = 'delivered' FROM coupon_notification_history WHERE id = $test", 'tests are');
is(sql('SELECT count(*), max(attempts) FROM coupon_notification WHERE template_id = 201'), '3|0', 'announcements wait');
is(sql(q{SELECT status FROM coupon_health WHERE check_name = 'late_pushes'}), 'ok', 'which is as it should be');
is(scalar(grep { (data_of($_)->{recipients}[0]{user_id} || 0) > 0 } arrived('ok/night')), 0, 'nobody is woken');
channel('app', 'ok/night', sql(q{SELECT format('quiet_from => %L, quiet_until => %L, time_zone => %L', (now() AT TIME ZONE 'Asia/Shanghai' - interval '2 hours')::time, (now() AT TIME ZONE 'Asia/Shanghai' + interval '2 s')::time, 'Asia/Shanghai')}));
await('count(*) = 0 FROM coupon_notification WHERE template_id = 201', 'until it is over');
is(sql(q{SELECT count(*) FROM coupon_notification_history n, coupon_channel c WHERE n.template_id = 201 AND n.state = 'delivered' AND c.channel = 'app' AND (n.sent_at AT TIME ZONE c.time_zone)::time >= c.quiet_until}), '2', 'not before, and not to who wants nothing');
# Or they are sent before, where the channel says so, with the minutes that are really left.
sql(q{SELECT coupon_channel_enable('app', false); DELETE FROM coupon_notification});
$id = new_template('10 hours');
sql("SELECT DISTINCT code FROM generate_series(21, 23) u, unnest('{5,10,30,55}'::int[]) m, unnest('{app,ch4}'::text[]) c, coupon_remind_create($id, u, c, m)") eq '0' or die;
sql("SELECT outcome FROM coupon_remind_create($id, 24, 'app', 30); SELECT outcome FROM coupon_remind_create($id, 24, 'ch4', 5)");
sql("UPDATE coupon_template SET receive_start = now() + interval '9 hours 55 min 30 s' WHERE id = $id");
# One whose row somebody holds, and one of whom another reminder is due at the same time.
my $held = new_template('10 hours');
my $both = new_template('30 min');
sql("SELECT DISTINCT code FROM generate_series(31, 32) u, coupon_remind_create($held, u, 'app', 30)") eq '0' or die;
sql("SELECT DISTINCT code FROM unnest('{5,15}'::int[]) m, coupon_remind_create($both, 33, 'app', m)") eq '0' or die;
sql("UPDATE coupon_template SET receive_start = now() + interval '9 hours 55 min 30 s' WHERE id = $held");
my $holder = $node->background_psql('postgres');
$holder->query_safe("BEGIN; SELECT FROM coupon_remind WHERE template_id = $held AND user_id = 31 FOR UPDATE");
my $soon = q{(now() AT TIME ZONE 'Asia/Shanghai' + interval '3 min')::time};
channel('app', 'ok/before', sql("SELECT format('quiet_from => %L, quiet_until => %L, time_zone => %L, quiet_reminders => %L', $soon, $soon + interval '9 hours 40 min', 'Asia/Shanghai', 'before')"));
sql('SELECT coupon_worker_wake()');
await("count(*) = 4 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", 'before: each user once, for all that falls into the quiet hours');
is(sql("SELECT DISTINCT channel, minutes FROM coupon_notification_history WHERE template_id = $id"), 'app|600', 'before: with what is left');
is(sql("SELECT DISTINCT bitmap - fired FROM coupon_remind WHERE template_id = $id AND user_id < 24"), '{ch4@55,ch4@30,app@10,ch4@10,app@5,ch4@5}', 'before: nothing else');
is(scalar(grep { data_of($_)->{minutes} == 600 && data_of($_)->{recipients}[0]{user_id} < 30 } arrived('ok/before')), 4, 'before: they have arrived');
await("count(*) = 1 FROM coupon_notification_history WHERE template_id = $held AND user_ids = '{32}' AND state = 'delivered'", 'before: others do not wait for a row that is held');
$holder->query_safe('COMMIT');
$holder->quit;
await("count(*) = 1 FROM coupon_notification_history WHERE template_id = $held AND user_ids = '{31}' AND state = 'delivered'", 'before: which follows');
sql("UPDATE coupon_template SET receive_start = now() + interval '13 min' WHERE id = $both");
await("fired = bitmap FROM coupon_remind WHERE template_id = $both", 'before: with one that is due');
await("count(*) FILTER (WHERE state = 'delivered') = 1 AND count(*) = 1 FROM (SELECT state FROM coupon_notification_history WHERE template_id = $both UNION ALL SELECT NULL FROM coupon_notification WHERE template_id = $both) n", 'before: the nearest alone');
is(sql("SELECT outcome FROM coupon_remind_create($both, 33, 'app', 5)"), 'duplicate', 'before: what has gone is not asked for again');
is(sql(q{SELECT outcome FROM coupon_remind_create(} . "$id, 25, 'app', 30)"), 'ok', 'before: asked for in the meantime');
is(sql('SELECT fired, missed FROM coupon_remind_tick()'), '1|0', 'before: is found, too');
sql("DELETE FROM coupon_remind WHERE template_id = $id");
# Many of one shop, among others who are not concerned, and all of them stay in their place since another
# channel reminds them at the same time; and few of another shop.
sql(q{SELECT coupon_channel_enable('app', false)});
sql("INSERT INTO coupon_template (id, shop_number, name, discount_value, status, receive_start) SELECT 400 + s, s, 'a', 1, 'published', now() + interval '9 hours 56 min' FROM generate_series(1, 2) s");
sql("SELECT DISTINCT code FROM generate_series(100001, 120000) u, coupon_remind_create(401, u, 'ch4', 30)") eq '0' or die;
sql("SELECT DISTINCT code FROM generate_series(1, 25000) u, unnest('{app,ch4}'::text[]) c, coupon_remind_create(401, u, c, 30)") eq '0' or die;
sql('SELECT DISTINCT code FROM generate_series(1, 3) u, coupon_remind_create(402, u, \'app\', 30)') eq '0' or die;
is(sql(q{BEGIN; SELECT fired, missed FROM coupon_remind_tick(); SELECT idx_tup_fetch < 90000 FROM pg_stat_xact_user_tables WHERE relname = 'coupon_remind'; ROLLBACK;
	SELECT fired, missed FROM coupon_remind_tick()}), "25003|0\nt\n25003|0", 'before: each once, read once, and again where it was rolled back');
is(sql('SELECT count(*) FROM coupon_remind WHERE template_id IN (401, 402) AND user_id <= 25000 AND (bitmap - fired)::text !~ \'app\''), '25003', 'before: all are marked');
is(sql('SELECT a.last > b.last FROM (SELECT max(id) AS last FROM coupon_notification WHERE template_id = 401) a, (SELECT max(id) AS last FROM coupon_notification WHERE template_id = 402) b'), 't', 'before: shops take turns');
sql('DELETE FROM coupon_remind WHERE template_id IN (401, 402); DELETE FROM coupon_notification');
channel('app', 'ok/night', sql(q{SELECT format('quiet_from => %L, quiet_until => %L, time_zone => %L', (now() AT TIME ZONE 'Asia/Shanghai' - interval '2 hours')::time, (now() AT TIME ZONE 'Asia/Shanghai')::time, 'Asia/Shanghai')}));
# Through midnight, and on the days when clocks are changed.
is(sql(q{SELECT ends - begins, (ends AT TIME ZONE time_zone)::time FROM coupon_quiet_hours JOIN coupon_channel USING (channel) ORDER BY begins LIMIT 1}), '02:00:00|' . sql(q{SELECT quiet_until FROM coupon_channel WHERE channel = 'app'}), 'the next is tomorrow');
for my $case ([ "quiet_from => '22:00'", qr/must be given together/ ], [ "quiet_from => '22:00', quiet_until => '08:00'", qr/must be given together/ ], [ "time_zone => 'Asia/Shanghai'", qr/must be given together/ ],
	[ "quiet_from => '22:00', quiet_until => '22:00', time_zone => 'UTC'", qr/are the same/ ], [ "quiet_from => '22:00', quiet_until => '08:00', time_zone => 'Mars/Phobos'", qr/time zone "Mars\/Phobos" not recognized/ ],
	[ "quiet_reminders => 'loud'", qr/quiet_reminders "loud" is not known/ ], [ 'per_second => 0', qr/per_second 0 is out of range/ ], [ 'per_second => 100001', qr/per_second 100001 is out of range/ ])
{
	like(error_of("SELECT coupon_channel_set('app', 'http://127.0.0.1/', $case->[0])"), $case->[1], "not $case->[0]");
}
is(sql(q{SELECT endpoint ~ 'night' FROM coupon_channel WHERE channel = 'app'}), 't', 'nothing was changed');

# So many requests in a second: counted over the seconds in between, whatever the machine.
channel('app', 'ok/rate', 'per_second => 40');
sql('SELECT coupon_channel_enable(\'app\', false)');
announce(301, 'app', 301, 400);
$id = reminders_due('app', 1001, 1010);
await(q{count(*) = 110 FROM coupon_notification}, 'a hundred and ten wait');
sql('SELECT coupon_channel_enable(\'app\')');
await('count(*) = 0 FROM coupon_notification', 'all leave');
my @times = sort { $a <=> $b } map { $_->{time} } arrived('ok/rate');
is(scalar(@times), 110, 'each once');
my $most = 0;
for my $i (0 .. $#times)
{
	my $n = grep { $_ >= $times[$i] && $_ < $times[$i] + 1 } @times;
	$most = max($most, $n);
}
cmp_ok($times[-1] - $times[0], '>', 2, 'it takes its time');
note("$most in the busiest second");
my @users = map { users_of($_) } arrived('ok/rate');
my ($last) = grep { $users[$_] > 1000 } reverse 0 .. $#users;
cmp_ok($last, '<', 40, 'reminders go first all the same');
# What is not sent takes nothing of it: at 40 a second these would need a minute.
sql(q{SELECT coupon_channel_enable('app', false)});
sql('SELECT coupon_contact_mute(u) FROM generate_series(2001, 4400) u');
reminders_due('app', 2001, 4401);
await('count(*) = 2401 FROM coupon_notification', 'muted ones wait');
sql(q{SELECT coupon_channel_enable('app')});
await('count(*) = 0 FROM coupon_notification', 'all are over');
cmp_ok(sql(q{SELECT extract(epoch FROM max(ended_at) - min(ended_at)) FROM coupon_notification_history WHERE state = 'muted' AND user_ids[1] > 2000}), '<', 2400 / 40 / 3, 'what is not sent takes no part of the rate');

# A short outage is one failure, however many requests it meets.
switch_to('blip', 'hang');
channel('ch3', 'switch/blip', q{timeout => '1 s', max_in_flight => 60});
my $ids = tests('ch3', 60, 'number');
await_arrived('switch/blip', 60);
switch_to('blip', 'ok');
await("count(*) = 60 FROM coupon_notification_history WHERE id IN ($ids) AND state = 'delivered'", 'after a short outage they come');
is(sql("SELECT max(attempts) FROM coupon_notification_history WHERE id IN ($ids)"), '2', 'at the second attempt');
cmp_ok(sql("SELECT extract(epoch FROM max(sent_at) - min(due_at)) FROM coupon_notification_history WHERE id IN ($ids)"), '<', 45, 'and not after the pause of a minute that sixty failures in a row would bring');

# An answer that lay there while nobody could look is none that timed out: it is not asked for again.
channel('ch4', 'slow/1000', q{timeout => '3 s'});
$id = tests('ch4', 1, 'number');
await_arrived('slow/1000', 1);
my $sent = sql('SELECT now()');
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE coupon_notification IN ACCESS EXCLUSIVE MODE');
sql('SELECT coupon_worker_wake()');
await(q{count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'coupon worker' AND NOT l.granted}, 'the worker waits for the queue');
await("clock_timestamp() > '$sent'::timestamptz + interval '4 s'", 'for longer than a request may take');
$locker->query_safe('COMMIT');
$locker->quit;
await("state = 'delivered' FROM coupon_notification_history WHERE id = $id", 'then the answer is read');
is(sql("SELECT attempts FROM coupon_notification_history WHERE id = $id") . ' ' . scalar(lines_arrived('slow/1000')), '1 1', 'that of the first attempt');

# A reminder that was tried keeps its id, whatever becomes of its sale.
for my $case ([ 'offline', "status = 'offline'", "status = 'published'" ], [ 'put off', "receive_start = now() + interval '1 hour'", "receive_start = now() + interval '29 min'" ])
{
	my ($what, $away, $back) = @$case;
	(my $path = $what) =~ tr/ /_/;
	switch_to($path, 'status/503');
	channel('ch4', "switch/$path");
	$id = reminders_due('ch4', 31, 31);
	await("attempts > 0 AND leased_until IS NULL FROM coupon_notification WHERE template_id = $id", "$what: a reminder was tried");
	sql("UPDATE coupon_template SET $away WHERE id = $id; UPDATE coupon_notification SET next_at = now() WHERE template_id = $id; SELECT coupon_worker_wake()");
	switch_to($path, 'ok');
	await("next_at > now() + interval '3 s' AND leased_until IS NULL FROM coupon_notification WHERE template_id = $id", "$what: it waits where it is");
	sql("UPDATE coupon_template SET $back WHERE id = $id; UPDATE coupon_notification SET next_at = now() WHERE template_id = $id; SELECT coupon_worker_wake()");
	await("state = 'delivered' FROM coupon_notification_history WHERE template_id = $id", "$what: and comes in its time");
	my %ids = map { $_->{headers}{'webhook-id'} => 1 } arrived("switch/$path");
	is(scalar(keys %ids), 1, "$what: always under one id");
}
$node->stop;
stop_process($receiver);
done_testing();
