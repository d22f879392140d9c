# Two holders of quota beside this database: random sessions claim, move quota to and fro,
# raise, lower and remove totals, import and adopt, fold, roll back to savepoints, and die
# with the server.  Then nothing was issued beyond what each holder had, and what is
# left is what the tables say.  COUPON_SEED repeats what the sessions do.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{COUPON_SEED} || time;
srand($seed);
note("COUPON_SEED=$seed");
my $node = new_node('holders', q{
coupon.databases = ''
coupon.gate_timeout = 1s
lock_timeout = 200ms
deadlock_timeout = 20ms
log_min_messages = fatal
});
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub any { return $_[ rand @_ ]; }

sql(q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, per_user_limit)
	SELECT i, 't', CASE WHEN i <= 3 THEN 40 END, 1, 'published', 3 FROM generate_series(1, 4) i;
	CREATE SEQUENCE users START 1000000;
	-- The other holder issues as a bridge does: with its row locked, within its quota.
	CREATE FUNCTION issue_elsewhere(t bigint) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		q bigint;
	BEGIN
		SELECT quota INTO q FROM coupon_stock WHERE template_id = t AND holder = 1 FOR UPDATE;
		IF q > (SELECT count(*) FROM user_coupon WHERE template_id = t AND holder = 1) THEN
			INSERT INTO user_coupon (template_id, user_id, use_end, holder) VALUES (t, nextval('users'), 'infinity', 1);
		END IF;
	END $$});

sub statement
{
	my ($id, $n) = (1 + int(rand(4)), int(rand(60)));
	my $users = join ',', map { 1 + int(rand(30)) } 1 .. 5;
	my $claim = any("SELECT coupon_receive($id, 1 + (random() * 30)::int);", "SELECT coupon_receive_many($id, '{$users}');",
		"SELECT coupon_give($id, nextval('users'));");
	return any($claim, $claim, $claim, $claim,
		"SELECT issue_elsewhere($id);", "SELECT issue_elsewhere($id);",
		"INSERT INTO coupon_stock (template_id, holder, quota) VALUES ($id, 1, @{[ int($n / 4) ]}) ON CONFLICT (template_id, holder) DO UPDATE SET quota = excluded.quota;",
		"UPDATE coupon_stock SET quota = quota + 3 WHERE template_id = $id AND holder = 1;",
		"UPDATE coupon_stock SET quota = GREATEST(quota - 4, 0) WHERE template_id = $id AND holder = 1;",
		"DELETE FROM coupon_stock WHERE template_id = $id AND holder = 1;",
		"UPDATE coupon_template SET total_stock = $n WHERE id = $id;",
		"UPDATE coupon_template SET total_stock = total_stock + 5 WHERE id = $id;",
		"UPDATE coupon_template SET total_stock = NULL WHERE id = $id;",
		"INSERT INTO user_coupon (id, template_id, user_id, use_end) SELECT (random() * 9e18)::bigint, $id, nextval('users'), 'infinity' FROM generate_series(1, 2);",
		"SELECT coupon_stock_adopt($id);", 'SELECT coupon_fold();', "SELECT coupon_stock_rebuild($id);");
}

sub session
{
	my $sql = '';
	for (1 .. 150)
	{
		my @some = map { statement() } 1 .. 4;
		my ($end, $back) = (any('COMMIT', 'COMMIT', 'ROLLBACK'), any('RELEASE', 'ROLLBACK TO'));
		$sql .= any($some[0], $some[0], "BEGIN;\n$some[0]\n$some[1]\n$end;",
			"BEGIN;\n$some[0]\nSAVEPOINT a;\n$some[1]\n$some[2]\n$back a;\n$some[3]\n$end;") . "\n";
	}
	my $path = script($sql);
	local %ENV = $node->_get_env();
	return IPC::Run::start([ 'psql', '-Xq', '-d', 'postgres', '-f', $path ], '<', \undef, '>', '/dev/null', '2>', '/dev/null');
}

for my $round (1 .. 4)
{
	my @sessions = map { session() } 1 .. 5;
	if ($round % 2 == 0)
	{
		# Kill it when something has been claimed in this round.
		my $before = sql('SELECT count(*) FROM user_coupon');
		$node->poll_query_until('postgres', "SELECT count(*) > $before + 10 FROM user_coupon");
		$node->stop('immediate');
	}
	$_->finish for @sessions;
	$node->start if $round % 2 == 0;
	is(sql(q{
		SELECT t.id, t.total_stock, r.own, o.quotas FROM coupon_template t
		CROSS JOIN LATERAL (SELECT count(*) AS own FROM user_coupon c WHERE c.template_id = t.id AND c.holder = 0) r
		CROSS JOIN LATERAL (SELECT COALESCE(sum(s.quota), 0) AS quotas FROM coupon_stock s WHERE s.template_id = t.id AND s.holder > 0) o
		WHERE r.own + o.quotas > t.total_stock}), '', "round $round: nothing beyond a total");
	is(sql(q{
		SELECT s.template_id, s.holder, s.quota, n FROM coupon_stock s
		CROSS JOIN LATERAL (SELECT count(*) AS n FROM user_coupon c WHERE c.template_id = s.template_id AND c.holder = s.holder) r
		WHERE s.holder > 0 AND n > s.quota}), '', "round $round: nor beyond a quota");
	is(sql(q{
		SELECT t.id, coupon_stock_left(t.id), t.total_stock - r.own - o.quotas FROM coupon_template t
		CROSS JOIN LATERAL (SELECT count(*) AS own FROM user_coupon c WHERE c.template_id = t.id AND c.holder = 0) r
		CROSS JOIN LATERAL (SELECT COALESCE(sum(s.quota), 0) AS quotas FROM coupon_stock s WHERE s.template_id = t.id AND s.holder > 0) o
		WHERE coupon_stock_left(t.id) IS DISTINCT FROM t.total_stock - r.own - o.quotas}), '', "round $round: what is left is what the tables say");
	is(sql('SELECT template_id, problem FROM coupon_verify() WHERE NOT ok'), '', "round $round: the books balance");
}
cmp_ok(sql('SELECT count(*) FROM user_coupon WHERE holder = 1'), '>', 0, 'another holder has issued');
cmp_ok(sql('SELECT count(*) FROM user_coupon WHERE holder = 3'), '>', 0, 'and coupons were adopted');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal 11/, 'the server has stayed up');
$node->stop;
done_testing();
