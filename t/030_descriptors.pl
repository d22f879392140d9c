# Receivers that hang take no more of the worker's file descriptors than leave
# PostgreSQL its own, nor the places of other channels.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $limit = 200;
my ($node, $receiver) = start_both('descriptors');

# The same server with few descriptors for each process.
$node->stop;
local %ENV = $node->_get_env();
system_or_bail('sh', '-c', "ulimit -n $limit && exec pg_ctl -w -s -D '" . $node->data_dir . "' -l '" . $node->logfile . "' start");
$node->_update_pid(1);

for my $name ('sms', 'app', 'ch3')
{
	channel($name, 'hang', "max_in_flight => 1024, timeout => '10 min'");
	tests($name, 300, 'waits');
}
channel('ch4', 'ok/four', 'max_in_flight => 1024');
await(q{sum(leased) > 30 FROM coupon_stat_channel WHERE channel IN ('sms', 'app', 'ch3')}, 'three hang');
my $ids = tests('ch4', 300, 'comes');
await("count(*) = 300 FROM coupon_notification_history WHERE id IN ($ids) AND state = 'delivered'", 'the fourth does not wait for them');
my $reminders = reminders_due('ch4', 1, 50);
await(q{count(*) = 50 FROM coupon_notification_history WHERE kind = 'reminder' AND state = 'delivered'}, 'nor do reminders');
my $worker = sql(q{SELECT pid FROM coupon_stat_worker WHERE kind = 'worker' AND database = 'postgres'});
cmp_ok(scalar(grep { (readlink($_) || '') =~ /^socket:/ } glob("/proc/$worker/fd/*")), '<', $limit / 2, 'descriptors are left');
is(sql(q{SELECT errors FROM coupon_stat_worker WHERE kind = 'worker' AND database = 'postgres'}), '0', 'no job has failed');
is(sql(q{SELECT count(*) FROM coupon_notification WHERE attempts > 1}), '0', 'and nothing was tried in vain');
$node->stop('immediate');
done_testing();
