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

# Without the filter.
$node->append_conf('postgresql.conf', 'coupon.claimants_memory = 0');
$node->restart;
looks_are(40, 'no filter');
outcome_is(13, 'not_found', 'no filter: not there');
$node->safe_psql('postgres', create(13));
outcome_is(13, 'ok', 'no filter: there');

$node->stop;
done_testing();
