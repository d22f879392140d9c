# What is known of tables, indexes, columns and types stays right while DDL goes on
# beside claims; and a parallel worker, which cannot claim, leaves nothing behind.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Without the user filter, which would look at each partition before the count.
my $node = new_node('catalog', "coupon.databases = ''\ncoupon.user_filter_memory = 0");
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub error_of
{
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$_[0]");
	return $err;
}

# A session that has looked before counts again while an index of a partition is on
# its way out: it opens still, and misses the newest rows.
sql(q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (300, 't', 2010, 10, 'published');
	SELECT count(*) FROM coupon_receive_many(300, ARRAY(SELECT generate_series(1, 2000)));
	SELECT coupon_fold()});
my @users = split /\n/, sql(q{
	SELECT u FROM generate_series(3000, 9000) u
	WHERE satisfies_hash_partition('user_coupon'::regclass, 32, 1, u::bigint) LIMIT 5});
my $counting = $node->background_psql('postgres');
my $holding = $node->background_psql('postgres');
is($counting->query_safe('BEGIN; SELECT coupon_stock_rebuild(300)'), '10', 'counted');
$holding->query_safe('BEGIN; LOCK TABLE user_coupon_1 IN ACCESS SHARE MODE');
my $out = '';
my $reindex;
{
	local %ENV = $node->_get_env();
	$reindex = IPC::Run::start([ 'psql', '-Xq', '-d', 'postgres', '-c', 'REINDEX INDEX CONCURRENTLY user_coupon_1_id_idx' ],
		'<', \undef, '>', \$out, '2>&1');
}
# It waits for all who have the partition locked before the old index is let die, and
# again before it is dropped.
sub old_index_is
{
	return $node->poll_query_until('postgres', qq{
		SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
			WHERE c.relname = 'user_coupon_1_id_idx_ccold' AND NOT i.indisvalid AND i.indislive = $_[0])});
}
ok(old_index_is('true'), 'REINDEX CONCURRENTLY has another index');
my $holding_too = $node->background_psql('postgres');
$holding_too->query_safe('BEGIN; LOCK TABLE user_coupon_1 IN ACCESS SHARE MODE');
$holding->query_safe('COMMIT');
$holding->quit;
ok(old_index_is('false'), 'the old one is there, and dead');
sql("SELECT count(*) FROM coupon_receive_many(300, '{" . join(',', @users) . "}')");
is($counting->query_safe('SELECT coupon_stock_rebuild(300)'), '5', 'counted again, through the index that is complete');
$counting->query_safe('COMMIT');
$counting->quit;
$holding_too->query_safe('COMMIT');
$holding_too->quit;
$reindex->finish;
is($out, '', 'REINDEX CONCURRENTLY goes on');
books_balance($node, 'after REINDEX CONCURRENTLY');

# Many of them, beside claims, counts and looks at ids that do not exist.
sql(q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
	VALUES (301, 't', NULL, 10, 'published', 1000)});
my $bench = start_pgbench($node, '-c', 4, '-T', 600, '-f', script(q{
\set u random(1, 2000)
SELECT code FROM coupon_receive(301, :u);
SELECT code FROM coupon_receive(999, :u);
SELECT coupon_stock_left(300);
}) . '@50', '-f', script('SELECT coupon_stock_rebuild(300);') . '@1');
for my $round (1 .. 3)
{
	sql("REINDEX TABLE CONCURRENTLY user_coupon_$_") for 0 .. 7;
	sql('REINDEX TABLE CONCURRENTLY coupon_template');
}
stop_pgbench($node, $bench);
unlike(${ $bench->{out} }, qr/ERROR|aborted/, 'no claim fails beside REINDEX CONCURRENTLY');
is(sql(q{SELECT count(*) > 100 FROM user_coupon WHERE template_id = 301}), 't', 'and there were some');
books_balance($node, 'after many');

# Columns and types that are not as installed.
sql('ALTER TABLE user_coupon RENAME COLUMN request_id TO req');
like(error_of('SELECT coupon_receive(301, 1)'), qr/VC009: table "user_coupon_\d+" lacks its column "request_id"/, 'a column renamed');
sql('ALTER TABLE user_coupon RENAME COLUMN req TO request_id');
is(sql('SELECT code FROM coupon_receive(301, 9001)'), '0', 'and renamed back');
my $session = $node->background_psql('postgres');
$session->query_safe('SELECT coupon_receive(301, 9002)');
for my $type (
	[ 'coupon_receive_row', 'coupon_receive(301, 9003)' ], [ 'coupon_verify_row', 'coupon_verify()' ],
	[ 'coupon_template_page', 'coupon_template_get(301)' ], [ 'coupon_wallet_page', 'coupon_wallet(1)' ])
{
	my ($name, $call) = @$type;
	sql("ALTER TYPE $name ADD ATTRIBUTE more text");
	like(error_of("SELECT * FROM $call"), qr/(?:VC009|42804): .*not as it was installed/, "$name: an attribute more");
	sql("ALTER TYPE $name DROP ATTRIBUTE more");
}
is($session->query_safe('SELECT code FROM coupon_receive(301, 9002)'), '0', 'a session that knew the type');
$session->quit;

# A session that looks for the first time while an owner changes: it waits amid its look.
{
	my $owner = sql('SELECT current_user');
	sql('CREATE ROLE former SUPERUSER; ALTER TABLE coupon_template OWNER TO former');
	my $changing = $node->background_psql('postgres');
	$changing->query_safe('BEGIN; LOCK TABLE user_coupon IN ACCESS EXCLUSIVE MODE');
	my $said = '';
	local %ENV = $node->_get_env();
	my $first = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', map { ('-c', 'SELECT count(*) FROM coupon_template_get(301)') } 1 .. 2 ],
		'<', \undef, '>', \$said, '2>&1');
	ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'user_coupon'::regclass AND NOT granted)}),
		'the first look of a session waits');
	$changing->query_safe("ALTER TABLE coupon_template OWNER TO $owner; ALTER ROLE former NOSUPERUSER; COMMIT");
	$changing->quit;
	$first->finish;
	is($said, "1\n1\n", 'and what it saw before is not remembered');
}

