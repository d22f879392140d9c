# A smoke of the workers where everything that is known of tables is forgotten at every
# lock: they fold, fire a reminder, run a distribution, push what it announces.
# Run by .ci/check discard.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = start_receiver();
my $node = new_node('discard', "coupon.databases = '*'");
$node->safe_psql('postgres', qq{
	SELECT coupon_channel_set('app', 'http://127.0.0.1:$receiver->{port}{http}/ok', timeout => '5 min');
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
	VALUES (1, 'a', 100, 1, 'published', now()), (2, 'b', 100, 1, 'published', now() + interval '50 minutes')});
$node->safe_psql('postgres', q{
	INSERT INTO coupon_remind (user_id, template_id, bitmap) VALUES (7, 2, '{app@55}');
	SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(1, 5)))});
my $task = $node->safe_psql('postgres', q{SELECT task_id FROM coupon_task_create('t', 1, '{app}')});
$node->safe_psql('postgres', "INSERT INTO coupon_stage_$task (user_id) SELECT g FROM generate_series(4, 20) g");
$node->append_conf('postgresql.conf', 'debug_discard_caches = 1');
$node->restart;
is($node->safe_psql('postgres', 'SHOW debug_discard_caches'), '1', 'nothing is remembered');
$node->safe_psql('postgres', "SELECT code FROM coupon_task_submit($task); SELECT coupon_worker_wake()");
ok($node->poll_query_until('postgres', "SELECT state = 'success' AND issued = 15 FROM coupon_task WHERE id = $task"), 'a distribution');
ok($node->poll_query_until('postgres', 'SELECT NOT EXISTS (SELECT FROM coupon_notification) AND count(*) >= 16 FROM coupon_notification_history'), 'pushes are delivered');
is($node->safe_psql('postgres', q{SELECT kind, state, count(*) FROM coupon_notification_history GROUP BY 1, 2 ORDER BY 1, 2}),
	"coupon|delivered|15\nreminder|delivered|1", 'what was announced, and a reminder');
ok($node->poll_query_until('postgres', 'SELECT NOT EXISTS (SELECT FROM user_coupon WHERE id > (SELECT upto FROM coupon_watermark WHERE holder = 0))'), 'coupons are folded');
books_balance($node, 'after all');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'the server has stayed up');
$node->stop;
done_testing();
