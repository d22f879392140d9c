# Who has had the limit and presses again is refused without a look at the
# table, and is not refused any more as soon as coupons were taken away,
# however that was done.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('limit_cache', 'coupon.max_templates = 16');
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Presses $template for $user twice and returns both codes, and whether the
# second press has looked at the table.
sub press
{
	my ($template, $user) = @_;
	return join ' ', split /\n/, sql(qq{
		SELECT code FROM coupon_receive($template, $user);
		BEGIN;
		SELECT sum(idx_scan) AS before FROM pg_stat_xact_user_tables WHERE relname LIKE 'user_coupon%' \\gset
		SELECT code FROM coupon_receive($template, $user);
		SELECT CASE WHEN sum(idx_scan) > :before THEN 'looked' ELSE 'knew' END
		FROM pg_stat_xact_user_tables WHERE relname LIKE 'user_coupon%';
		COMMIT});
}

sql(q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
	VALUES (1, 'one', 1000, 10, 'published', 1), (2, 'two', 1000, 10, 'published', 2), (3, 'other', 1000, 10, 'published', 1);
	SELECT code FROM coupon_receive(3, 1);
	SELECT code FROM generate_series(1, 20) u, coupon_receive(1, u)});
is(press(1, $_), '4 4 knew', "user $_ is known after one look") for 1, 2, 20;
is(press(1, 30), '0 4 looked', 'a first press after the success looks');
is(press(1, 30), '4 4 knew', 'the next does not');

# A limit of two; a limit that was raised.
is(press(2, 1), '0 0 looked', 'two');
is(press(2, 1), '4 4 knew', 'and no third');
sql('UPDATE coupon_template SET per_user_limit = 3 WHERE id = 2');
is(press(2, 1), '0 4 looked', 'a third after the limit was raised');
is(press(2, 1), '4 4 knew', 'and no fourth');

# Taken away, in every way there is.
sql('SELECT coupon_fold()');
sql('DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 1');
is(press(1, 1), '0 4 looked', 'deleted');
is(press(1, 2), '4 4 knew', 'others are known after one look');
sql('UPDATE user_coupon SET user_id = 40 WHERE template_id = 1 AND user_id = 2');
is(press(1, 2), '0 4 looked', 'given to another user');
is(press(1, 40), '4 4 knew', 'who has it now');
sql(q{INSERT INTO user_coupon (user_id, template_id, use_end, receive_seq) VALUES (50, 2, 'infinity', 3)});
is(press(2, 50), '4 4 knew', 'a third by hand');
sql('UPDATE user_coupon SET receive_seq = 1 WHERE template_id = 2 AND user_id = 50');
is(press(2, 50), '0 0 looked', 'turned into a first');
sql(q{INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (60, 1, 'infinity')});
is(press(1, 60), '4 4 knew', 'by hand');
sql('UPDATE user_coupon SET template_id = 99 WHERE template_id = 1 AND user_id = 60');
is(press(1, 60), '0 4 looked', 'turned into a coupon of another template');
sql(q{SELECT coupon_fold(); SET session_replication_role = replica; DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 3});
is(press(1, 3), '0 4 looked', 'deleted as logical apply does');
is(sql(q{
	SELECT code FROM generate_series(30, 31) u, coupon_receive(1, u);
	SELECT code FROM coupon_receive(1, 31);
	BEGIN;
	ALTER TABLE user_coupon DISABLE TRIGGER ALL;
	DELETE FROM user_coupon WHERE template_id = 1 AND user_id IN (30, 31);
	ALTER TABLE user_coupon ENABLE ALWAYS TRIGGER zz_user_coupon_insert, ENABLE ALWAYS TRIGGER zz_user_coupon_update,
		ENABLE ALWAYS TRIGGER zz_user_coupon_truncate;
	DO $$ BEGIN FOR i IN 0..31 LOOP EXECUTE format('ALTER TABLE user_coupon_%s ENABLE ALWAYS TRIGGER zz_user_coupon_insert,'
		' ENABLE ALWAYS TRIGGER zz_user_coupon_update, ENABLE ALWAYS TRIGGER zz_user_coupon_truncate', i); END LOOP; END $$;
	COMMIT}), "4\n0\n4", 'deleted while triggers were off');
