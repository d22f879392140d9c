# More databases than there may be workers: they take turns, and nothing is left undone.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = start_receiver();
my $url = "http://127.0.0.1:$receiver->{port}{http}";
my $node = new_node('turns', "coupon.max_workers = 2");
my @databases = map { "shop$_" } 1 .. 4;
$node->safe_psql('postgres', 'DROP EXTENSION coupon');
for my $db (@databases)
{
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, qq{
		CREATE EXTENSION coupon;
		INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'a', 100, 1, 'published');
		SELECT coupon_channel_set('app', '$url/ok');
		SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(1, 10)));
		SELECT coupon_channel_test('app', 'user of $db')});
}
# Watch until all is done; there are never more of them than allowed.
my ($most, %done) = (0);
my $until = time + $PostgreSQL::Test::Utils::timeout_default;
while (keys %done < @databases && time < $until)
{
	my $n = $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('coupon worker', 'coupon mailer')});
	$most = $n if $n > $most;
	for my $db (grep { !$done{$_} } @databases)
	{
		$done{$db} = 1 if $node->safe_psql($db, q{SELECT (SELECT folded FROM coupon_stock WHERE template_id = 1) = 10
			AND EXISTS (SELECT FROM coupon_notification_history WHERE state = 'delivered')}) eq 't';
	}
}
is(join(' ', sort keys %done), join(' ', @databases), 'each database has had its turn');
is($most, 2, 'never more than two at a time');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'coupon launcher'}), '1', 'besides the launcher');

# With room for all, all are there, and stay.
$node->append_conf('postgresql.conf', 'coupon.max_workers = 4');
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 4 FROM pg_stat_activity WHERE backend_type = 'coupon worker'}), 'with room for all, all are there');
$node->stop;
stop_process($receiver);
done_testing();
