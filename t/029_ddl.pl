# Counting beside DDL, of others and of one's own, never finds too few coupons; what
# DDL makes of the tables is refused, not read; and shops have no part in it.

use strict;
use warnings FATAL => 'all';
use feature 'state';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('ddl', "coupon.databases = ''");
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub error_of
{
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$_[0]");
	return $err;
}
sub claim { my ($id, $from, $to) = @_; return sql("SELECT string_agg(code || ' ' || n, ',' ORDER BY code) FROM (SELECT code, count(*) AS n FROM coupon_receive_many($id, ARRAY(SELECT generate_series($from, $to))) GROUP BY 1) x"); }
sub template { my ($id, $total, @more) = @_; sql("INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES ($id, 't', $total, 1, 'published')"); }
sub sold_out_template { my ($id, $total) = @_; template($id, $total); is(claim($id, 1, $total), "0 $total", "$id: all are claimed"); }

# A statement in a session of its own, with what it answers.
sub start
{
	my ($statements, @options) = @_;
	local %ENV = $node->_get_env();
	my $said = '';
	my $run = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', @options, map { ('-c', $_) } ref $statements ? @$statements : $statements ], '<', \undef, '>', \$said, '2>&1');
	return { run => $run, said => \$said };
}
sub finish { $_[0]->{run}->finish; my $said = ${ $_[0]->{said} }; chomp $said; return $said; }
sub await_lock_on
{
	my ($table, $test) = @_;
	ok($node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = '$table'::regclass AND NOT granted)"), $test);
}
# What another session does while a statement waits for it.
sub beside
{
	my ($ddl, $table, $statement, @options) = @_;
	my $changing = $node->background_psql('postgres');
	$changing->query_safe("BEGIN; $ddl");
	my $waiting = start($statement, @options);
	await_lock_on($table, "waits for $table");
	$changing->query_safe('COMMIT');
	$changing->quit;
	return finish($waiting);
}
my $rewrite = q{ADD COLUMN n text DEFAULT gen_random_uuid()::text};

# Rows that were written anew while a count waited.
sold_out_template(1, 40);
sql('SELECT coupon_fold()');
is(beside("ALTER TABLE coupon_stock $rewrite", 'coupon_stock', 'SELECT coupon_stock_rebuild(1)'), '0', 'rewritten: folded counts are seen');
is(claim(1, 41, 60), '2 20', 'rewritten: and nothing more is sold');
sql('ALTER TABLE coupon_stock DROP COLUMN n');
{
	# Another transaction holds an id, so that these are not folded.
	my $holding = $node->background_psql('postgres');
	$holding->query_safe('BEGIN; SELECT coupon_next_id()');
	sold_out_template(2, 40);
	# A session that has looked before, and so waits for the partitions alone.
	my $stop = $node->background_psql('postgres');
	$stop->query_safe('SELECT pg_advisory_lock(1)');
	my $counting = start([ 'SELECT coupon_stock_rebuild(2)', 'SELECT pg_advisory_lock(1)', 'SELECT coupon_stock_rebuild(2)' ]);
	ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)}), 'rewritten: it has counted once');
	my $changing = $node->background_psql('postgres');
	$changing->query_safe("BEGIN; ALTER TABLE user_coupon $rewrite");
	$stop->query_safe('SELECT pg_advisory_unlock(1)');
	ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM pg_locks WHERE relation::regclass::text ~ '^user_coupon' AND NOT granted)}), 'rewritten: it waits');
	$changing->query_safe('COMMIT');
	$_->quit for $stop, $changing;
	is(finish($counting), "0\n\n0", 'rewritten: coupons are seen');
	is(claim(2, 41, 60), '2 20', 'rewritten: and nothing more is sold');
	sql('ALTER TABLE user_coupon DROP COLUMN n');
	$holding->quit;
}
template(3, 5);
is(beside("ALTER TABLE coupon_template $rewrite", 'coupon_template', 'SELECT outcome FROM coupon_receive(3, 1)'), 'ok', 'rewritten: a template is found');
sql('ALTER TABLE coupon_template DROP COLUMN n');

