# The launcher and the workers: they come by themselves, fold, write nothing
# while idle, make room for DROP DATABASE and its like, and come back after
# everything that can end them.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing but the worker writes WAL here, as far as that can be had.
my $node = new_node('worker', <<'X', allows_streaming => 1);
autovacuum = off
restart_after_crash = on
max_worker_processes = 8
X

# What a worker of a database is doing: state and whether there is a process.
sub state_is
{
	my ($state, $db, $what, $on) = @_;
	$on ||= $node;
	ok($on->poll_query_until('postgres', qq{
		SELECT '$state' = COALESCE((SELECT state FROM coupon_stat_worker
		WHERE database = '$db'), 'none')}), $what);
	return;
}

sub pid_of
{
	my ($type, $db) = @_;
	my $where = $db ? "AND datname = '$db'" : '';
	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'coupon $type' $where");
}

# Wait for a process of that type which is not the old one.
sub comes_back
{
	my ($type, $old, $what) = @_;
	ok($node->poll_query_until('postgres', qq{
		SELECT EXISTS (SELECT FROM coupon_stat_worker
		WHERE kind = '$type' AND pid <> $old AND state = 'running'
		AND (database = 'postgres' OR kind = 'launcher'))}), $what);
	return;
}

my $user = 0;

# Claim once, and wait until the worker has folded it.
sub folds
{
	my ($what, $db, $on) = @_;
	($db, $on) = ($db || 'postgres', $on || $node);
	$user++;
	is($on->safe_psql($db, "SELECT code FROM coupon_receive(1, $user)"), '0', "$what: claimed");
	ok($on->poll_query_until($db, q{
		SELECT (SELECT folded FROM coupon_stock WHERE template_id = 1) = count(*) FROM user_coupon}),
		"$what: folded");
	return;
}

sub add_template
{
	my ($db) = @_;
	$node->safe_psql($db, q{
		INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
		VALUES (1, 'a', 1000, 10, 'published')});
	return;
}

# Make the worker of postgres turn n times.
sub turns
{
	my ($n) = @_;
	for (1 .. $n)
	{
		my $before = $node->safe_psql('postgres', q{
			SELECT turns FROM coupon_stat_worker WHERE database = 'postgres'});
		$node->safe_psql('postgres', 'SELECT coupon_worker_wake()');
		$node->poll_query_until('postgres', qq{
			SELECT turns > $before FROM coupon_stat_worker WHERE database = 'postgres'});
	}
	return;
}

# It starts by itself, where the extension is and nowhere else.
$node->safe_psql('postgres', 'CREATE DATABASE plain');
state_is('running', 'postgres', 'CREATE EXTENSION starts a worker');
state_is('none', 'plain', 'none stays without the extension');
add_template('postgres');
folds('after a claim');
$node->safe_psql('postgres', 'SELECT coupon_receive_many(1, ARRAY(SELECT generate_series(101, 200)))');
folds('after many');
is($node->safe_psql('postgres', q{SELECT count(*) FROM coupon_health WHERE check_name = 'worker' AND status = 'ok'}),
	'1', 'coupon_health says that it runs');

# One who is held up by an open transaction comes back although nobody wakes it.
my $open = $node->background_psql('postgres');
$open->query_safe('BEGIN; SELECT coupon_receive(1, 301)');
$node->safe_psql('postgres', 'SELECT coupon_receive(1, 302)');
turns(2);
is($node->safe_psql('postgres', 'SELECT count(*) - (SELECT folded FROM coupon_stock) FROM user_coupon'),
	'1', 'what is past an open transaction is not folded');
$open->query_safe('ROLLBACK');
ok($node->poll_query_until('postgres', 'SELECT (SELECT folded FROM coupon_stock) = count(*) FROM user_coupon'),
	'and is when that has rolled back');
$open->quit;

# Idle, it neither writes nor holds anything.
turns(3);
$node->safe_psql('postgres', 'CHECKPOINT');
my $wal = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())');
turns(10);
is($node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())'),
	$wal, 'ten turns with nothing to do write no WAL and take no transaction id');
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype <> 'virtualxid'
	WHERE backend_type ~ '^coupon' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL
		OR xact_start IS NOT NULL OR l.pid IS NOT NULL)}),
	'0', 'an idle worker has no snapshot, no transaction and no lock');

