# pg_cron runs our procedures, in both of its ways: through connections of its
# own and in background workers.  The clusters run side by side, since its
# clock has whole minutes.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $sharedir = `pg_config --sharedir`;
chomp $sharedir;
plan skip_all => 'pg_cron is not installed for this server'
	unless -e "$sharedir/extension/pg_cron.control";

my $in_workers = {
	0 => 'connections', 1 => 'background workers' };
my $jobs = q{SELECT jobname, schedule, command, jobid > 0 FROM %s() ORDER BY jobname COLLATE "C"};
my $both = join "\n",
	'coupon_purge@postgres|37 3 * * *|CALL public.coupon_purge()|t',
	'coupon_task_run_due@postgres|* * * * *|CALL public.coupon_task_run_due()|t';

# The last line of a refusal's hint, with its code.
sub refusal
{
	my ($node, $db, $sql) = @_;
	my ($ret, $out, $err) = $node->psql($db, "\\set VERBOSITY verbose\n$sql");
	return join ' ', $err =~ /(VC\d\d\d)/, $err =~ /HINT:  (.*)/;
}

sub cluster
{
	my ($workers) = @_;
	my $node = new_node("cron$workers", 'max_worker_processes = 20');
	like(refusal($node, 'postgres', 'SELECT coupon_cron_install()'),
		qr/^VC015 Add pg_cron to shared_preload_libraries, /, 'not preloaded: what to do');
	$node->append_conf('postgresql.conf', <<"X");
shared_preload_libraries = 'coupon, pg_cron'
cron.use_background_workers = $workers
cron.database_name = 'postgres'
cron.host = '@{[ $node->host ]}'
X
	$node->restart;
	is(refusal($node, 'postgres', 'SELECT coupon_cron_install()'),
		'VC015 Run CREATE EXTENSION pg_cron in this database.', 'not created: what to do');
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_cron');
	return $node;
}

# Three expired coupons, jobs that run each minute, old rows about runs.
sub prepare
{
	my ($node, $how) = @_;
	is($node->safe_psql('postgres', sprintf $jobs, 'coupon_cron_install'), $both, "$how: installed");
	is($node->safe_psql('postgres', sprintf $jobs, 'coupon_cron_install'), $both, "$how: again");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM cron.job'), '2', "$how: still two jobs");
	$node->safe_psql('postgres', q{
		INSERT INTO coupon_template (id, name, discount_value, total_stock, status) VALUES (1, 'a', 10, 100, 'published');
		SELECT coupon_receive_many(1, '{1,2,3}');
		UPDATE user_coupon SET use_start = '2020-01-01', use_end = '2020-01-02';
		INSERT INTO cron.job_run_details (jobid, runid, database, username, command, status, start_time, end_time)
		SELECT j.jobid, -n, d, 'postgres', CASE WHEN j.jobid IS NULL THEN 'SELECT 1' ELSE j.command END, 'succeeded',
			now() - age - interval '1 min', now() - age
		FROM (VALUES (1, 'postgres', 'coupon_task_run_due@postgres', interval '8 days'),
			(2, 'postgres', 'coupon_purge@postgres', '6 days'), (3, 'postgres', NULL, '8 days'),
			(4, 'elsewhere', 'coupon_task_run_due@postgres', '8 days')) v (n, d, name, age)
		LEFT JOIN cron.job j ON j.jobname::text = v.name;
		-- of a job that is no more
		INSERT INTO cron.job_run_details (jobid, runid, database, username, command, status, start_time, end_time)
		VALUES (99, -5, 'postgres', 'postgres', 'CALL public.coupon_purge()', 'failed', '2020-01-01', NULL);
		SELECT cron.schedule(jobname, '* * * * *', command) FROM cron.job WHERE jobname::text ~ 'purge'});
	return;
}

