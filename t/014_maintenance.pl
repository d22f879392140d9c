# coupon_expire and coupon_purge: interrupted and called again, from several
# places at once beside claims, with a stage that somebody reads, on a standby.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('tidy', 'wal_level = replica', allows_streaming => 1);
my $over = q{UPDATE user_coupon SET status = 0, use_start = '2020-01-01', use_end = '2020-01-02' WHERE user_id <= 20000};
my $left = 'SELECT count(*) FROM user_coupon WHERE status <> 3 AND user_id <= 20000';
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, discount_value, total_stock, status, receive_start)
	VALUES (1, 'a', 10, 20000, 'published', '2019-01-01'), (2, 'b', 10, 1000000, 'published', '2019-01-01');
	SELECT count(*) FROM coupon_receive_many(1, ARRAY(SELECT generate_series(1, 20000)))});
$node->safe_psql('postgres', $over);

# What a batch has done stays, whatever happens to the call.
$node->psql('postgres', "SET coupon.batch_size = 1; SET statement_timeout = '300ms'; CALL coupon_expire()", timed_out => \my $out);
my $n = $node->safe_psql('postgres', $left);
cmp_ok($n, '<', 20000, 'a call that is cancelled has done a part');
cmp_ok($n, '>', 0, 'but not all');
$node->safe_psql('postgres', 'CALL coupon_expire()');
is($node->safe_psql('postgres', $left), '0', 'the next call does the rest');

# From many places, with claims beside it.
$node->safe_psql('postgres', $over);
my $callers = start_pgbench($node, '-c', '4', '-t', '1', '-f', script("SET coupon.batch_size = 100;\nCALL coupon_expire();\n"));
my $claims = start_pgbench($node, '-c', '2', '-T', '2', '-f', script("\\set u random(20001, 900000)\nSELECT coupon_receive(2, :u);\n"));
$_->{handle}->finish for $callers, $claims;
unlike(${ $callers->{out} }, qr/ERROR|aborted/, 'no caller fails');
unlike(${ $claims->{out} }, qr/ERROR|aborted/, 'no claim either');
$node->safe_psql('postgres', 'CALL coupon_expire()');
is($node->safe_psql('postgres', $left), '0', 'all are expired');
is($node->safe_psql('postgres', 'SELECT count(*) FROM user_coupon WHERE status = 3 AND user_id > 20000'), '0', 'and no other');
books_balance($node, 'expire');

# Purging beside claims, from several places; unfolded coupons stay.
$node->safe_psql('postgres', q{UPDATE coupon_template SET status = 'offline' WHERE id = 1;
	ALTER SYSTEM SET coupon.keep_coupons = 30; SELECT pg_reload_conf(); SELECT coupon_fold()});
$callers = start_pgbench($node, '-c', '4', '-t', '1', '-f', script("SET coupon.batch_size = 100;\nCALL coupon_purge();\n"));
$claims = start_pgbench($node, '-c', '2', '-T', '2', '-f', script("\\set u random(20001, 900000)\nSELECT coupon_receive(2, :u);\nSELECT coupon_fold();\n"));
$_->{handle}->finish for $callers, $claims;
unlike(${ $callers->{out} }, qr/ERROR|aborted/, 'no purge fails');
$node->safe_psql('postgres', 'CALL coupon_purge()');
is($node->safe_psql('postgres', 'SELECT count(*), coupon_stock_left(1) FROM user_coupon WHERE template_id = 1'), '0|0', 'all are deleted, and no unit comes back');
is($node->safe_psql('postgres', 'SELECT template_id, problem FROM coupon_verify() WHERE NOT ok'), '', 'coupon_verify agrees');
$node->restart;
is($node->safe_psql('postgres', 'SELECT coupon_stock_left(1)'), '0', 'nor after a restart');

# A stage that somebody reads holds up nothing but its own task.
$node->safe_psql('postgres', q{
	INSERT INTO coupon_task (id, name, template_id, state, finished_at) VALUES (5, 'a', 1, 'success', '2020-01-01'), (6, 'b', 1, 'success', '2020-01-01');
	INSERT INTO coupon_task_failure (task_id, row_num, user_id, cause) VALUES (5, 2, 'x', 'invalid_user_id');
	CREATE TABLE coupon_stage_5 (user_id text)});
my $reader = $node->background_psql('postgres');
$reader->query_safe('BEGIN; SELECT * FROM coupon_stage_5');
$node->safe_psql('postgres', 'CALL coupon_purge()');
is($node->safe_psql('postgres', 'SELECT t.id, f.row_num FROM coupon_task t LEFT JOIN coupon_task_failure f ON f.task_id = t.id'), '5|2', 'a task whose stage is read stays whole');
$reader->query_safe('COMMIT');
$reader->quit;
$node->safe_psql('postgres', 'CALL coupon_purge()');
is($node->safe_psql('postgres', 'SELECT count(*), to_regclass($$coupon_stage_5$$) FROM coupon_task'), '0|', 'until it is not');

# Nor one that cannot be dropped for what its loader has made of it.
$node->safe_psql('postgres', q{
	INSERT INTO coupon_task (id, name, template_id, state, finished_at) VALUES (7, 'a', 1, 'success', '2020-01-01'), (8, 'b', 1, 'success', '2020-01-01');
	CREATE TABLE coupon_stage_7 (user_id text); CREATE TABLE coupon_stage_8 (user_id text);
	CREATE FUNCTION never() RETURNS event_trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() WHERE object_name = 'coupon_stage_7') THEN RAISE EXCEPTION SQLSTATE '54001'; END IF;
	END $$;
	CREATE EVENT TRIGGER never ON sql_drop EXECUTE FUNCTION never()});
my ($ret, undef, $said) = $node->psql('postgres', 'CALL coupon_purge()');
is($ret, 0, 'a stage that cannot be dropped stops nobody');
like($said, qr/WARNING:  the stage of task 7 is left for another day/, 'and is told of');
is($node->safe_psql('postgres', 'SELECT id FROM coupon_task'), '7', 'its task stays, others go');
$node->safe_psql('postgres', 'DROP EVENT TRIGGER never; CALL coupon_purge()');
is($node->safe_psql('postgres', 'SELECT count(*), to_regclass($$coupon_stage_7$$) FROM coupon_task'), '0|', 'until it can be');

# On a standby.
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('tidy_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
for my $p ('coupon_expire', 'coupon_purge')
{
	my ($ret, $o, $err) = $standby->psql('postgres', "\\set VERBOSITY sqlstate\nCALL $p()");
	like($err, qr/VC002/, "$p on a standby is refused");
}
$standby->stop;
$node->stop;
done_testing();
