# Gates: a smaller total, a deletion and a recount wait for open claims, claims
# wait for them, and whoever is waited for may go on.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('gate', 'coupon.gate_timeout = 180s');
sub q1 { return $node->safe_psql('postgres', $_[0]); }
sub waits
{
	my ($event) = @_;
	ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = '$event' AND state = 'active'"), "somebody waits: $event");
}

q1(q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'ten', 10, 10, 'published'), (2, 'untouched', 5, 10, 'published')});
q1(q{SELECT coupon_receive_many(1, '{1,2,3,4,5}')});

my $claimer = $node->background_psql('postgres', on_error_stop => 0);
my $admin;
# After an error a session's stderr is not clean for query_safe any more.
sub new_admin
{
	if ($admin) { eval { $admin->quit } }
	$admin = $node->background_psql('postgres', on_error_stop => 0);
}
new_admin();
my $other = $node->background_psql('postgres', on_error_stop => 0);

# The claim is rolled back: the total can fall.
$claimer->query_safe('BEGIN; SELECT coupon_receive(1, 11)');
$admin->query_until(qr/start/, "\\echo start\nUPDATE coupon_template SET total_stock = 5 WHERE id = 1;\n");
waits('Extension');
$other->query_until(qr/start/, "\\echo start\nSELECT 'other got ' || outcome FROM coupon_receive(1, 21);\n");
waits('advisory');
is($claimer->query_safe('SELECT code FROM coupon_receive(1, 12)'), '0', 'the one waited for goes on');
$claimer->query_safe('ROLLBACK');
$admin->query_safe('SELECT 1');
like($other->query_safe('SELECT 1'), qr/other got out_of_stock/, 'a claim waits at the gate and finds nothing left');
is(q1('SELECT total_stock, coupon_stock_left(1) FROM coupon_template WHERE id = 1'), '5|0', 'lowered');

# The claim commits: it cannot.
q1('UPDATE coupon_template SET total_stock = 10 WHERE id = 1');
$claimer->query_safe('BEGIN; SELECT coupon_receive(1, 11)');
$admin->query_until(qr/start/, "\\echo start\nUPDATE coupon_template SET total_stock = 5 WHERE id = 1;\n");
waits('Extension');
$claimer->query_safe('COMMIT');
new_admin();
is(q1('SELECT total_stock, coupon_stock_left(1) FROM coupon_template WHERE id = 1'), '10|4', 'refused');

# A deletion waits too, and an open claim that is rolled back lets it pass.
$claimer->query_safe('BEGIN; SELECT coupon_receive(2, 11)');
$admin->query_until(qr/start/, "\\echo start\nDELETE FROM coupon_template WHERE id = 2;\n");
waits('Extension');
$claimer->query_safe('ROLLBACK');
$admin->query_safe('SELECT 1');
is(q1('SELECT outcome FROM coupon_receive(2, 1)'), 'not_found', 'deleted');

# Recount; cancelled while it waits, the gate opens again.
$claimer->query_safe('BEGIN; SELECT coupon_receive(1, 31)');
$admin->query_until(qr/start/, "\\echo start\nSELECT 'left ' || coupon_stock_rebuild(1);\n");
waits('Extension');
q1(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'Extension'});
new_admin();
is(q1('SELECT outcome FROM coupon_receive(1, 32)'), 'ok', 'the gate is open after a cancel');
$admin->query_until(qr/start/, "\\echo start\nSELECT 'left ' || coupon_stock_rebuild(1);\n");
waits('Extension');
q1(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'Extension'});
is(q1('SELECT outcome FROM coupon_receive(1, 33)'), 'ok', 'and after a termination');
$claimer->query_safe('COMMIT');
is(q1('SELECT coupon_stock_rebuild(1)'), '1', 'recounted');

# Two backends load a cold template, one of them is cancelled: both answer.
q1('INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (3, $$cold$$, 10, 10, $$published$$)');
$claimer->query_safe('BEGIN; SELECT pg_advisory_xact_lock_shared(1)');
is(q1('SELECT outcome FROM coupon_receive(3, 1)'), 'ok', 'loaded');
$claimer->query_safe('COMMIT');