# DDL of one's own, which nobody else sees, and which may be rolled back.
sold_out_template(10, 40);
sql('SELECT coupon_fold()');
like(error_of('BEGIN; ALTER TABLE coupon_stock ALTER folded TYPE bigint USING 0; SELECT coupon_stock_rebuild(10); ROLLBACK'), qr/VC013/, 'own: a count after ALTER TABLE is refused');
is(claim(10, 41, 60), '2 20', 'own: and nothing more is sold');
like(error_of(q{BEGIN;
	ALTER TABLE user_coupon DETACH PARTITION user_coupon_7;
	CREATE TABLE n7 (LIKE user_coupon INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
	ALTER TABLE user_coupon ATTACH PARTITION n7 FOR VALUES WITH (MODULUS 32, REMAINDER 7);
	SELECT coupon_stock_rebuild(10); ROLLBACK}), qr/VC013/, 'own: after another partition');
{
	my $holding = $node->background_psql('postgres');	# so that nothing is folded
	$holding->query_safe('BEGIN; SELECT coupon_next_id()');
	sold_out_template(13, 40);
	sql('ALTER TABLE user_coupon DETACH PARTITION user_coupon_7');
	like(error_of(q{BEGIN;
		CREATE TABLE n7 (LIKE user_coupon_7 INCLUDING ALL);
		ALTER TABLE user_coupon ATTACH PARTITION n7 FOR VALUES WITH (MODULUS 32, REMAINDER 7);
		SELECT coupon_stock_rebuild(13); ROLLBACK}), qr/VC013/, 'own: after a new partition');
	sql('ALTER TABLE user_coupon ATTACH PARTITION user_coupon_7 FOR VALUES WITH (MODULUS 32, REMAINDER 7)');
	is(claim(13, 41, 60), '2 20', 'own: and nothing more is sold');
	$holding->quit;
}
template(11, 1);
is(sql('SELECT coupon_stock_left(11)'), '1', 'own: loaded');
{
	my $claiming = $node->background_psql('postgres');
	$claiming->query_safe('BEGIN; SELECT coupon_receive(11, 10)');
	sql(q{UPDATE coupon_template SET name = 'x' WHERE id = 11});
	like(error_of("BEGIN; ALTER TABLE coupon_template $rewrite; SELECT outcome FROM coupon_receive(11, 11); COMMIT"), qr/VC013/, 'own: a template that was rewritten is not taken for a new one');
	$claiming->query_safe('COMMIT');
	$claiming->quit;
	is(claim(11, 11, 20), '2 10', 'own: one of one');
}
is(sql(q{BEGIN; DROP EXTENSION coupon CASCADE; CREATE EXTENSION coupon;
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (12, 't', 1, 1, 'published');
	SELECT code FROM coupon_receive(12, 1); ROLLBACK}), '0', 'own: tables that are new are its own');

# A total that was raised after others had looked: a change of what a coupon is worth, or
# a deletion, keeps claims out to its end.
for my $how ([ 'raised', sub { template($_[0], 0); sql("SELECT coupon_stock_left($_[0])"); sql("UPDATE coupon_template SET total_stock = 20 WHERE id = $_[0]") } ],
	[ 'to 0 and back', sub { template($_[0], 20); sql("SELECT coupon_stock_left($_[0])");
		sql("BEGIN; UPDATE coupon_template SET total_stock = 0 WHERE id = $_[0]; UPDATE coupon_template SET total_stock = 20 WHERE id = $_[0]; COMMIT") } ],
	[ 'loaded amid a change', sub { template($_[0], 20); sql("BEGIN; UPDATE coupon_template SET total_stock = 30 WHERE id = $_[0]; UPDATE coupon_template SET total_stock = 1 WHERE id = $_[0]; ROLLBACK") } ])
{
	my ($name, $prepare) = @$how;
	for my $act ([ 'value', 'UPDATE coupon_template SET discount_value = 9, total_stock = 5 WHERE id = ID' ],
		[ 'name, total, value', q{UPDATE coupon_template SET name = 'x' WHERE id = ID; UPDATE coupon_template SET total_stock = 7 WHERE id = ID; UPDATE coupon_template SET discount_value = 8, total_stock = 5 WHERE id = ID} ],
		[ 'again', q{UPDATE coupon_template SET discount_value = 9 WHERE id = ID; UPDATE coupon_template SET total_stock = 100 WHERE id = ID; UPDATE coupon_template SET discount_value = 8, total_stock = 5 WHERE id = ID} ],
		[ 'rolled back and again', q{SAVEPOINT s; UPDATE coupon_template SET discount_value = 9 WHERE id = ID; ROLLBACK TO s; UPDATE coupon_template SET discount_value = 8, total_stock = 5 WHERE id = ID} ],
		[ 'deleted', q{DELETE FROM coupon_template WHERE id = ID; INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (ID, 't', 5, 1, 'published')} ])
	{
		state $id = 200;
		$id++;
		$prepare->($id);
		my $changing = $node->background_psql('postgres');
		$changing->query_safe('BEGIN; ' . ($act->[1] =~ s/ID/$id/gr));
		is(claim($id, 1, 20), '2 20', "$name, $act->[0]: others wait for the change to end");
		$changing->query_safe('COMMIT');
		$changing->quit;
		is(claim($id, 1, 20), '0 5,2 15', "$name, $act->[0]: and get what is left then");
	}
}

# The table truncated and filled again while claims are on their way.
{
	sql('TRUNCATE user_coupon, coupon_stock, coupon_watermark');
	sql('TRUNCATE coupon_template');
	template(77, 100);
	sql('SELECT coupon_stock_left(77)');
	my $changing = $node->background_psql('postgres');
	$changing->query_safe('BEGIN; TRUNCATE coupon_template');
	my @claiming = map { start("SELECT string_agg(code::text, ' ') FROM coupon_receive_many(77, ARRAY(SELECT generate_series($_, $_ + 3)))") } (100, 200, 300);
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 3 FROM pg_locks WHERE NOT granted}), 'truncated: claims wait');
	$changing->query_safe(q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (77, 'new', 5, 1, 'published')});
	is($changing->query_safe('SELECT count(*) FROM coupon_receive_many(77, ARRAY[1, 2, 3, 4, 5]) WHERE code = 0'), '5', 'truncated: and filled again');
	$changing->query_safe('COMMIT');
	# Their statements began before the window of the new one.
	unlike(join(' ', map { finish($_) } @claiming), qr/\b0\b/, 'truncated: nothing is left for those');
	$changing->quit;

	# One that has taken a unit, and is not at the table yet, is waited for.
	sql('TRUNCATE user_coupon, coupon_stock, coupon_watermark');
	sql('SELECT coupon_stock_left(77)');
	my $claiming = $node->background_psql('postgres');
	$claiming->query_safe('BEGIN; SELECT coupon_receive(77, 1)');
	like(error_of(q{SET lock_timeout = '10s'; SET coupon.gate_timeout = '100ms'; TRUNCATE coupon_template}), qr/VC008/, 'truncated: an open claim stands in the way');
	$claiming->query_safe('ROLLBACK');
	# Refused at once, where coupons are there, and claims do not feel it.
	is(claim(77, 500, 500), '0 1', 'truncated: one is claimed');
	is($claiming->query_safe('BEGIN; SELECT code FROM coupon_receive(77, 501)'), '0', 'truncated: and one more is open');
	like(error_of(q{SET lock_timeout = '10s'; TRUNCATE coupon_template}), qr/VC007/, 'truncated: refused');
	is($claiming->query_safe('SELECT code FROM coupon_receive(77, 502)'), '0', 'truncated: the open one claims on');
	$claiming->query_safe('COMMIT');
	$claiming->quit;
	sql('TRUNCATE user_coupon, coupon_stock, coupon_watermark');
	sql('TRUNCATE coupon_template');
}
# An id that is deleted and inserted again: nobody takes from the old numbers, and none counts
# before the end.
{
	template(78, 0);
	sql('SELECT coupon_stock_left(78)');
	my $changing = $node->background_psql('postgres');
	$changing->query_safe('BEGIN; DELETE FROM coupon_template WHERE id = 78');
	$changing->query_safe(q{INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (78, 'new', 50, 1, 'published')});
	is(sql('SELECT in_flight > 0 FROM coupon_stat_entries() WHERE template_id = 78'), 't', 'inserted again: the entry is shut');
	is($changing->query_safe('SELECT count(*) FROM coupon_receive_many(78, ARRAY(SELECT generate_series(1, 40))) WHERE code = 0'), '40', 'inserted again: claimed');
	is(claim(78, 101, 105), '2 5', 'inserted again: others see the old one');
	$changing->query_safe('COMMIT');
	is(claim(78, 101, 120), '0 10,2 10', 'inserted again: and then what is left');
	$changing->quit;
}

