# The clock is set back by an hour while the worker runs: nothing waits for the
# hour to pass again.  Then forward: a transaction that was open for an hour.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use File::Temp ();
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = File::Temp->newdir;
chmod 0755, $dir;
my $back = "$dir/back";
system('cc', '-shared', '-fPIC', '-O2', '-Wall', '-Werror', 't/lib/clock_test.c', '-o', "$dir/clock.so", '-ldl') == 0
	or BAIL_OUT('cannot compile t/clock_test.c');

my ($node, $receiver);
{
	local $ENV{LD_PRELOAD} = "$dir/clock.so";
	local $ENV{CLOCK_BACK} = $back;
	($node, $receiver) = start_both('clock', '');
}

channel('sms', 'ok');
my $early = tests('sms', 3, 'early');
await("count(*) = 3 FROM coupon_notification_history WHERE id IN ($early)", 'pushes leave');
my $before = sql('SELECT extract(epoch FROM clock_timestamp())::bigint');
append_to_file($back, '3600');
cmp_ok(sql('SELECT extract(epoch FROM clock_timestamp())::bigint'), '<', $before - 3000, 'the clock is an hour behind');

my $late = tests('sms', 3, 'late');
await("count(*) = 3 FROM coupon_notification_history WHERE id IN ($late)", 'pushes leave after it');
my $id = new_template('5 minutes 2 seconds');
sql("SELECT coupon_remind_create($id, 1, 'sms', 5)");
await("count(*) = 1 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", 'a reminder fires');

# Created more than an hour before its moment, committed just ahead of it, when
# the worker has looked a moment ago and sleeps for up to a minute.
$id = new_template('65 minutes 8 seconds');
my $open = $node->background_psql('postgres');
is($open->query_safe("BEGIN; SELECT code FROM coupon_remind_create($id, 1, 'sms', 5)"), '0', 'a reminder in more than an hour');
await_turn();
unlink $back;
$open->query_safe('COMMIT');
$open->quit;
await("count(*) = 1 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", 'committed an hour later, it fires');
cmp_ok(sql("SELECT extract(epoch FROM sent_at - due_at) FROM coupon_notification_history WHERE template_id = $id"), '<', 5, 'at its moment');

# An id that was made elsewhere does not push the generator.
is(sql(q{INSERT INTO coupon_template (id, name, discount_value) VALUES (4000000000000000000, 'from elsewhere', 1);
	SELECT coupon_next_id() < 4000000000000000000}), 't', 'an id from elsewhere');
# A watermark that a restore brings, of a server whose clock was ahead, does.
sql(q{INSERT INTO coupon_watermark (holder, upto) SELECT 0, coupon_next_id() + (80 * 86400000::bigint << 22)
	ON CONFLICT (holder) DO UPDATE SET upto = excluded.upto});
is(sql('SELECT coupon_next_id() > upto FROM coupon_watermark'), 't', 'ids stay above a watermark that was restored');
$node->stop;
stop_process($receiver);
done_testing();