# Nulls and other types where none can be as installed.
sql('ALTER TABLE coupon_template ALTER open_to DROP NOT NULL');
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, open_to) VALUES (310, 't', 1, 'published', 'anyone')}); sql('UPDATE coupon_template SET open_to = NULL WHERE id = 310');
like(error_of('SELECT coupon_receive(310, 1)'), qr/VC009: the columns of "coupon_template" are not as they were installed/, 'no open_to');
sql(q{UPDATE coupon_template SET open_to = 'anyone' WHERE id = 310}); sql('ALTER TABLE coupon_template ALTER open_to SET NOT NULL');
sql(q{SELECT coupon_channel_set('app', 'http://127.0.0.1:1/'); INSERT INTO coupon_message VALUES ('coupon', 'app', 's', 'b');
	ALTER TABLE coupon_message DROP CONSTRAINT coupon_message_subject_check, ALTER subject TYPE int USING 3});
like(error_of(q{SELECT coupon_channel_preview('coupon', 'app', 1)}), qr/VC009/, 'a subject that is a number');
sql('ALTER TABLE coupon_message ALTER subject TYPE text; TRUNCATE coupon_message');

# A trigger of the shop's gives another coupon beside a claim: that one is counted too.
sql(q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (320, 'main', 10, 1, 'published'), (321, 'bonus', 3, 1, 'published');
	SELECT code FROM coupon_receive(321, 1);
	CREATE FUNCTION bonus() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.template_id = 320 THEN
			INSERT INTO public.user_coupon (id, user_id, receive_seq, template_id, holder, use_end)
			VALUES (public.coupon_next_id(), NEW.user_id, 1, 321, 0, 'infinity');
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER bonus AFTER INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION bonus()});
is(sql(q{SELECT string_agg(outcome, ' ' ORDER BY user_id) FROM coupon_receive_many(320, '{901,902}')}), 'ok ok', 'two with a bonus');
is(sql(q{SELECT string_agg(outcome, ' ' ORDER BY user_id) FROM coupon_receive_many(321, '{903,904}')}), 'out_of_stock out_of_stock', 'no third of three');
sql('DROP TRIGGER bonus ON user_coupon');
books_balance($node, 'with a bonus');

# Triggers that store a claimed coupon otherwise are refused: nothing is issued past the books.
sql(q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (330, 'few', 2, 1, 'published'), (331, 'other', 2, 1, 'published')});
for my $does ('IF pg_trigger_depth() = 1 THEN INSERT INTO public.user_coupon VALUES (NEW.*); RETURN NULL; END IF', 'NEW.template_id := 331',
	'NEW.holder := 7', 'NEW.holder := NULL', 'NEW.id := NEW.id + 1', 'NEW.user_id := NEW.user_id + 1')
{
	for my $name ('aaa', 'zzz')
	{
		sql("CREATE FUNCTION otherwise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN $does; RETURN NEW; END';
			CREATE TRIGGER $name BEFORE INSERT ON user_coupon FOR EACH ROW EXECUTE FUNCTION otherwise()");
		like(error_of("SELECT * FROM coupon_receive_many(330, '{1,2,3,4,5}')"), qr/27000: a trigger or rule on "user_coupon" has stored|0A000: moving row to another partition/, "$name: $does");
		sql("DROP TRIGGER $name ON user_coupon; DROP FUNCTION otherwise()");
	}
}
is(sql('SELECT count(*) FROM user_coupon WHERE template_id IN (330, 331)'), '0', 'nothing was stored');
books_balance($node, 'with such triggers');

# Wrapped in a function that is called parallel safe, which it is not.
my $parallel = q{SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');};
sql(q{
	CREATE FUNCTION claims(t bigint, u bigint) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN (SELECT code FROM coupon_receive(t, u)); END';
	CREATE FUNCTION ids() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN coupon_next_id(); END';
	CREATE FUNCTION left_of(t bigint) RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN coupon_stock_left(t); END';
	CREATE FUNCTION wakes() RETURNS void LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN PERFORM coupon_worker_wake(); END';
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (302, 't', 10, 10, 'published');
	SELECT code FROM coupon_receive(302, 1)});
like(sql("$parallel EXPLAIN SELECT ids()"), qr/Gather/, 'it is run by a parallel worker');
like(error_of("$parallel SELECT claims(302, 2)"), qr/25000: cannot execute coupon claim during a parallel operation/, 'a claim in a parallel worker');
like(error_of("$parallel SELECT ids()"), qr/25000: cannot execute coupon_next_id\(\) during a parallel operation/, 'an id');
is(sql("SELECT 'x'; $parallel SELECT left_of(302)") =~ s/.*\n//sr, '9', 'reading what is loaded works');
sql("$parallel SELECT wakes()");
is(sql('SELECT coupon_stock_rebuild(302)'), '9', 'nothing stays reserved');
my $claimed = sql(q{SELECT count(*) FROM coupon_receive_many(302, '{3,4,5}') WHERE code = 0; SELECT coupons FROM coupon_fold()});
is($claimed =~ s/.*\n//sr >= 3, 1, 'and folding goes on');
is(sql(q{SELECT count(*) FROM user_coupon WHERE id > (SELECT upto FROM coupon_watermark WHERE holder = 0)}), '0', 'to the last id');
books_balance($node, 'after all');
$node->stop;
done_testing();