# What waits for whom: the worker's are pushes over HTTP, of this database.
$node->safe_psql('postgres', q{
	INSERT INTO coupon_channel (channel, endpoint, enabled)
	VALUES ('sms', 'http://127.0.0.1:9/', true), ('app', 'http://127.0.0.1:9/', false);
	INSERT INTO coupon_notification (channel, kind, user_ids, due_at, next_at)
	VALUES ('sms', 'test', '{0}', now(), now() + interval '1 h'), ('app', 'test', '{0}', now(), now())});
is($node->safe_psql('postgres', 'SELECT kind, queue_depth, lateness FROM coupon_stat_worker ORDER BY kind'),
	"launcher||\nworker|1|00:00:00", 'a push that waits is counted, one of a channel that is off is not');
$node->safe_psql('postgres', q{
	UPDATE coupon_notification SET next_at = now() - interval '1 h', leased_until = now() + interval '1 h'
	WHERE channel = 'sms'});
is($node->safe_psql('postgres', q{SELECT queue_depth, lateness FROM coupon_stat_worker WHERE kind = 'worker'}),
	'0|00:00:00', 'nor one that is being sent');
is($node->safe_psql('postgres', q{
	BEGIN;
	UPDATE coupon_notification SET leased_until = NULL WHERE channel = 'sms';
	SELECT queue_depth, date_trunc('hour', lateness) FROM coupon_stat_worker WHERE kind = 'worker';
	ROLLBACK}),
	'1|01:00:00', 'how long the oldest waits');
$node->safe_psql('postgres', 'TRUNCATE coupon_notification, coupon_channel');

# A failing job is recorded, and goes on after the repair.
my $offset = -s $node->logfile;
$node->safe_psql('postgres', 'ALTER TABLE coupon_watermark RENAME COLUMN upto TO elsewhere');
$node->safe_psql('postgres', 'SELECT coupon_receive(1, 401)');
ok($node->poll_query_until('postgres', q{
	SELECT last_error ~ '^fold: .*upto' AND errors >= 2 FROM coupon_stat_worker WHERE database = 'postgres'}),
	'an error is recorded, and tried again');
is($node->safe_psql('postgres', q{SELECT state FROM coupon_stat_worker WHERE database = 'postgres'}),
	'running', 'the worker goes on');
my @logged = slurp_file($node->logfile, $offset) =~ /ERROR: .*upto/g;
is(scalar(@logged), 1, 'the error is logged once');
$node->safe_psql('postgres', 'ALTER TABLE coupon_watermark RENAME COLUMN elsewhere TO upto');
like($node->safe_psql('postgres', q{SELECT status, detail FROM coupon_health WHERE check_name = 'worker'}),
	qr/^warning.*last error/, 'coupon_health tells');
$node->safe_psql('postgres', 'SELECT coupon_worker_wake()');
folds('after the repair');

# DROP EXTENSION and CREATE EXTENSION.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION coupon');
state_is('running', 'other', 'a worker in a second database');
$node->safe_psql('other', 'DROP EXTENSION coupon');
state_is('none', 'other', 'it leaves when the extension is dropped');
$node->safe_psql('other', 'CREATE SCHEMA shop; CREATE EXTENSION coupon SCHEMA shop');
state_is('running', 'other', 'and comes with it, into another schema');
$node->safe_psql('other', 'ALTER DATABASE other SET search_path = shop');
$node->safe_psql('other', q{ALTER DATABASE other SET default_transaction_isolation = 'serializable'});
add_template('other');
folds('created again', 'other');
$node->safe_psql('other', 'DROP EXTENSION coupon; CREATE EXTENSION coupon SCHEMA shop');
add_template('other');
folds('dropped and created at once', 'other');

# A restore writes rows with old ids, table by table: no fold amid them.
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->safe_psql('restored', 'CREATE EXTENSION coupon');
state_is('running', 'restored', 'a worker where a restore begins');
add_template('restored');
$node->safe_psql('restored', q{INSERT INTO user_coupon (id, user_id, template_id, use_end, holder) VALUES (1001, 1, 1, 'infinity', 0)});
my $pid = pid_of('worker', 'restored');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok($node->poll_query_until('postgres', qq{
	SELECT pid <> $pid AND last_turn_at > started_at FROM coupon_stat_worker WHERE database = 'restored'}), 'a turn in between');
is($node->safe_psql('restored', 'SELECT count(*) FROM coupon_watermark'), '0', 'does not fold');
$node->safe_psql('restored', q{INSERT INTO user_coupon (id, user_id, template_id, use_end, holder) VALUES (1002, 2, 1, 'infinity', 0)});
$user = 10;
folds('restored', 'restored');
books_balance($node, 'restored', 'restored');
$node->safe_psql('postgres', 'DROP DATABASE restored');

