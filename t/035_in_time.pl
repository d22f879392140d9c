# What has a moment comes in time, whatever else there is to do.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('in_time', "coupon.databases = 'postgres'\ncoupon.batch_size = 20");
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Forty distributions become due at the same time, and a reminder a second later: it waits
# for some of them at most, not for a turn of each.
sql(q{
	INSERT INTO coupon_template (id, name, discount_value, status, receive_start)
	VALUES (1, 'given', 1, 'published', now()), (2, 'later', 1, 'published', now() + interval '1 hour');
	SELECT outcome FROM coupon_remind_create(2, 1, 'app', 5)});
sql(q{DO $$
DECLARE
	t record;
BEGIN
	FOR i IN 1..40 LOOP
		SELECT * INTO t FROM coupon_task_create('task ' || i, 1);
		EXECUTE format('INSERT INTO %s (user_id) SELECT (%s + g)::text FROM generate_series(1, 3000) g', t.stage, i * 3000);
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
is(sql('SELECT count(*) FROM user_coupon'), '120000', 'with all their coupons');
$node->stop;
done_testing();
