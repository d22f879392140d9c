# An id that no template has is not looked for in the table, and no template is
# ever taken for one that does not exist: however its row came, and whatever
# happened since.

use strict;
use warnings FATAL => 'all';
use lib 't';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('template_ids', 'coupon.max_templates = 64');

sub outcome_is
{
	my ($template, $outcome, $what, %opt) = @_;
	is($node->safe_psql($opt{db} || 'postgres', "SELECT outcome FROM coupon_receive($template, 1)"), $outcome, $what);
}

# How often coupon_template was looked at for 40 ids that do not exist.  One more
# is asked for before, so that whoever has to learn does.
sub looks_are
{
	my ($looks, $what, %opt) = @_;
	is($node->safe_psql($opt{db} || 'postgres', q{
		SELECT outcome FROM coupon_receive(1000000, 1);
		BEGIN;
		SELECT COALESCE(sum(idx_scan), 0) AS before FROM pg_stat_xact_user_tables WHERE relname = 'coupon_template' \gset
		SELECT string_agg(DISTINCT outcome, ' ') FROM generate_series(1000001, 1000040) t, coupon_receive(t, 1);
		SELECT COALESCE(sum(idx_scan), 0) - :before FROM pg_stat_xact_user_tables WHERE relname = 'coupon_template';
		COMMIT}), "not_found\nnot_found\n$looks", $what);
}

sub create
{
	my ($id) = @_;
	return "INSERT INTO coupon_template (id, name, discount_value, status) VALUES ($id, 't', 10, 'published');\n";
}

$node->safe_psql('postgres', create(1));
looks_are(0, 'nobody is looked for');
outcome_is(1, 'ok', 'the one there is');

# In every way that a row can come.
outcome_is(2, 'not_found', 'not yet');
$node->safe_psql('postgres', create(2));
outcome_is(2, 'ok', 'inserted');
is($node->safe_psql('postgres', 'BEGIN; ' . create(3) . 'SELECT outcome FROM coupon_receive(3, 1); ROLLBACK'), 'ok',
	'by its own transaction');
outcome_is(3, 'not_found', 'which did not commit');
$node->safe_psql('postgres', create(3));
outcome_is(3, 'ok', 'inserted after all');
$node->safe_psql('postgres', "COPY coupon_template (id, name, discount_value, status) FROM stdin;\n4\tt\t10\tpublished\n\\.\n");
outcome_is(4, 'ok', 'copied');
$node->safe_psql('postgres', 'SET session_replication_role = replica; ' . create(5));
outcome_is(5, 'ok', 'as logical apply inserts');
outcome_is(6, 'not_found', 'not that one');
$node->safe_psql('postgres', create(7));
$node->safe_psql('postgres', 'SET session_replication_role = replica; UPDATE coupon_template SET id = 6 WHERE id = 7');
outcome_is(6, 'ok', 'as logical apply changes an id');
outcome_is(7, 'not_found', 'the id it had');
$node->safe_psql('postgres', create(8));
$node->safe_psql('postgres', 'DELETE FROM coupon_template WHERE id = 8');
outcome_is(8, 'not_found', 'deleted');
$node->safe_psql('postgres', create(8));
outcome_is(8, 'ok', 'and created again');
looks_are(0, 'the others are still not looked for');

# Rows that nobody sees yet.
{
	my ($in, $out) = ('', '');
	local %ENV = $node->_get_env();
	my $other = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres' ], '<', \$in, '>', \$out);
	$in .= 'BEGIN; ' . create(9) . "SELECT 'inserted';\n";
	$other->pump until $out =~ /inserted/;
	outcome_is(9, 'not_found', 'not committed');
	$in .= "COMMIT;\n";
	$other->finish;
	outcome_is(9, 'ok', 'committed');
}

# Triggers switched off for a while, as a restore does.
is($node->safe_psql('postgres', 'BEGIN; ALTER TABLE coupon_template DISABLE TRIGGER USER; ' . create(10) . q{
	SELECT outcome FROM coupon_receive(10, 1);
	ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_created,
		ENABLE ALWAYS TRIGGER zz_coupon_template_guard, ENABLE ALWAYS TRIGGER zz_coupon_template_truncate;
	COMMIT}), 'ok', 'by the transaction that has switched triggers off');
