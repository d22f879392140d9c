# Who surely holds nothing is not looked for in the table, and nobody who holds
# something is ever taken for one who does not: however the row came, and
# whatever happened since.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('user_filter', "coupon.max_templates = 16\nmax_prepared_transactions = 2");

# Answers of a template that is sold out: 4 for who holds a coupon of it, 2 for
# who does not.  A filter that has missed a row answers 2.
sub code_is
{
	my ($user, $code, $what, %opt) = @_;
	my $t = $opt{template} || 1;
	is($node->safe_psql($opt{db} || 'postgres', "SELECT code FROM coupon_receive($t, $user)"), $code, $what);
}

# How often the table was looked at for so many users, 1000001 and up.
sub looks_are
{
	my ($looks, $what, %opt) = @_;
	my $t = $opt{template} || 1;
	is($node->safe_psql($opt{db} || 'postgres', qq{
		SELECT code FROM coupon_receive($t, 1000000);
		BEGIN;
		SELECT sum(idx_scan) AS before FROM pg_stat_xact_user_tables WHERE relname LIKE 'user_coupon%' \\gset
		SELECT count(*) FROM generate_series(1000001, 1000040) u, coupon_receive($t, u);
		SELECT sum(idx_scan) - :before FROM pg_stat_xact_user_tables WHERE relname LIKE 'user_coupon%';
		COMMIT}), "2\n40\n$looks", $what);
}

sub new_template
{
	my ($id, $total, $limit) = @_;
	$node->safe_psql('postgres', qq{
		INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
		VALUES ($id, 't$id', $total, 10, 'published', @{[ $limit || 1 ]})});
}

new_template(1, 3);
new_template(2, 1);
is($node->safe_psql('postgres', q{SELECT code FROM coupon_receive_many(1, '{1,2}')}), "0\n0", 'claimed');
code_is(1, 4, 'one who has claimed is known before the sell-out');
code_is(3, 0, 'the last');
code_is(1, 4, 'and after it');
looks_are(0, 'sold out: nobody is looked for');
is($node->safe_psql('postgres', q{
	BEGIN;
	SELECT code FROM coupon_receive(2, 1);
	SELECT sum(idx_scan) FROM pg_stat_xact_user_tables WHERE relname LIKE 'user_coupon%';
	COMMIT}), "0\n32", 'nor before a claim: the load reads the 32 partitions, no one else');
looks_are(0, 'and so it stays', template => 2);

# By hand, in every way there is.
$node->safe_psql('postgres', q{INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (10, 1, 'infinity')});
code_is(10, 4, 'inserted by hand');
$node->safe_psql('postgres', q{INSERT INTO user_coupon_7 SELECT * FROM user_coupon WHERE false});
my $values = $node->safe_psql('postgres', q{SELECT coupon_next_id(), 11, 1, now(), now(), 'infinity', 1});
$values =~ s/\|/\t/g;
$node->safe_psql('postgres', "COPY user_coupon (id, user_id, template_id, received_at, use_start, use_end, receive_seq) FROM stdin;\n$values\n\\.\n");
code_is(11, 4, 'copied');
$node->safe_psql('postgres', q{UPDATE user_coupon SET user_id = 12 WHERE user_id = 11});
code_is(12, 4, 'given to another user, in another partition maybe');
my ($from, $to) = split /\|/, $node->safe_psql('postgres', q{
	SELECT a, b FROM generate_series(20, 400) a, generate_series(20, 400) b
	WHERE a < b AND satisfies_hash_partition('user_coupon'::regclass, 32, 5, a::bigint)
	AND satisfies_hash_partition('user_coupon'::regclass, 32, 5, b::bigint) LIMIT 1});
$node->safe_psql('postgres', qq{
	INSERT INTO user_coupon (user_id, template_id, use_end) VALUES ($from, 1, 'infinity');
	UPDATE user_coupon SET user_id = $to WHERE user_id = $from});
code_is($to, 4, 'in the same partition');
$node->safe_psql('postgres', q{
	INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (13, 99, 'infinity');
	UPDATE user_coupon SET template_id = 1 WHERE user_id = 13});
code_is(13, 4, 'turned into a coupon of this template');
$node->safe_psql('postgres', q{
	SET session_replication_role = replica;
	INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (14, 1, 'infinity')});
code_is(14, 4, 'as logical apply inserts');
looks_are(0, 'the others are still not looked for');