# A total that is lowered and raised for ever.
template(20, 'NULL');
claim(20, 1, 1);
{
	my $lowering = $node->background_psql('postgres');
	my $err = error_of(q{BEGIN; DO $$BEGIN FOR i IN 1..6 LOOP
		UPDATE coupon_template SET total_stock = 10 WHERE id = 20;
		IF i < 6 THEN UPDATE coupon_template SET total_stock = NULL WHERE id = 20; END IF;
		END LOOP; END$$});
	like($err, qr/VC013: the total of template 20 was lowered too often/, 'lowered: six times is refused');
	$lowering->query_safe('BEGIN; UPDATE coupon_template SET total_stock = 10 WHERE id = 20; UPDATE coupon_template SET total_stock = NULL WHERE id = 20; UPDATE coupon_template SET total_stock = 10 WHERE id = 20');
	is(claim(20, 100, 199), '2 100', 'lowered: twice, and nobody gets too many');
	$lowering->query_safe('COMMIT');
	$lowering->quit;
	is(claim(20, 100, 199), '0 9,2 91', 'lowered: then what is left');
}
# Half of the total, then the rest with what a coupon is worth.
for my $total (10, 'NULL')
{
	my $id = $total eq '10' ? 21 : 22;
	template($id, $total);
	is(sql("SELECT coupon_stock_left($id) IS NOT DISTINCT FROM $total"), 't', "$id: loaded");
	my $changing = $node->background_psql('postgres');
	$changing->query_safe("BEGIN; UPDATE coupon_template SET total_stock = 5 WHERE id = $id; UPDATE coupon_template SET total_stock = 1, discount_value = 99 WHERE id = $id");
	is(claim($id, 1, 7), '2 7', "$id: lowered and changed: nobody else gets any");
	$changing->query_safe('COMMIT');
	$changing->quit;
	is(claim($id, 1, 7), '0 1,2 6', "$id: then one");
}
# As many units as all, by lowering and raising again, while another transaction has some.
template(26, 10);
is(sql('SELECT coupon_stock_left(26)'), '10', 'toggled: loaded');
{
	my $claiming = $node->background_psql('postgres');
	$claiming->query_safe('BEGIN; SELECT count(*) FROM coupon_receive_many(26, ARRAY[1, 2, 3, 4, 5])');
	like(error_of(q{SET coupon.gate_timeout = '100 ms'; BEGIN;
		UPDATE coupon_template SET total_stock = 5 WHERE id = 26; UPDATE coupon_template SET total_stock = 10 WHERE id = 26;
		UPDATE coupon_template SET total_stock = 5 WHERE id = 26;
		UPDATE coupon_template SET total_stock = 1, discount_value = 99 WHERE id = 26; COMMIT}), qr/VC008/, 'toggled: what others hold is not taken for its own');
	$claiming->query_safe('COMMIT');
	$claiming->quit;
}
# Claims in the statement that changes their template see what it has made of it.
template(23, 10);
is(sql(q{UPDATE coupon_template SET total_stock = 1 WHERE id = 23 RETURNING
	(SELECT string_agg(code::text, ',' ORDER BY code) FROM coupon_receive_many(23, ARRAY[1, 2, 3, 4]))}), '0,2,2,2', 'in one statement: UPDATE RETURNING');