# Commands that need the database to themselves.  Each of them would fail if
# the worker stayed.
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE other');
ok(1, 'a database with a worker can be copied');
$node->safe_psql('copy', 'SELECT shop.coupon_worker_wake()');
state_is('running', 'copy', 'the copy has a worker');
state_is('running', 'other', 'and the original has one again');
$node->safe_psql('postgres', 'ALTER DATABASE copy RENAME TO renamed');
state_is('running', 'renamed', 'a renamed one as well');
my ($rc, $out, $err) = $node->psql('postgres', 'CREATE ROLE nobody; SET ROLE nobody; DROP DATABASE renamed');
like($err, qr/must be owner/, 'who may not drop it');
is($node->safe_psql('postgres', q{SELECT state FROM coupon_stat_worker WHERE database = 'renamed'}),
	'running', 'does not send the worker away');
$node->safe_psql('postgres', 'DROP DATABASE renamed');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_database WHERE datname = 'renamed'}), '0', 'plain DROP DATABASE works');
my $guest = $node->background_psql('other');
($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE other');
like($err, qr/is being accessed by other users.*1 other session/s, 'one with a guest cannot be dropped, and the worker is not counted');
state_is('running', 'other', 'the worker comes back');
$guest->quit;
$node->safe_psql('postgres', 'DROP DATABASE other WITH (FORCE)');
ok($node->poll_query_until('postgres', q{
	SELECT count(*) = 2 FROM coupon_stat_workers()}), 'what was dropped is forgotten');

# Ended by force.
$pid = pid_of('worker', 'postgres');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
comes_back('worker', $pid, 'a terminated worker comes back');
$pid = pid_of('launcher');
my $worker = pid_of('worker', 'postgres');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
comes_back('launcher', $pid, 'a terminated launcher comes back');
is(pid_of('worker', 'postgres'), $worker, 'and finds the worker that runs');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
comes_back('worker', $worker, 'which it then looks after');
$worker = pid_of('worker', 'postgres');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($worker)");
turns(1);
is(pid_of('worker', 'postgres'), $worker, 'a cancel does not end it');
folds('after all that');
kill 'KILL', $worker;
$node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $worker)");
comes_back('worker', $worker, 'killed -9: both come back with the server');
folds('after the crash');
$node->restart;
state_is('running', 'postgres', 'a worker after a restart');

# Turned off and on.
$node->safe_psql('postgres', q{ALTER SYSTEM SET coupon.databases = ''});
$node->reload;
state_is('none', 'postgres', 'an empty coupon.databases stops it');
$node->safe_psql('postgres', q{ALTER SYSTEM SET coupon.databases = 'plain', 'elsewhere'});
$node->reload;
ok($node->poll_query_until('postgres', q{
	SELECT detail = 'coupon.databases does not name this database' FROM coupon_health WHERE check_name = 'worker'}),
	'coupon_health tells when it is not named');
$node->safe_psql('postgres', q{ALTER SYSTEM SET coupon.databases = 'plain', 'postgres'});
$node->reload;
state_is('running', 'postgres', 'named, it has one again');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET coupon.databases');
$node->reload;

# More databases than processes: one warning, and a view that says so.  Two
# places go to our launcher and to that of logical replication.
$offset = -s $node->logfile;
$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
$node->restart;
state_is('running', 'postgres', 'one place is left');
$node->safe_psql('postgres', 'CREATE DATABASE more');
$node->safe_psql('more', 'CREATE EXTENSION coupon');
ok($node->poll_query_until('postgres', q{
	SELECT last_error ~ 'max_worker_processes' FROM coupon_stat_worker WHERE database = 'more'}),
	'none is left for a second database');
like(slurp_file($node->logfile, $offset), qr/WARNING:  no background worker is left for coupon\n.*HINT:  Raise max_worker_processes/,
	'a warning says what to do');
$node->safe_psql('postgres', 'DROP DATABASE more');
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;

# A standby has none until it is promoted.
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
is($standby->safe_psql('postgres', q{
	SELECT (SELECT count(*) FROM coupon_stat_worker),
		(SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^coupon'),
		(SELECT status || ', ' || detail FROM coupon_health WHERE check_name = 'worker')}),
	'0|0|ok, a standby has no worker', 'a standby has none, and says so');
$node->wait_for_catchup($standby);
$node->stop;
$standby->promote;
state_is('running', 'postgres', 'a promoted one has', $standby);
folds('promoted', 'postgres', $standby);
books_balance($standby, 'promoted');
$standby->stop;
done_testing();