outcome_is(10, 'over_limit', 'created while triggers were off');
looks_are(0, 'triggers fire again: all ids are learnt anew');
$node->safe_psql('postgres', 'ALTER TABLE coupon_template DISABLE TRIGGER zz_coupon_template_created');
looks_are(40, 'a trigger is off: each is looked for');
$node->safe_psql('postgres', create(11));
outcome_is(11, 'ok', 'created past it');
$node->safe_psql('postgres', 'ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_created');
$node->safe_psql('postgres', 'VACUUM FULL coupon_template');
looks_are(0, 'after a rewrite');
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT outcome, ' ') FROM generate_series(1, 6) t, coupon_receive(t, 3)}),
	'ok', 'and all are known');

# A session in the middle of a transaction hears of triggers that were off, whatever
# it asks with.
{
	my ($in, $out) = ('', '');
	local %ENV = $node->_get_env();
	my $session = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres' ], '<', \$in, '>', \$out, '2>&1');
	my $ask = "SELECT coupon_stock_left(12) IS NULL, coupon_template_get(12) IS NULL, (coupon_remind_create(12, 1, 'app', 10)).outcome;\n";
	$in .= "BEGIN;\n" . $ask x 3 . "SELECT 'asked';\n";
	$session->pump until $out =~ /asked/;
	$node->safe_psql('postgres', 'BEGIN; ALTER TABLE coupon_template DISABLE TRIGGER zz_coupon_template_created;' . q{
		INSERT INTO coupon_template (id, name, discount_value, status, total_stock, receive_start)
		VALUES (12, 't', 10, 'published', 5, now() + interval '1 day');
		ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_created; COMMIT});
	$out = '';
	$in .= "SELECT 'left', coupon_stock_left(12);\nSELECT outcome FROM coupon_remind_create(12, 1, 'app', 10);\nROLLBACK;\n";
	$session->finish;
	is($out, "left|5\nok\n", 'triggers were off: noticed in the middle of a transaction');
	$node->safe_psql('postgres', 'DELETE FROM coupon_template WHERE id = 12');
}

# A trigger that fires after ours, and changes the id.
$node->safe_psql('postgres', create(14) . q{
	CREATE FUNCTION shift() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := NEW.id + 6000; RETURN NEW; END';
	CREATE TRIGGER zzz_shift BEFORE UPDATE ON coupon_template FOR EACH ROW EXECUTE FUNCTION shift();
	ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zzz_shift});
looks_are(0, 'a trigger that changes ids');
my ($rc, $out, $err) = $node->psql('postgres', q{UPDATE coupon_template SET name = 'x' WHERE id = 14});
like($err, qr/the id of template 14 cannot be changed/, 'an id cannot be changed by a later trigger');
$node->safe_psql('postgres', q{SET session_replication_role = replica; UPDATE coupon_template SET name = 'x' WHERE id = 14});
outcome_is(6014, 'ok', 'an id changed by a later trigger');
$node->safe_psql('postgres', 'DROP TRIGGER zzz_shift ON coupon_template');
looks_are(0, 'and without it');

