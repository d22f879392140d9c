# Dump and restore, several databases in one cluster with the same ids, DROP
# and CREATE EXTENSION in the middle of everything, other schemas.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('databases', '');
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'a', 100, 10, 'published');
	SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(1, 40)));
	SELECT coupon_fold();
	SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(41, 60)));
	SELECT coupon_grant('pg_monitor', 'monitor')});

# A copy made with CREATE DATABASE … TEMPLATE has the same table OIDs.
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
$node->safe_psql('copy', 'SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(61, 70)))');
is($node->safe_psql('postgres', 'SELECT coupon_stock_left(1)'), '40', 'a cloned database has a stock of its own');
is($node->safe_psql('copy', 'SELECT coupon_stock_left(1)'), '30', 'and so has the original');
books_balance($node, 'clone', 'copy');

# A database with the number of one that was dropped has a stock of its own, too.
$node->safe_psql('template1', 'CREATE DATABASE original TEMPLATE postgres');
for my $round (1, 2)
{
	$node->safe_psql('template1', 'CREATE DATABASE again TEMPLATE original OID = 123456');
	is($node->safe_psql('again', 'SELECT count(*) FROM coupon_receive_many(1, ARRAY(SELECT generate_series(101, 160))) WHERE code = 0'),
		'40', "copy $round with that number sells all that is left");
	$node->safe_psql('template1', 'DROP DATABASE again');
}

# Dump and restore, rows of every leaf included.
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), $dump ], 'pg_restore');
is($node->safe_psql('restored', 'SELECT count(*), coupon_stock_left(1) FROM user_coupon'), '60|40', 'all coupons are there');
is($node->safe_psql('restored', 'SELECT count(*) FROM coupon_role'), '1', 'and grants');
is($node->safe_psql('restored', q{SELECT status FROM coupon_health WHERE check_name = 'triggers'}), 'ok', 'and triggers as they were');
cmp_ok($node->safe_psql('restored', 'SELECT coupon_next_id()'), '>', $node->safe_psql('restored', 'SELECT max(id) FROM user_coupon'), 'ids go on above');
is($node->safe_psql('restored', q{SELECT count(*) FILTER (WHERE code = 0) FROM coupon_receive_many(1, ARRAY(SELECT generate_series(1, 200)))}), '40', 'the rest can be claimed');
books_balance($node, 'restored', 'restored');
$node->command_ok([ 'pg_restore', '--data-only', '--disable-triggers', '-f', "$dump.sql", $dump ], 'a data-only restore');
$node->safe_psql('postgres', 'CREATE DATABASE loose');
$node->safe_psql('loose', 'CREATE EXTENSION coupon');
$node->safe_psql('loose', "\\i $dump.sql");
is($node->safe_psql('loose', 'SELECT coupon_stock_left(1)'), '40', 'a restore with --disable-triggers');
is($node->safe_psql('loose', q{SELECT status FROM coupon_health WHERE check_name = 'triggers'}), 'critical', 'leaves triggers that coupon_health notices');

# DROP and CREATE EXTENSION, with a session that has claimed before.
my $session = $node->background_psql('copy', on_error_stop => 0);
is($session->query_safe('SELECT code FROM coupon_receive(1, 80)'), '0', 'before the drop');
$node->safe_psql('copy', 'DROP EXTENSION coupon');
$node->safe_psql('copy', 'CREATE SCHEMA shop; CREATE EXTENSION coupon SCHEMA shop');
is($session->query_safe('SELECT code FROM shop.coupon_receive(1, 80)'), '1', 'created again: empty');
$session->query_safe(q{INSERT INTO shop.coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'a', 2, 10, 'published')});
is($session->query_safe('SELECT code FROM shop.coupon_receive(1, 80)'), '0', 'and its stock starts anew');
is($session->query_safe('SELECT shop.coupon_stock_left(1)'), '1', 'in a schema that is in nobody\'s path');
$node->safe_psql('copy', 'ALTER SCHEMA shop RENAME TO "Shop 2"');
is($session->query_safe('SELECT code FROM "Shop 2".coupon_receive(1, 82)'), '0', 'which is renamed under a running session');
is($session->query_safe('SELECT count(*) FROM "Shop 2".coupon_wallet(82)'), '1', 'wallets as well');
# A worker may have been quicker, and have folded all there is.
$session->query_safe('SELECT "Shop 2".coupon_fold()');
is($session->query_safe('SELECT sum(folded) FROM "Shop 2".coupon_stock'), '2', 'folding as well');
$node->safe_psql('copy', 'REINDEX TABLE CONCURRENTLY "Shop 2".user_coupon');
is($session->query_safe('SELECT code FROM "Shop 2".coupon_receive(1, 83)'), '2', 'and reindexed');
is($session->query_safe('SELECT count(*) FROM "Shop 2".coupon_verify() WHERE NOT ok'), '0', 'the books balance');
$session->quit;
$node->safe_psql('postgres', 'DROP DATABASE copy');
$node->safe_psql('postgres', 'DROP EXTENSION coupon; CREATE EXTENSION coupon');
is($node->safe_psql('postgres', 'SELECT code FROM coupon_receive(1, 1)'), '1', 'nothing is left of the old one');
# The schema of the extension gets another name: all goes on under it.
$node->safe_psql('postgres', 'CREATE DATABASE renamed');
$node->safe_psql('postgres', 'CREATE ROLE renamed_office');
is($node->safe_psql('renamed', q{
	CREATE SCHEMA before; CREATE EXTENSION coupon SCHEMA before; SET search_path = before, after, public;
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'a', 10, 1, 'published');
	SELECT task_id AS task FROM coupon_task_create('t', 1) \gset
	INSERT INTO coupon_stage_:task (user_id) VALUES ('7');
	ALTER SCHEMA before RENAME TO after;
	SELECT coupon_grant('renamed_office', 'operator', 7);
	SELECT count(*) > 20 FROM coupon_grant_objects('operator');
	SET ROLE renamed_office; SELECT count(*) FROM coupon_template; RESET ROLE;
	SELECT coupon_grant_revoke('renamed_office', 'operator', 7);
	CALL coupon_task_run(:task);
	UPDATE coupon_task SET finished_at = now() - interval '3 years';
	CALL coupon_expire(); CALL coupon_purge();
	SELECT (SELECT count(*) FROM coupon_task), outcome FROM coupon_receive(1, 8);
	SELECT count(*) > 10 FROM coupon_health; SELECT count(*) FROM coupon_cron_jobs()}), "\nt\n0\n\n0|ok\nt\n2", 'a schema that is renamed');
like(($node->psql('renamed', 'SELECT after.coupon_cron_install()'))[2], qr/pg_cron is not installed/, 'pg_cron is looked for as ever');

$node->stop;
done_testing();
