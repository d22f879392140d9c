# A standby answers from the tables and stores nothing; after promotion, after
# a restore of an older base backup, and without preloading, nothing is
# oversold and no id comes twice.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', '', allows_streaming => 1);
$primary->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'a', 100, 10, 'published'), (2, 'b', 100, 10, 'published');
	SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(1, 40)))});
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

$primary->safe_psql('postgres', q{SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(41, 60))); SELECT coupon_fold(); SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(61, 70)))});
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is($standby->safe_psql('postgres', 'SELECT coupon_stock_left(1), coupon_stock_left(2)'), '30|100', 'a standby counts rows');
is($standby->safe_psql('postgres', 'SELECT claim_state, stock_left FROM coupon_template_get(1)'), 'open|30', 'and shows templates');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM coupon_wallet(5)'), '1', 'and wallets');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM coupon_verify() WHERE NOT ok'), '0', 'and verifies');
is($standby->safe_psql('postgres', q{SELECT entries FROM coupon_stat_cache}), '0', 'nothing is stored in its shared memory');
for my $call ('coupon_receive(1, 99)', q{coupon_receive_many(1, '{99}')}, 'coupon_receive_new_user(1)', 'coupon_next_id()', 'coupon_stock_rebuild(1)')
{
	my ($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT $call");
	like($err, qr/VC002/, "$call on a standby");
}

# More claims, then a failover: what the standby has is what counts.
$primary->safe_psql('postgres', q{SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(71, 80)))});
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
my $newest = $primary->safe_psql('postgres', 'SELECT coupon_next_id()');
my $in_table = $primary->safe_psql('postgres', 'SELECT max(id) FROM user_coupon');
$primary->stop('immediate');
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is($standby->safe_psql('postgres', 'SELECT coupon_stock_left(1)'), '20', 'promoted: counted again');
is($standby->safe_psql('postgres', q{SELECT count(*) FILTER (WHERE code = 0) FROM coupon_receive_many(1, ARRAY(SELECT generate_series(1, 200)))}), '20', 'exactly the rest can be claimed');
cmp_ok($standby->safe_psql('postgres', 'SELECT min(id) FROM user_coupon WHERE user_id BETWEEN 81 AND 100'), '>', $in_table, 'ids go on above');
books_balance($standby, 'promoted');
$standby->stop;

# An older base backup: what it has is counted, no more and no less.
my $older = PostgreSQL::Test::Cluster->new('older');
$older->init_from_backup($primary, 'base');
$older->start;
is($older->safe_psql('postgres', q{SELECT count(*) FILTER (WHERE code = 0) FROM coupon_receive_many(1, ARRAY(SELECT generate_series(1, 200)))}), '60', 'restored: the rest of its own time');
books_balance($older, 'restored');

# Without the library preloaded: everything but claiming.
$older->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_stat_statements'");
$older->restart;
my ($rc, $out, $err) = $older->psql('postgres', "\\set VERBOSITY verbose\nSELECT coupon_receive(1, 1)");
like($err, qr/VC001/, 'no preload: VC001');
like($err, qr/HINT:  Run ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements', 'coupon'; and restart the server\./, 'the hint is the line to run');
my ($line) = $err =~ /Run (ALTER SYSTEM .*?;)/;
like($older->safe_psql('postgres', q{SELECT advice FROM coupon_health WHERE check_name = 'preload'}), qr/^\Q$line\E and restart$/, 'so is the advice of coupon_health');
$older->safe_psql('postgres', 'CREATE ROLE plain');
(undef, undef, $err) = $older->psql('postgres', "SET ROLE plain; SELECT coupon_next_id()");
unlike($err, qr/pg_stat_statements/, 'which does not tell everybody what is preloaded');
is($older->safe_psql('postgres', 'SELECT coupon_stock_left(1), coupon_stock_left(2)'), '0|100', 'no preload: counted from the tables');
is($older->safe_psql('postgres', q{SELECT count(*) FROM coupon_outcomes()}), '31', 'no preload: pure functions work');
is($older->safe_psql('postgres', q{SELECT remind_bitmap('sms', 10) | '{email@20}'}), '{email@20,sms@10}', 'no preload: remind_bitmap works');
is($older->safe_psql('postgres', q{SELECT status FROM coupon_health WHERE check_name = 'preload'}), 'critical', 'no preload: coupon_health tells');
$older->safe_psql('postgres', q{UPDATE coupon_template SET total_stock = 50 WHERE id = 2; INSERT INTO coupon_template (id, name, discount_value) VALUES (3, 'c', 1); DELETE FROM coupon_template WHERE id = 3});
($rc, $out, $err) = $older->psql('postgres', "\\set VERBOSITY verbose\nUPDATE coupon_template SET total_stock = 50 WHERE id = 1");
like($err, qr/VC006/, 'no preload: the total still cannot fall below what was issued');
($rc, $out, $err) = $older->psql('postgres', "\\set VERBOSITY verbose\nDELETE FROM coupon_template WHERE id = 1");
like($err, qr/VC007/, 'no preload: nor can an issued template be deleted');

# The hint is followed as it stands.
$older->safe_psql('postgres', $line);
$older->adjust_conf('postgresql.conf', 'shared_preload_libraries', undef);
$older->restart;
is($older->safe_psql('postgres', 'SHOW shared_preload_libraries'), 'pg_stat_statements, coupon', 'the server starts with both libraries');
is($older->safe_psql('postgres', 'SELECT code FROM coupon_receive(2, 1)'), '0', 'and coupons can be claimed');
$older->stop;
done_testing();