# A trigger put in the place of ours that does not tell of all rows.
for my $lame ('AFTER INSERT OR UPDATE ON coupon_template FOR EACH ROW WHEN (NEW.id < 0)',
	'AFTER UPDATE ON coupon_template FOR EACH ROW', 'AFTER INSERT OR UPDATE OF name ON coupon_template FOR EACH ROW')
{
	my $replace = sub {
		$node->safe_psql('postgres', "CREATE OR REPLACE TRIGGER zz_coupon_template_created $_[0]
			EXECUTE FUNCTION coupon_template_guard();
			ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_created");
	};
	$replace->($lame);
	looks_are(40, $lame);
	$replace->('AFTER INSERT OR UPDATE ON coupon_template FOR EACH ROW');
}
looks_are(0, 'as installed');

# Another column takes the place of the id, and gives it back: ids that nobody was told of.
{
	my $swap = q{BEGIN; ALTER TABLE coupon_template DROP CONSTRAINT coupon_template_pkey;
		ALTER TABLE coupon_template RENAME COLUMN id TO x; ALTER TABLE coupon_template RENAME COLUMN other TO id;
		ALTER TABLE coupon_template RENAME COLUMN x TO other; ALTER TABLE coupon_template ADD PRIMARY KEY (id); COMMIT;};
	$node->safe_psql('postgres', q{ALTER TABLE coupon_template ADD COLUMN other bigint; UPDATE coupon_template SET other = id + 7000});
	looks_are(0, 'another column');
	$node->safe_psql('postgres', $swap);
	outcome_is(7001, 'ok', 'a column renamed');
	looks_are(0, 'a column renamed');
	$node->safe_psql('postgres', $swap);
	looks_are(0, 'and renamed back');
	$node->safe_psql('postgres', $swap);
	$node->safe_psql('postgres', q{INSERT INTO coupon_template (id, other, name, discount_value, status) VALUES (7015, 15, 't', 10, 'published')});
	$node->safe_psql('postgres', $swap . 'ALTER TABLE coupon_template DROP COLUMN other');
	outcome_is(15, 'ok', 'inserted meanwhile');
	$node->safe_psql('postgres', 'TRUNCATE user_coupon, coupon_stock, coupon_watermark; DELETE FROM coupon_template WHERE id > 11');
}

# How often the table is read by those who ask in turn: not each time.
for my $what ('VACUUM FULL pg_trigger', 'a change not committed')
{
	my ($in, $out) = ('', '');
	local %ENV = $node->_get_env();
	my $session = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres' ], '<', \$in, '>', \$out, '2>&1');
	my $reads = 'SELECT seq_scan FROM pg_stat_user_tables WHERE relname = \'coupon_template\'';
	$in .= "SELECT outcome FROM coupon_receive(999, 1);\n";
	$session->pump until $out =~ /found/;
	$node->safe_psql('postgres', $what) if $what =~ /VACUUM/;
	$in .= "BEGIN; ALTER TABLE coupon_template DISABLE TRIGGER zz_coupon_template_created;
		ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_created;\n" if $what !~ /VACUUM/;
	my $before = $node->safe_psql('postgres', "SELECT outcome FROM coupon_receive(999, 1); SELECT pg_stat_force_next_flush(); $reads");
	for my $i (1 .. 4)
	{
		$out = '';
		$in .= "SELECT outcome FROM coupon_receive(999, 1);\n";
		$session->pump until $out =~ /found/;
		outcome_is(999, 'not_found', "$what: in turn $i");
	}
	$in .= "ROLLBACK; SELECT pg_stat_force_next_flush();\n";
	$session->finish;
	cmp_ok($node->safe_psql('postgres', $reads) - ($before =~ s/.*\n//sr), '<=', 1, "$what: read once");
}

# A large table is read in parts, so that nobody waits for all of it.
$node->safe_psql('postgres', q{
	ALTER TABLE coupon_template DISABLE TRIGGER zz_coupon_template_created;
	ALTER TABLE coupon_template ALTER COLUMN usage_note SET STORAGE PLAIN;
	INSERT INTO coupon_template (id, name, discount_value, status, usage_note)
	SELECT 20000 + i, 't', 10, 'published', repeat('x', 7000) FROM generate_series(1, 2500) i;
	ALTER TABLE coupon_template ENABLE ALWAYS TRIGGER zz_coupon_template_created});
outcome_is(1000000, 'not_found', 'large: the first part');
# A row that goes from a part not read yet to one that was.
$node->safe_psql('postgres', 'SET session_replication_role = replica; DELETE FROM coupon_template WHERE id BETWEEN 20001 AND 20100');
$node->safe_psql('postgres', 'VACUUM coupon_template');
$node->safe_psql('postgres', q{UPDATE coupon_template SET name = 'y' WHERE id = 22500});
$node->safe_psql('postgres', 'VACUUM coupon_template');
is($node->safe_psql('postgres', q{SELECT (ctid::text::point)[0] < 1024 FROM coupon_template WHERE id = 22500}), 't', 'large: a row moves');
outcome_is(1000000, 'not_found', 'large: the second part');
is($node->safe_psql('postgres', q{
	BEGIN;
	SELECT COALESCE(sum(idx_scan), 0) AS before FROM pg_stat_xact_user_tables WHERE relname = 'coupon_template' \gset
	SELECT (coupon_receive(1000000, 1)).outcome || ' ' || (coupon_receive(1000001, 1)).outcome;
	SELECT COALESCE(sum(idx_scan), 0) - :before FROM pg_stat_xact_user_tables WHERE relname = 'coupon_template'; COMMIT}),
	"not_found not_found\n1", 'large: the last part, and no look any more');
looks_are(0, 'large: all is read');
# Each in a transaction of its own: one that has claimed asks the index.
is(scalar(() = $node->safe_psql('postgres', join '', map { "SELECT outcome FROM coupon_receive($_, 1);\n" } 20101 .. 22500) =~ /^ok$/mg),
	2400, 'large: all are known');
$node->safe_psql('postgres', q{
	SET session_replication_role = replica;
	DELETE FROM coupon_template WHERE id > 20000;
	DELETE FROM user_coupon WHERE template_id > 20000});
$node->safe_psql('postgres', 'VACUUM FULL coupon_template');

# A server that has seen no row come reads them all.
$node->safe_psql('postgres', 'TRUNCATE user_coupon, coupon_stock, coupon_watermark');
for my $how ('restart', 'kill -9')
{
	if ($how eq 'restart') { $node->restart; }
	else { $node->kill9; start_again($node); }
	looks_are(0, "$how: nobody is looked for");
	is($node->safe_psql('postgres', q{
		SELECT string_agg(outcome, ' ') FROM generate_series(1, 11) t, coupon_receive(t, @@)} =~ s/@@/$how eq 'restart' ? 1 : 2/er),
		join(' ', map { $_ == 7 ? 'not_found' : 'ok' } 1 .. 11), "$how: all are known");
}

# Each database has its own templates.  Where two want the same place, the later one
# goes without.
my $oid = $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'postgres'});
my $near = 100000 - 100000 % 64 + $oid % 64;
$node->safe_psql('postgres', "CREATE DATABASE other OID = @{[ $near + 1 ]}");
$node->safe_psql('postgres', "CREATE DATABASE rival OID = $near");
for my $db ('other', 'rival')
{
	$node->safe_psql($db, 'CREATE EXTENSION coupon');
	outcome_is(1, 'not_found', "$db: a template of another database", db => $db);
	looks_are($db eq 'other' ? 0 : 40, "$db: looks", db => $db);
	$node->safe_psql($db, create(13));
	outcome_is(13, 'ok', "$db: its own", db => $db);
	outcome_is(13, 'not_found', "$db: not elsewhere");
	$node->safe_psql($db, 'DROP EXTENSION coupon; CREATE EXTENSION coupon');
	outcome_is(13, 'not_found', "$db: extension created again", db => $db);
	looks_are($db eq 'other' ? 0 : 40, "$db: looks again", db => $db);
	$node->safe_psql($db, create(13));
	outcome_is(13, 'ok', "$db: its own again", db => $db);
}

# A database in the place of one that was dropped, by its number too, and a copy of the
# same: what was known of the first says nothing of it.
$node->safe_psql('postgres', 'CREATE DATABASE original');
$node->safe_psql('original', 'CREATE EXTENSION coupon');
$node->safe_psql('postgres', "CREATE DATABASE copy TEMPLATE original OID = @{[ $near + 2 ]}");
looks_are(0, 'copy', db => 'copy');
$node->safe_psql('postgres', 'DROP DATABASE copy');
$node->safe_psql('original', create(16));
$node->safe_psql('postgres', "CREATE DATABASE copy TEMPLATE original OID = @{[ $near + 2 ]}");
outcome_is(16, 'ok', 'another copy', db => 'copy');
looks_are(0, 'another copy', db => 'copy');

# Without the filter.
$node->append_conf('postgresql.conf', 'coupon.claimants_memory = 0');
$node->restart;
looks_are(40, 'no filter');
outcome_is(13, 'not_found', 'no filter: not there');
$node->safe_psql('postgres', create(13));
outcome_is(13, 'ok', 'no filter: there');

$node->stop;
done_testing();
