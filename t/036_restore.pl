# What waits in the outbox of a dump is neither lost nor sent by a copy of it, until somebody
# says that the copy is whole and to send: with names, texts and addresses that came last.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The original has no worker here: it would send.
my ($node, $receiver) = start_both('restore', "coupon.databases = 'plain, parallel'");
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, receive_start)
		VALUES (1, 'given', 1, 'published', now()), (2, 'sale', 1, 'published', now() + interval '2 hours');
	SELECT coupon_message_set('coupon', 'sms', 'you have {name}', 'so');
	SELECT coupon_contact_set(7, 'sms', '+49 7');
	SELECT outcome FROM coupon_remind_create(2, 7, 'sms', 60);
	CREATE TABLE slow (n int CHECK (pg_sleep(0.5)::text = '')); INSERT INTO slow SELECT generate_series(1, 6)});
channel('sms', 'ok/copy', 'user_id_is_address => false');
my $task = sql(q{SELECT task_id FROM coupon_task_create('t', 1, notify => '{sms}')});
sql("INSERT INTO coupon_stage_$task VALUES ('7'); CALL coupon_task_run($task)");
is(sql('SELECT count(*) FROM coupon_notification'), '1', 'an announcement waits');

# Wait until the worker of a database has looked around.
sub looked
{
	my ($db) = @_;
	my $turns = qq{(SELECT turns FROM coupon_stat_worker WHERE kind = 'worker' AND database = '$db')};
	ok($node->poll_query_until($db, "SELECT $turns > 0"), "$db: the worker is there");
	my $before = sql("SELECT $turns", $db);
	ok($node->poll_query_until($db, "WITH wake AS MATERIALIZED (SELECT coupon_worker_wake()) SELECT $turns > $before + 2 FROM wake"), "$db: and looks around");
	return;
}

# What comes of the copy when all of it is there, and is switched on so.
sub check_copy
{
	my ($db, $word, $switch_on) = @_;
	my $before = arrived('ok/');
	looked($db);
	is(scalar(arrived('ok/')), $before, "$db: nothing is sent");
	is(sql('SELECT attempts, last_error IS NULL FROM coupon_notification', $db), '0|t', "$db: the announcement waits");
	is(sql(q{SELECT enabled, disabled_reason FROM coupon_stat_channel WHERE channel = 'sms'}, $db), 'f|it comes from a dump or another server', "$db: and one is told why");
	is(sql(q{SELECT status FROM coupon_health WHERE check_name = 'channels'}, $db), 'warning', "$db: also by coupon_health");
	$switch_on->();
	await_arrived($word, 1);
	my ($sent) = arrived($word);
	is(join('|', @{ data_of($sent) }{qw(name subject)}, address_of($sent)), 'given|you have given|+49 7', "$db: switched on, it sends with name, text and address");
	sql(q{UPDATE coupon_template SET receive_start = now() + interval '55 min' WHERE id = 2}, $db);
	await_arrived($word, 2);
	my ($reminder) = grep { data_of($_)->{template_id} eq '2' } arrived($word);
	is(join('|', @{ data_of($reminder) }{qw(name minutes)}), 'sale|55', "$db: and reminds");
	return;
}

# Plain, and nothing more comes for a while when half of the tables are there.
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');
my $text = slurp_file($dump) =~ s/^\\(un)?restrict .*\n//mgr;		# it is cut in two
my $at = index($text, 'COPY public.coupon_message');
my $queue = index($text, 'COPY public.coupon_notification');
cmp_ok($at, '>', 0, 'the dump can be cut') or BAIL_OUT($text);
# In the worst order: the outbox and its channel first.
my ($channels) = $text =~ /^(COPY public\.coupon_channel .*?^\\\.\n)/ms;
my ($outbox) = $text =~ /^(COPY public\.coupon_notification .*?^\\\.\n)/ms;
my $first = index($text, 'COPY public.');
sql('CREATE DATABASE plain');
for ([ 'first', substr($text, 0, $first) . $channels . $outbox ], [ 'rest', substr($text, $first) =~ s/\Q$channels\E//r =~ s/\Q$outbox\E//r ])
{
	my ($name, $part) = @$_;
	my $said;
	append_to_file("$dump.$name", "SET search_path = '';\n") if $name eq 'rest';
	append_to_file("$dump.$name", $part);
	ok(IPC::Run::run([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('plain'), '-f', "$dump.$name" ], '>', \$said, '2>&1'), "plain: $name") or diag($said);
	next unless $name eq 'first';
	looked('plain');
	is(scalar(arrived('ok/copy')), 0, 'plain: nothing is sent amid a restore');
}
check_copy('plain', 'ok/copy', sub { sql('SELECT coupon_channel_enable(channel) FROM coupon_channel', 'plain') });

# By several processes, one of which is slow.
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dump.custom", 'postgres' ], 'pg_dump -Fc');
sql('CREATE DATABASE parallel');
my $restore = IPC::Run::start([ 'pg_restore', '-j', '2', '--exit-on-error', '-d', $node->connstr('parallel'), "$dump.custom" ], '>', \my $out, '2>&1');
ok($node->poll_query_until('parallel', q{SELECT count(*) > 0 FROM pg_extension WHERE extname = 'coupon'}), 'parallel: the restore has begun');
looked('parallel');
ok($restore->finish, 'pg_restore -j') or diag($out);
check_copy('parallel', 'ok/parallel', sub { channel('sms', 'ok/parallel', undef, 'parallel') });

# So is a database that is copied as a template.
$node->append_conf('postgresql.conf', "coupon.databases = 'plain'");
$node->restart;
sql('CREATE DATABASE twin TEMPLATE parallel');
is(sql(q{SELECT enabled FROM coupon_stat_channel WHERE channel = 'sms'}, 'twin'), 'f', 'a copied database sends nothing');
is(sql(q{SELECT enabled FROM coupon_stat_channel WHERE channel = 'sms'}, 'parallel'), 't', 'the original does');
$node->stop;
done_testing();