template(24, 10);
is(sql(q{WITH u AS (UPDATE coupon_template SET total_stock = 1 WHERE id = 24 RETURNING id)
	SELECT string_agg(r.code::text, ',' ORDER BY r.code) FROM u, coupon_receive_many(u.id, ARRAY[1, 2, 3, 4]) r}), '0,2,2,2', 'in one statement: WITH');
template(25, 10);
is(sql('DELETE FROM coupon_template WHERE id = 25 RETURNING (SELECT code FROM coupon_receive(25, 1))'), '1', 'in one statement: DELETE RETURNING');
books_balance($node, 'after DDL');

# A partition that is none.
sql(q{BEGIN;
	ALTER TABLE user_coupon DETACH PARTITION user_coupon_7;
	CREATE TABLE new7 (LIKE user_coupon INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (user_id);
	CREATE TABLE new7a PARTITION OF new7 DEFAULT;
	ALTER TABLE user_coupon ATTACH PARTITION new7 FOR VALUES WITH (MODULUS 32, REMAINDER 7);
	COMMIT});
template(30, 'NULL');
like(error_of('SELECT coupon_receive(30, 1)'), qr/VC009: partition "new7" of user_coupon is not an ordinary table/, 'a partition that is partitioned');
sql(q{BEGIN; ALTER TABLE user_coupon DETACH PARTITION new7; DROP TABLE new7;
	ALTER TABLE user_coupon ATTACH PARTITION user_coupon_7 FOR VALUES WITH (MODULUS 32, REMAINDER 7); COMMIT});
is(claim(30, 1, 1), '0 1', 'and the old one again');

# Columns that have become something else.
sql(q{SELECT coupon_channel_set('app', 'http://127.0.0.1:1/', headers => '{"X": "y"}');
	ALTER TABLE coupon_secret DROP CONSTRAINT coupon_secret_check, ALTER value TYPE int USING 5});
like(error_of(q{SELECT * FROM coupon_channel_preview('coupon', 'app', 1)}), qr/VC009/, 'headers that are a number');
sql(q{ALTER TABLE coupon_secret ALTER value TYPE text USING '['});
like(error_of(q{SELECT * FROM coupon_channel_preview('coupon', 'app', 1)}), qr/22P02/, 'headers that are not JSON');
my $task = sql(q{SELECT task_id FROM coupon_task_create('x', 30)});
sql(q{DO $$BEGIN EXECUTE (SELECT format('ALTER TABLE coupon_task DROP CONSTRAINT %I', conname) FROM pg_constraint
	WHERE conrelid = 'coupon_task'::regclass AND pg_get_constraintdef(oid) ~ 'notify'); END$$;
	ALTER TABLE coupon_task ALTER notify DROP DEFAULT, ALTER notify TYPE int USING 7});
like(error_of("SELECT * FROM coupon_task_submit($task)"), qr/VC009/, 'channels of a task that are a number');
sql(q{ALTER TABLE coupon_task ALTER notify TYPE text[] USING '{}'});

# Shops and roles.
sql(q{
	CREATE ROLE app LOGIN; CREATE ROLE office LOGIN; CREATE ROLE office7 LOGIN; CREATE ROLE office8 LOGIN; CREATE ROLE watch LOGIN;
	SELECT coupon_grant('app', 'application'), coupon_grant('office', 'operator'), coupon_grant('watch', 'monitor'),
		coupon_grant('office7', 'operator', 7), coupon_grant('office8', 'operator', 8);
	INSERT INTO coupon_contact (user_id, channel, address) VALUES (1, 'app', 'a'), (2, 'app', 'b');
	INSERT INTO coupon_template (id, name, shop_number, issuer, discount_value, status, receive_start) VALUES (41, 'eight', 8, 'shop', 1, 'published', now() + '1 day')});
for my $how ("ALTER TABLE coupon_role $rewrite", 'CREATE TEMP TABLE r AS SELECT * FROM coupon_role; TRUNCATE coupon_role; INSERT INTO coupon_role SELECT * FROM r')
{
	is(beside($how, 'coupon_role', 'SELECT count(*) FROM coupon_contact', '-U', 'office7'), '0', 'a bound operator stays bound, ' . substr($how, 0, 6));
}
sql(q{INSERT INTO coupon_notification (channel, kind, template_id, user_ids, due_at, next_at) VALUES ('app', 'coupon', 42, '{1}', now(), 'infinity');
	INSERT INTO coupon_notification_history (id, channel, kind, template_id, user_ids, state, due_at, ended_at, attempts, last_error)
	VALUES (coupon_next_id(), 'app', 'coupon', 43, '{12345}', 'dead', now(), now(), 5, 'told +861380')});
# A function that tells what it is asked about sees nothing of other shops.
for my $stuck ('coupon_stuck_notifications', q{coupon_stuck('0 s')})
{
	my $leak = error_of(qq{SET ROLE office7;
		CREATE FUNCTION pg_temp.leak(v text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS \$\$BEGIN RAISE NOTICE 'LEAK %', v; RETURN true; END\$\$;
		SELECT count(*) FROM $stuck s WHERE pg_temp.leak(concat_ws('|', id, last_error))});
	unlike($leak, qr/LEAK|ERROR/, "no leak from $stuck");
}
sql('TRUNCATE coupon_notification, coupon_notification_history');

# A stage lies where the database has its tables, and nobody else can make objects of its type.
my $space = PostgreSQL::Test::Utils::tempdir;
$node->psql('postgres', "CREATE TABLESPACE priv LOCATION '$space'");
$task = sql(q{SET ROLE office; SET default_tablespace = priv; SELECT task_id FROM coupon_task_create('ts', 30)});
is(sql("SELECT reltablespace FROM pg_class WHERE relname = 'coupon_stage_$task'"), '0', 'a stage is not in the tablespace of a setting');
for my $type ("coupon_stage_$task", 'coupon_template', 'user_coupon')
{
	like(error_of("SET ROLE watch; CREATE TEMP TABLE x (a $type)"), qr/42501: permission denied for type $type/, "nobody makes a column of type $type");
}
# What its loader has made of it, and holds, does not stop the task.
sql("SET ROLE office; INSERT INTO coupon_stage_$task (user_id) VALUES ('51')");
{
	my $loader = $node->background_psql('postgres', extra_params => [ '-U', 'office' ]);
	$loader->query_safe("CREATE TEMP VIEW v AS SELECT * FROM coupon_stage_$task; BEGIN; COMMENT ON VIEW v IS 'x'");
	sql("SET ROLE office; SELECT coupon_task_submit($task)");
	sql("SET ROLE office; CALL coupon_task_run($task)");
	is(sql("SELECT state FROM coupon_task WHERE id = $task"), 'success', 'a task ends while its stage is in use');
	$loader->query_safe('COMMIT');
	$loader->quit;
}
sql('CALL coupon_purge()');
is(sql("SELECT to_regclass('coupon_stage_$task')"), '', 'and coupon_purge drops it then');

$node->stop;
done_testing();