# Claims through SQL, beside a trigger that is not ours and inserts as well.
new_template(3, 1);
$node->safe_psql('postgres', q{
	CREATE FUNCTION gift() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.template_id = 3 THEN
			INSERT INTO public.user_coupon (user_id, template_id, use_end) VALUES (NEW.user_id + 1, 3, 'infinity');
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER gift BEFORE INSERT ON user_coupon FOR EACH ROW
	WHEN (NEW.holder = 0) EXECUTE FUNCTION gift()});
code_is(20, 0, 'through SQL', template => 3);
code_is(20, 4, 'known', template => 3);
code_is(21, 4, 'so is the one to whom a trigger gave one', template => 3);
looks_are(0, 'and nobody else', template => 3);
$node->safe_psql('postgres', 'DROP TRIGGER gift ON user_coupon');

# Rows that came while triggers were switched off, as a restore does it, are not
# in the filter.  Whoever claims meets them in the unique index, and is answered by
# the rows then.  A template that is sold out gives the wrong reason, until a rebuild.
new_template(4, 1000, 1);
new_template(8, 1000, 3);
$node->safe_psql('postgres', q{SELECT coupon_receive(4, 1), coupon_receive(8, 1)});
is($node->safe_psql('postgres', q{
	BEGIN;
	ALTER TABLE user_coupon DISABLE TRIGGER ALL;
	INSERT INTO user_coupon (user_id, template_id, use_end) SELECT u, 1, 'infinity' FROM generate_series(430, 490) u;
	INSERT INTO user_coupon (user_id, template_id, use_end) SELECT u, 4, 'infinity' FROM generate_series(30, 50) u;
	INSERT INTO user_coupon (user_id, template_id, use_end, request_id) SELECT u, 4, 'infinity', 'r' FROM generate_series(60, 69) u;
	INSERT INTO user_coupon (user_id, template_id, use_end, receive_seq) SELECT u, 8, 'infinity', n FROM generate_series(30, 39) u, generate_series(1, 2) n;
	ALTER TABLE user_coupon ENABLE ALWAYS TRIGGER zz_user_coupon_insert, ENABLE ALWAYS TRIGGER zz_user_coupon_update,
		ENABLE ALWAYS TRIGGER zz_user_coupon_truncate;
	DO $$ BEGIN FOR i IN 0..31 LOOP EXECUTE format('ALTER TABLE user_coupon_%s ENABLE ALWAYS TRIGGER zz_user_coupon_insert,'
		' ENABLE ALWAYS TRIGGER zz_user_coupon_update, ENABLE ALWAYS TRIGGER zz_user_coupon_truncate', i); END LOOP; END $$;
	COMMIT;
	SELECT status FROM coupon_health WHERE check_name = 'triggers';
	SELECT code, count(*) FROM generate_series(30, 50) u, coupon_receive(4, u) GROUP BY 1;
	SELECT code, repeated, count(*) FROM generate_series(60, 69) u, coupon_receive(4, u, 'r') GROUP BY 1, 2;
	SELECT code, receive_seq, count(*) FROM generate_series(30, 39) u, coupon_receive(8, u) GROUP BY 1, 2;
	SELECT code, count(*) FROM generate_series(30, 39) u, coupon_receive(8, u) GROUP BY 1}),
	"ok\n4|21\n0|t|10\n0|3|10\n4|10", 'rows that came while triggers were off are met');
is($node->safe_psql('postgres', q{
	SELECT DISTINCT code FROM generate_series(430, 490) u, coupon_receive(1, u);
	SELECT coupon_stock_rebuild(1);
	SELECT DISTINCT code FROM generate_series(430, 490) u, coupon_receive(1, u)}),
	"2\n0\n4", 'sold out: the reason is right after a rebuild');
books_balance($node, 'past triggers');
looks_are(0, 'the others are still not looked for');

# A new load reads who is there: after eviction, and after a restart.
sub evict
{
	$node->safe_psql('postgres', q{
		INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
		SELECT g, 'e', 1, 10, 'published' FROM generate_series(100, 199) g ON CONFLICT DO NOTHING;
		SELECT format('SELECT code FROM coupon_receive(%s, 1)', g) FROM generate_series(100, 199) g \gexec});
}
evict();
looks_are(0, 'loaded again');
code_is($_, 4, "user $_ is known") for 1, 10, 12, 14, 490;