sub check_runs
{
	my ($node, $how) = @_;
	$node->poll_query_until('postgres', q{
		SELECT count(DISTINCT jobid) = 2 FROM cron.job_run_details
		WHERE runid > 0 AND status NOT IN ('starting', 'running', 'connecting', 'sending')})
		or fail("$how: the jobs do not run");
	is($node->safe_psql('postgres', q{
		SELECT DISTINCT j.jobname, r.status, r.database FROM cron.job_run_details r JOIN cron.job j USING (jobid)
		WHERE r.runid > 0 AND end_time IS NOT NULL ORDER BY 1}),
		join("\n", map { "coupon_$_\@postgres|succeeded|postgres" } qw(purge task_run_due)),
		"$how: all have succeeded");
	is($node->safe_psql('postgres', 'SELECT DISTINCT h.status, c.status FROM coupon_held h JOIN user_coupon c USING (user_id, id)'), 'expired|0', "$how: coupons have expired, and nobody writes it");
	is($node->safe_psql('postgres', 'SELECT string_agg(runid::text, $$ $$ ORDER BY runid DESC) FROM cron.job_run_details WHERE runid < 0'),
		'-2 -3 -4', "$how: purge removes old rows about our runs, and no others");
	books_balance($node, $how);
	return;
}

sub check_remove
{
	my ($node, $how) = @_;
	$node->safe_psql('postgres', q{SELECT cron.schedule('coupon_purge@elsewhere', '* * * * *', 'CALL public.coupon_purge()')});
	is($node->safe_psql('postgres', 'SELECT count(*) FROM coupon_cron_remove()'), '2', "$how: removed");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM coupon_cron_remove()'), '0', "$how: nothing to remove");
	is($node->safe_psql('postgres', 'SELECT jobname FROM cron.job'), 'coupon_purge@elsewhere', "$how: the job of another stays");
	return;
}

# Another database of the cluster: the statements in the hint do it.
sub check_elsewhere
{
	my ($node) = @_;
	$node->safe_psql('postgres', 'CREATE DATABASE "Shop 2"');
	$node->safe_psql('Shop 2', 'CREATE SCHEMA "my shop"; CREATE EXTENSION coupon SCHEMA "my shop"');
	my $hint = refusal($node, 'Shop 2', 'SELECT "my shop".coupon_cron_install()');
	like($hint, qr/^VC015 pg_cron is at home in database postgres\. Run there: /, 'another database: what to do');
	$hint =~ s/.*Run there: //;
	$node->safe_psql('postgres', $hint);
	$node->safe_psql('postgres', 'SELECT coupon_cron_install()');
	is($node->safe_psql('postgres', q{SELECT database, count(*), count(DISTINCT jobname) FROM cron.job WHERE jobname::text !~ 'elsewhere' GROUP BY 1 ORDER BY 1}),
		"Shop 2|2|2\npostgres|2|2", 'both databases have their jobs');
	is($node->safe_psql('postgres', q{SELECT command FROM cron.job WHERE jobname::text = 'coupon_purge@Shop 2'}),
		'CALL "my shop".coupon_purge()', 'with the schema of each');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM coupon_cron_remove()'), '2', 'and one removes its own');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM cron.job WHERE database = 'Shop 2'}), '2', 'only');
	my $long = 'd' x 60;
	$node->safe_psql('postgres', "CREATE DATABASE $long");
	$node->safe_psql($long, 'CREATE EXTENSION coupon');
	like($node->safe_psql($long, 'SELECT string_agg(jobname, $$ $$) FROM coupon_cron_jobs()'),
		qr/^coupon_task_run_due\@\d+ coupon_purge\@\d+$/, 'a long name becomes a number');
	return;
}

my @nodes = map { cluster($_) } 0, 1;
prepare($nodes[$_], $in_workers->{$_}) for 0, 1;
check_runs($nodes[$_], $in_workers->{$_}) for 0, 1;
check_remove($nodes[$_], $in_workers->{$_}) for 0, 1;
check_elsewhere($nodes[0]);
$_->stop for @nodes;
done_testing();