# Those who queue behind one open claim give up together, not one after the other.
sub seconds_of
{
	my ($n) = @_;
	my $begin = time;
	local %ENV = $node->_get_env();
	my @runs = map {
		my $said = '';
		IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', '-c', q{SET coupon.gate_timeout = '2s'}, '-c', 'SELECT coupon_stock_rebuild(3)' ], '<', \undef, '>', \$said, '2>&1');
	} 1 .. $n;
	eval { $_->finish } for @runs;
	is(scalar(grep { $_->full_result != 0 } @runs), $n, "$n have given up");
	return time - $begin;
}
$claimer->query_safe('BEGIN; SELECT coupon_receive(3, 2)');
my $one = seconds_of(1);
cmp_ok(seconds_of(6), '<', 3 * $one, 'six of them not much later than one');
$claimer->query_safe('COMMIT');
# Who acts for many templates waits at no gate of one: registrations, pages, the worker.
q1(q{INSERT INTO coupon_template (id, name, category, total_stock, discount_value, status) VALUES
	(11, 'gated', 'new_user', 10, 1, 'published'), (12, 'other', 'new_user', 10, 1, 'published'), (13, 'given', 'promotion', 10, 1, 'published'), (14, 'due', 'promotion', 10, 1, 'published')});
q1('SELECT coupon_stock_left(11), coupon_stock_left(13)');
$claimer->query_safe('BEGIN; SELECT coupon_give(11, 1); SELECT coupon_give(13, 1)');
new_admin();
$admin->query_until(qr/start/, "\\echo start\nSELECT coupon_stock_rebuild(11);\n");
waits('Extension');
q1(q{UPDATE coupon_template SET usage_note = 'changed' WHERE id = 11});
is(q1('SELECT template_id, outcome FROM coupon_receive_new_user(2) ORDER BY 1'), "11|out_of_stock\n12|ok", 'a registration passes by a gate');
is(q1('SELECT id, stock_left FROM coupon_browse() WHERE id IN (11, 12) ORDER BY 1'), "11|10\n12|9", 'a page is shown');
is(q1('SELECT coupon_stock_left(11)'), '10', 'and a stock');
is(q1('SELECT template_id, outcome FROM coupon_receive_new_user(1) ORDER BY 1'), "11|out_of_stock\n12|ok", 'an open claim of the user himself is not waited for');
$claimer->query_safe('COMMIT');
$admin->query_safe('SELECT 1');
is(q1('SELECT template_id, outcome FROM coupon_receive_new_user(2) ORDER BY 1'), "11|ok\n12|ok", 'and comes again');

# A distribution that somebody has begun by hand, and that waits at the gate, holds nothing
# that others want: it has begun, and whoever runs what is due passes by it.
$claimer->query_safe('BEGIN; SELECT coupon_give(13, 5)');
$admin->query_until(qr/start/, "\\echo start\nSELECT coupon_stock_rebuild(13);\n");
waits('Extension');
my $task = q1(q{SELECT task_id FROM coupon_task_create('gated', 13)});
q1("INSERT INTO coupon_stage_$task VALUES ('21'), ('22'); SELECT coupon_task_submit($task)");
$other->query_until(qr/start/, "\\echo start\nSET client_min_messages = warning;\nCALL coupon_task_run($task);\n");
waits('advisory');
is(q1("SELECT state FROM coupon_task WHERE id = $task"), 'in_progress', 'a run waits at the gate, and has said that it runs');
my $due = q1(q{SELECT task_id FROM coupon_task_create('other', 14)});
q1("INSERT INTO coupon_stage_$due VALUES ('21'), ('22'); SELECT coupon_task_submit($due)");
q1('SET statement_timeout = 0; CALL coupon_task_run_due()');
is(q1("SELECT state FROM coupon_task WHERE id = $due"), 'success', 'who runs what is due passes by it');

# Nor is the gate waited for when it is shut while a user's other press is.
my $press = $node->background_psql('postgres', on_error_stop => 0);
$claimer->query_safe('COMMIT');
$admin->query_safe('SELECT 1');
$other->query_safe('SELECT 1');
is(q1("SELECT state FROM coupon_task WHERE id = $task"), 'success', 'with the gate open');
$claimer->query_safe('BEGIN; SELECT coupon_give(11, 31)');
$press->query_safe('BEGIN; SELECT coupon_receive_new_user(32)');
$other->query_until(qr/start/, "\\echo start\nSELECT outcome FROM coupon_receive_new_user(32);\n");
waits('transactionid');
$admin->query_until(qr/start/, "\\echo start\nSELECT coupon_stock_rebuild(11);\n");
waits('Extension');
$press->query_safe('ROLLBACK');
like($other->query_safe('SELECT 1'), qr/out_of_stock/, 'what is shut meanwhile is for later');
$press->quit;
$claimer->query_safe('ROLLBACK');
$admin->query_safe('SELECT 1');
books_balance($node, 'gates');
$claimer->quit; $other->quit; eval { $admin->quit };
$node->stop;
done_testing();