# Limits, aborts, retries, deletions.
new_template(5, 4, 2);
is($node->safe_psql('postgres', q{
	BEGIN; SELECT code FROM coupon_receive(5, 1); ROLLBACK;
	SELECT code, receive_seq FROM coupon_receive(5, 1, 'a');
	SELECT code, receive_seq FROM coupon_receive(5, 1, 'b');
	SELECT code, receive_seq FROM coupon_receive(5, 1, 'c');
	SELECT code, receive_seq, repeated FROM coupon_receive(5, 1, 'a');
	BEGIN; SELECT code FROM coupon_receive(5, 2, 'd'); SELECT code, repeated FROM coupon_receive(5, 2, 'd'); ROLLBACK;
	SELECT code, repeated FROM coupon_receive_many(5, '{2,3}', request_id => 'd')}),
	"0\n0|1\n0|2\n4|\n0|1|t\n0\n0|t\n0|f\n0|f", 'a limit of two, with retries');
is($node->safe_psql('postgres', q{
	SELECT code, repeated FROM coupon_receive(5, 2, 'd');
	SELECT code, repeated FROM coupon_receive(5, 4, 'd')}), "0|t\n2|f", 'and after the sell-out');
is($node->safe_psql('postgres', q{
	SELECT coupon_fold() IS NOT NULL;
	DELETE FROM user_coupon WHERE template_id = 5 AND user_id = 1;
	UPDATE coupon_template SET total_stock = 5 WHERE id = 5;
	SELECT code, receive_seq FROM coupon_receive(5, 1)}), "t\n0|1", 'deleted, and claimed again');

# A prepared transaction from before a restart, whose rows nobody sees yet.
$node->safe_psql('postgres', q{
	BEGIN;
	INSERT INTO user_coupon (user_id, template_id, use_end) VALUES (15, 1, 'infinity');
	PREPARE TRANSACTION 'p'});
my $rows = 100000;
new_template(6, 1);
# One more than are read, not counting the dead one: it may be vacuumed.
$node->safe_psql('postgres', qq{
	SELECT code FROM coupon_receive(6, 1);
	INSERT INTO user_coupon (user_id, template_id, use_end) SELECT u, 6, 'infinity' FROM generate_series(2, $rows + 2) u;
	DELETE FROM user_coupon WHERE user_id = 2 AND template_id = 6});
for my $how ('restart', 'kill -9')
{
	if ($how eq 'restart') { $node->restart; }
	else { $node->kill9; start_again($node); }
	looks_are(0, "$how: loaded again");
	code_is(15, 2, "$how: prepared") if $how eq 'restart';
	$node->safe_psql('postgres', q{COMMIT PREPARED 'p'}) if $how eq 'restart';
	code_is($_, 4, "$how: user $_ is known") for 1, 10, 12, 14, 15, 490;
	looks_are(40, "$how: too many rows to read", template => 6);
	is($node->safe_psql('postgres', qq{
		SELECT code, count(*) FROM generate_series(1, $rows + 1, 1000) u, coupon_receive(6, u) GROUP BY 1}),
		'4|101', "$how: so each is looked for");
}
is($node->safe_psql('postgres', q{SELECT code, repeated FROM coupon_receive(5, 3, 'd')}), '0|t', 'a retry after restarts');

# Databases with the same OIDs do not meet.
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
code_is(1, 4, 'rows that a clone was born with', db => 'copy');
new_template(7, 1);
$node->safe_psql('postgres', q{INSERT INTO user_coupon (user_id, template_id, use_end) SELECT u, 1, 'infinity' FROM generate_series(1000000, 1000040) u});
looks_are(0, 'rows of another database', db => 'copy');

# Emptied: nobody holds anything, and all can claim again.
is($node->safe_psql('postgres', q{
	TRUNCATE user_coupon, coupon_stock, coupon_watermark;
	SELECT DISTINCT code FROM coupon_receive_many(1, '{1,2,10}');
	SELECT DISTINCT code FROM coupon_receive_many(1, '{1,2,10}')}), "0\n4", 'TRUNCATE');
books_balance($node, 'after all');
cmp_ok($node->safe_psql('postgres', 'SELECT user_filter_fill FROM coupon_stat_cache'), '>', 0, 'the fill is shown');

# A filter that is full, and none at all, answer the same.
for my $memory (64, 0)
{
	$node->append_conf('postgresql.conf', "coupon.user_filter_memory = $memory");
	$node->restart;
	$node->safe_psql('postgres', q{
		INSERT INTO user_coupon (user_id, template_id, use_end) SELECT u, 98, 'infinity' FROM generate_series(1, 300000) u}) if $memory > 0;
	is($node->safe_psql('postgres', 'SELECT user_filter_fill > 0.9 FROM coupon_stat_cache'), $memory > 0 ? 't' : '', "fill of $memory kB");
	code_is($_, 4, "$memory kB: user $_ is known") for 1, 2, 10;
	code_is(3, 2, "$memory kB: one who is not");
	looks_are(40, "$memory kB: all are looked for") if $memory == 0;
}
$node->stop;
done_testing();