is(press(1, 30), '4 4 knew', 'not noticed');
sql('SELECT coupon_stock_rebuild(1)');
is(press(1, 30), '0 4 looked', 'until a rebuild');

# What a transaction does to itself stays with it until it commits.
is(press(1, 4), '4 4 knew', 'known');
is(sql(q{
	SELECT coupon_fold() IS NOT NULL;
	BEGIN;
	DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 4;
	SELECT code FROM coupon_receive(1, 4);
	ROLLBACK;
	SELECT code FROM coupon_receive(1, 4)}), "t\n0\n4", 'its own deletion, rolled back');
is(sql(q{
	BEGIN;
	SELECT code FROM coupon_receive(1, 70);
	SELECT code FROM coupon_receive(1, 70);
	SELECT code FROM coupon_receive_many(1, '{70,71}');
	ROLLBACK;
	SELECT code FROM coupon_receive(1, 70)}), "0\n4\n4\n0\n0", 'its own claim, rolled back');

# A deletion that is open, while somebody looks.
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN; DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 5');
is(press(1, 5), '4 4 knew', 'not deleted yet');
$session->query_safe('COMMIT');
is(press(1, 5), '0 4 looked', 'now it is');
$session->query_safe('BEGIN; SAVEPOINT a; DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 6; RELEASE a; SAVEPOINT b;'
	  . ' DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 7; ROLLBACK TO b');
is(press(1, $_), '4 4 knew', "user $_: nor in a savepoint") for 6, 7;
$session->query_safe('COMMIT');
is(press(1, 6), '0 4 looked', 'the savepoint was released');
is(press(1, 7), '4 4 knew', 'the other was not');
$session->quit;
my ($rc, $out, $err) = $node->psql('postgres', q{BEGIN; DELETE FROM user_coupon WHERE template_id = 1 AND user_id = 7; PREPARE TRANSACTION 'p'});
like($err, qr/cannot PREPARE/, 'a deletion cannot be prepared');

# A request id asks for its coupon, not for the limit.
is(sql(q{
	SELECT code FROM coupon_receive(1, 80, 'r');
	SELECT code FROM coupon_receive(1, 80);
	SELECT code FROM coupon_receive(1, 80);
	SELECT code, repeated FROM coupon_receive(1, 80, 'r');
	SELECT code, repeated FROM coupon_receive(1, 80, 's')}), "0\n4\n4\n0|t\n4|f", 'a retry gets its coupon');

# A purge of many templates; all at once; a new load.
is(sql(q{
	INSERT INTO user_coupon (user_id, template_id, use_end) SELECT 90, t, 'infinity' FROM generate_series(1000, 1999) t;
	INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (90, 1, 'infinity');
	SELECT code FROM coupon_receive(1, 90);
	SELECT code FROM coupon_receive(1, 90);
	DELETE FROM user_coupon WHERE user_id = 90;
	SELECT code FROM coupon_receive(1, 90)}), "4\n4\n0", 'a purge');
is(sql('SELECT count(*) FROM coupon_verify() WHERE NOT ok'), '0', 'the books balance');
is(press(1, 8), '4 4 knew', 'known');
sql('TRUNCATE user_coupon, coupon_stock, coupon_watermark');
is(press(1, 8), '0 4 looked', 'TRUNCATE');
is(press(1, 8), '4 4 knew', 'known again');
$node->restart;
is(press(1, 8), '4 4 knew', 'and after a restart');
is(press(3, 8), '0 4 looked', 'one template is not the other');
books_balance($node, 'after all');

$node->append_conf('postgresql.conf', 'coupon.limit_cache_memory = 0');
$node->restart;
is(press(1, 8), '4 4 looked', 'switched off');
$node->stop;
done_testing();
