# Distribution under fire: runners killed at any moment, several runners at
# one task, users who claim meanwhile.  Every line is handled exactly once.
#
# COUPON_KILLS (default 12) and COUPON_SEED make it longer, or repeat a run:
# .ci/check long runs a hundred.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib $FindBin::RealBin;
use CouponTest;
use IPC::Run;
use Time::HiRes qw(usleep);
use PostgreSQL::Test::Utils;
use Test::More;

my $kills = $ENV{COUPON_KILLS} || 12;
my $seed = $ENV{COUPON_SEED} || time;
srand($seed);
note("seed $seed, $kills kills");

my $node = new_node('main', "restart_after_crash = on\ncoupon.batch_size = 100\ncheckpoint_timeout = 1h\ncoupon.databases = ''");

# A file with every kind of line, as real ones are: Windows line ends, quotes,
# a blank line, a header.  What is expected of each line is computed here.
my ($lines, $users) = (8_000, 7_000);
sub write_file
{
	my ($path) = @_;
	my @file;
	for my $n (1 .. $lines)
	{
		my $kind = int(rand(100));
		my $user = 1 + int(rand($users));
		push @file,
			$kind < 1 ? '' : $kind < 2 ? 'not a user' : $kind < 3 ? "\"\n$user\"" : $kind < 50 ? "\"$user\"" : $user;
	}
	open(my $f, '>:raw', $path) or die $!;
	print $f "user_id\r\n", map { "$_\r\n" } @file;
	close $f;
	# The record numbers of the file, with the user each names.
	my $expected = '';
	for my $n (1 .. $lines)
	{
		(my $user = $file[ $n - 1 ]) =~ s/["\s]//g;
		$expected .= ($n + 1) . ",$user\n" if $user =~ /^\d+$/;
	}
	append_to_file("$path.expected", $expected);
}

sub new_task
{
	my ($name, $stock) = @_;
	my $path = PostgreSQL::Test::Utils::tempdir() . "/$name.csv";
	write_file($path);
	my $id = $node->safe_psql('postgres', qq{
		INSERT INTO coupon_template (name, total_stock, discount_value, status)
		VALUES ('$name', $stock, 1, 'published') RETURNING id});
	my $task = $node->safe_psql('postgres', "SELECT task_id FROM coupon_task_create('$name', $id)");
	$node->safe_psql('postgres', qq{
		CREATE TABLE expected_$name (row_num bigint PRIMARY KEY, user_id bigint);
		COPY expected_$name FROM '$path.expected' CSV;
		COPY coupon_stage_$task (user_id) FROM '$path' CSV HEADER});
	is($node->safe_psql('postgres', "SELECT lines FROM coupon_task_submit($task)"),
		$lines, "$name: sealed with every record");
	return ($id, $task);
}

# Each line once: in coupon_task_failure, or as a coupon of its user.
sub task_books
{
	my ($name, $id, $task) = @_;
	my $failures = "(SELECT * FROM coupon_task_failure WHERE task_id = $task)";
	my $issued = "(SELECT * FROM user_coupon WHERE template_id = $id AND request_id = 'task $task')";
	is($node->safe_psql('postgres', qq{
		SELECT state, issued + failed = lines FROM coupon_task_progress WHERE task_id = $task}),
		'success|t', "$name: issued + failed = lines");
	is($node->safe_psql('postgres', qq{
		SELECT (SELECT issued FROM coupon_task WHERE id = $task) = (SELECT count(*) FROM $issued i),
		       (SELECT failed FROM coupon_task WHERE id = $task) = (SELECT count(*) FROM $failures f)}),
		't|t', "$name: as many coupons and failures as it says");
	is($node->safe_psql('postgres', qq{
		SELECT e.row_num FROM expected_$name e LEFT JOIN $failures f USING (row_num)
		WHERE (f.row_num IS NULL AND NOT EXISTS (SELECT FROM $issued i WHERE i.user_id = e.user_id))
		   OR f.cause = 'invalid_user_id' OR f.user_id <> e.user_id::text LIMIT 5}),
		'', "$name: each line has its own failure, or its user a coupon");
	is($node->safe_psql('postgres', qq{
		SELECT e.user_id FROM expected_$name e LEFT JOIN $failures f USING (row_num)
		GROUP BY e.user_id HAVING count(*) FILTER (WHERE f.row_num IS NULL) <>
		  (SELECT count(*) FROM $issued i WHERE i.user_id = e.user_id) LIMIT 5}),
		'', "$name: one coupon for one line");
	is($node->safe_psql('postgres', qq{
		SELECT count(*) FROM $failures f LEFT JOIN expected_$name e USING (row_num)
		WHERE (e.row_num IS NULL) <> (f.cause = 'invalid_user_id')}),
		'0', "$name: bad lines are those of the file");
	is($node->safe_psql('postgres', qq{
		SELECT user_id FROM user_coupon WHERE template_id = $id GROUP BY 1 HAVING count(*) > 1 LIMIT 5}),
		'', "$name: nobody has two");
	books_balance($node, $name);
}

sub start_psql
{
	my ($sql) = @_;
	local %ENV = $node->_get_env();
	my $out = '';
	my $h = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', '-c', $sql ], '<', \'', '>', \$out, '2>&1');
	return { handle => $h, out => \$out };
}

sub finish { my ($run) = @_; $run->{handle}->finish; return ${ $run->{out} }; }

# Several runners, and users who claim at the same time, some to change their mind.
{
	my ($id, $task) = new_task('together', 6_000);
	my $claims = script(qq{
\\set user random(1, $users)
BEGIN;
SELECT coupon_receive($id, :user);
\\set back random(1, 4)
\\if :back = 1
ROLLBACK;
\\else
COMMIT;
\\endif
});
	my $bench = start_pgbench($node, '-c', 4, '-t', 400, '-f', $claims);
	my @runs = map { start_psql("CALL coupon_task_run($task)") } 1 .. 2;
	push @runs, map { start_psql('CALL coupon_task_run_due()') } 1 .. 2;
	my @out = map { finish($_) } @runs;
	$bench->{handle}->finish;
	unlike(${ $bench->{out} }, qr/deadlock|ERROR/, 'together: no claim fails because of a distribution');
	unlike(join('', @out), qr/ERROR/, 'together: no runner fails');
	task_books('together', $id, $task);
	cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM coupon_task_failure WHERE task_id = $task AND cause = 'already_received'"),
		'>', 0, 'together: some had claimed before');
}

# Stock that ends in mid-file goes to the first lines, whoever runs them.
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET coupon.batch_size = 25');
for my $round (1 .. 4)
{
	my ($id, $task) = new_task("short$round", 1_000 * $round);
	my @runs = map { start_psql("CALL coupon_task_run($task)") } 1 .. 4;
	finish($_) for @runs;
	task_books("short$round", $id, $task);
	is($node->safe_psql('postgres', qq{
		WITH f AS (SELECT * FROM coupon_task_failure WHERE task_id = $task)
		SELECT max(e.row_num) FILTER (WHERE f.row_num IS NULL) < min(f.row_num) FILTER (WHERE f.cause = 'out_of_stock')
		FROM expected_short$round e LEFT JOIN f USING (row_num)}),
		't', "short$round: the first lines of the file have got it");
}
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET coupon.batch_size');

# The same with claims meanwhile, of users who are not in the file: a claim takes
# its unit for good.  What can be promised then, since lines wait for each other
# but not for claims: when a line has been refused for want of stock, no line gets
# a coupon any more; and a later line got one only when enough were left for all
# lines before it, so that claims have taken theirs since.
$node->safe_psql('postgres', q{
	ALTER DATABASE postgres SET coupon.batch_size = 10;
	CREATE TABLE seen (task_id bigint, row_num bigint, at timestamptz, put_off bool);
	CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	BEGIN
		INSERT INTO public.seen VALUES (new.task_id, new.row_num, clock_timestamp(), tg_table_name = 'coupon_task_put_off');
		RETURN NULL;
	END $$;
	CREATE TRIGGER my_see AFTER INSERT ON coupon_task_failure FOR EACH ROW EXECUTE FUNCTION see();
	CREATE TRIGGER my_see AFTER INSERT ON coupon_task_put_off FOR EACH ROW EXECUTE FUNCTION see()});
for my $round (1 .. 2)
{
	my $name = "crowd$round";
	my ($id, $task) = new_task($name, 1_500 * $round);
	my ($in, $out) = ('', '');
	local %ENV = $node->_get_env();
	my $open = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres' ], '<', \$in, '>', \$out);
	$in .= "BEGIN; SELECT count(*) FROM generate_series(1, 200, 10) u, coupon_receive($id, u);\n";
	$open->pump until $out =~ /20/;
	my $bench = start_pgbench($node, '-c', 2, '-R', 200, '-T', 300, '-f', script(qq{
\\set user random(1000000, 1000000000)
SELECT coupon_receive($id, :user);
}));
	my @runs = map { start_psql("CALL coupon_task_run($task)") } 1 .. 3;
	ok($node->poll_query_until('postgres', qq{
		SELECT NOT EXISTS (SELECT FROM coupon_task_batch WHERE task_id = $task AND done_at IS NULL)}),
		"$name: all batches are done while claims are open");
	$in .= "COMMIT;\n";
	$open->finish;
	unlike(join('', map { finish($_) } @runs), qr/ERROR/, "$name: no runner fails");
	stop_pgbench($node, $bench);
	unlike(${ $bench->{out} }, qr/deadlock|ERROR/, "$name: no claim fails");
	task_books($name, $id, $task);

	# Lines with what became of them, in "line"; those put off are claims.
	my $of_task = "template_id = $id AND request_id = 'task $task'";
	my $line = qq{line AS (
		SELECT e.row_num, f.cause, s.at AS refused_at, CASE WHEN f.cause IS NULL THEN c.received_at END AS got_at
		FROM expected_$name e
		LEFT JOIN coupon_task_failure f ON f.task_id = $task AND f.row_num = e.row_num
		LEFT JOIN seen s ON s.task_id = $task AND s.row_num = e.row_num AND NOT s.put_off
		LEFT JOIN user_coupon c ON c.user_id = e.user_id AND c.$of_task
		WHERE NOT EXISTS (SELECT FROM seen p WHERE p.task_id = $task AND p.row_num = e.row_num AND p.put_off))};
	is($node->safe_psql('postgres', qq{
		WITH $line SELECT count(got_at) > 100, count(*) FILTER (WHERE cause = 'out_of_stock') > 100,
		  (SELECT count(*) > 0 FROM seen WHERE task_id = $task AND put_off) FROM line}),
		't|t|t', "$name: stock ended in mid-file, and lines were put off");
	is($node->safe_psql('postgres', qq{
		WITH $line SELECT max(got_at) < min(refused_at) FILTER (WHERE cause = 'out_of_stock') FROM line}),
		't', "$name: no line got a coupon after one had been refused");
	is($node->safe_psql('postgres', qq{
		WITH $line, early AS (
			SELECT row_num, (SELECT count(*) FROM line b WHERE b.row_num < l.row_num AND b.cause = 'out_of_stock') AS refused,
			  (SELECT count(*) FROM user_coupon WHERE template_id = $id AND received_at >= l.got_at
				AND user_id >= 1000000) AS claims
			FROM line l WHERE l.got_at IS NOT NULL ORDER BY row_num DESC LIMIT 50)
		SELECT row_num, refused, claims FROM early WHERE refused > claims}),
		'', "$name: a line before one with a coupon was refused only for a claim");
}
$node->safe_psql('postgres', q{DROP FUNCTION see() CASCADE; ALTER DATABASE postgres RESET coupon.batch_size});

# A file of very many batches: the work for each does not grow with their number.
{
	my $read = q{SELECT COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0)
		FROM pg_stat_user_tables WHERE relname = 'coupon_task_batch'};
	my $id = $node->safe_psql('postgres', q{
		INSERT INTO coupon_template (name, total_stock, discount_value, status)
		VALUES ('many', 3000, 1, 'published') RETURNING id});
	my $task = $node->safe_psql('postgres', "SELECT task_id FROM coupon_task_create('many', $id)");
	$node->safe_psql('postgres', qq{
		SET coupon.batch_size = 1;
		INSERT INTO coupon_stage_$task (user_id) SELECT generate_series(1, 2000);
		SELECT coupon_task_submit($task)});
	$node->safe_psql('postgres', 'ANALYZE coupon_task_batch');
	my $before = $node->safe_psql('postgres', $read);
	$node->safe_psql('postgres', "CALL coupon_task_run($task)");
	$node->poll_query_until('postgres', "SELECT ($read) > $before + 4000");
	cmp_ok($node->safe_psql('postgres', $read) - $before, '<', 2_000 * 200,
		'many: a batch looks at no more than its section');
}

# While claims are served, of whatever template, a runner pauses between batches;
# alone it does not.  At one percent of the cores a pause is easy to see.
$node->safe_psql('postgres', q{
	-- Look at the runner of a task until it is done: how often did it work, or pause?
	CREATE FUNCTION watch_runner(task bigint, OUT works int, OUT pauses int) LANGUAGE plpgsql AS $$
	BEGIN
		works := 0;
		pauses := 0;
		WHILE NOT EXISTS (SELECT FROM coupon_task WHERE id = task AND state = 'success') LOOP
			PERFORM pg_stat_clear_snapshot();
			SELECT works + count(*) FILTER (WHERE wait_event_type IS DISTINCT FROM 'Extension'),
			  pauses + count(*) FILTER (WHERE wait_event_type = 'Extension') INTO works, pauses
			FROM pg_stat_activity WHERE query LIKE 'CALL coupon_task_run%' AND state = 'active';
		END LOOP;
	END $$;
	ALTER DATABASE postgres SET coupon.batch_size = 20;
	ALTER DATABASE postgres SET coupon.task_share = 1});
{
	my ($id, $task) = new_task('alone', 8_000);
	my $alone = start_psql("CALL coupon_task_run($task)");
	is($node->safe_psql('postgres', "SELECT pauses <= works FROM watch_runner($task)"), 't', 'alone: without claims at full speed');
	unlike(finish($alone), qr/ERROR/, 'alone: no error');

	($id, $task) = new_task('gives', 8_000);
	my $other = $node->safe_psql('postgres', q{
		INSERT INTO coupon_template (name, discount_value, status) VALUES ('other', 1, 'published') RETURNING id});
	my $bench = start_pgbench($node, '-c', 2, '-T', 300, '-f', script(qq{
\\set user random(1, 1000000000)
SELECT coupon_receive($other, :user);
}));
	my $run = start_psql("CALL coupon_task_run($task)");
	ok($node->poll_query_until('postgres', q{
		SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE query LIKE 'CALL coupon_task_run%'}),
		'gives: a runner pauses while there are claims');
	is($node->safe_psql('postgres', "SELECT outcome, issued > 0 FROM coupon_task_cancel($task)"),
		'ok|t', 'gives: it goes on, holds nothing meanwhile, and can be cancelled');
	unlike(finish($run), qr/ERROR/, 'gives: the runner sees the cancel');
	stop_pgbench($node, $bench);
}
$node->safe_psql('postgres', q{
	ALTER DATABASE postgres RESET coupon.batch_size;
	ALTER DATABASE postgres RESET coupon.task_share});

# Killed again and again: the backend, or the whole server.
{
	my ($id, $task) = new_task('killed', 5_000);
	my $killed = 0;
	while ($killed < $kills)
	{
		my $run = start_psql('CALL coupon_task_run_due()');
		my $pid;
		for (1 .. 200)
		{
			$pid = $node->safe_psql('postgres', q{
				SELECT pid FROM pg_stat_activity WHERE query LIKE 'CALL coupon_task_run_due%' AND pid <> pg_backend_pid()});
			last if $pid;
		}
		usleep(rand(60_000));
		if (rand() < 0.5 && $pid)
		{
			kill 'KILL', $pid;
			finish($run);
			$node->poll_query_until('postgres', 'SELECT true') or BAIL_OUT('no recovery');
		}
		else
		{
			kill 'KILL', $node->{_pid};
			finish($run);
			$node->{_pid} = undef;
			start_again($node);
		}
		$killed++;
		# One file is not enough for many kills.
		if ($node->safe_psql('postgres', "SELECT state FROM coupon_task WHERE id = $task") eq 'success')
		{
			task_books('killed', $id, $task);
			$node->safe_psql('postgres', 'DROP TABLE expected_killed');
			unlink glob(PostgreSQL::Test::Utils::tempdir() . '/killed*');
			($id, $task) = new_task('killed', 5_000);
		}
	}
	$node->safe_psql('postgres', "CALL coupon_task_run($task)")
		if $node->safe_psql('postgres', "SELECT state FROM coupon_task WHERE id = $task") ne 'success';
	task_books('killed', $id, $task);
	note("killed $killed times");
}

# A dump of a task in the middle of its work goes on where it is restored.
{
	my ($id, $task) = new_task('dumped', 5_000);
	my ($in, $out) = ('', '');
	local %ENV = $node->_get_env();
	my $holder = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres' ], '<', \$in, '>', \$out);
	$in .= "BEGIN; SELECT batch FROM coupon_task_batch WHERE task_id = $task AND batch = 30 FOR UPDATE;\n";
	$holder->pump until $out =~ /30/;
	$node->safe_psql('postgres', 'CALL coupon_task_run_due()');
	$holder->finish;
	is($node->safe_psql('postgres', "SELECT state FROM coupon_task WHERE id = $task"),
		'in_progress', 'dumped: it is in the middle');
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
	$node->safe_psql('postgres', 'SELECT coupon_fold()');
	$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'dumped: pg_dump');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', 'restored', '-f', $dump ], 'dumped: restored');
	$node->safe_psql('restored', "CALL coupon_task_run($task)");
	is($node->safe_psql('restored', qq{
		SELECT t.issued + t.failed = t.lines,
		  (SELECT count(*) FROM user_coupon WHERE request_id = 'task $task') = t.issued,
		  (SELECT count(*) FROM coupon_task_failure WHERE task_id = t.id) = t.failed
		FROM coupon_task t WHERE id = $task}), 't|t|t', 'dumped: and finished');
	is($node->safe_psql('restored', 'SELECT template_id, problem FROM coupon_verify() WHERE NOT ok'),
		'', 'dumped: the books balance');
}

# The background worker: nobody calls anything, and the worker is killed too.
{
	$node->safe_psql('postgres', q{ALTER SYSTEM SET coupon.databases = 'postgres'});
	$node->reload;
	my ($id, $task) = new_task('worker', 5_000);
	my $killed = 0;
	while ($killed < $kills / 3)
	{
		my $pid = '';
		for (1 .. 600)
		{
			$pid = $node->safe_psql('postgres', q{
				SELECT pid FROM pg_stat_activity WHERE backend_type = 'coupon worker' AND datname = 'postgres'});
			last if $pid;
			usleep(10_000);
		}
		last if $node->safe_psql('postgres', "SELECT state FROM coupon_task WHERE id = $task") eq 'success';
		kill $killed++ % 2 ? 'KILL' : 'TERM', $pid;
		usleep(rand(20_000));
		$node->poll_query_until('postgres', 'SELECT true') or BAIL_OUT('no recovery');
	}
	$node->poll_query_until('postgres', "SELECT state = 'success' FROM coupon_task WHERE id = $task")
		or diag($node->safe_psql('postgres', 'SELECT * FROM coupon_stat_worker; SELECT * FROM coupon_task_progress'));
	task_books('worker', $id, $task);
	note("worker killed $killed times");

	# Not before its time, and soon after it, also when the server was down then.
	my $template = $node->safe_psql('postgres', q{
		INSERT INTO coupon_template (name, discount_value, status) VALUES ('later', 1, 'published') RETURNING id});
	my @later;
	for my $wait ('2 s', '1 day', '100 ms')
	{
		push @later, $node->safe_psql('postgres', qq{SELECT task_id FROM coupon_task_create('$wait', $template)});
		$node->safe_psql('postgres', qq{
			INSERT INTO coupon_stage_$later[-1] (user_id) VALUES ('1');
			SELECT coupon_task_submit($later[-1], clock_timestamp() + '$wait')});
		$node->restart if $wait eq '100 ms';
	}
	ok($node->poll_query_until('postgres', "SELECT count(*) = 2 FROM coupon_task WHERE id IN ($later[0], $later[2]) AND state = 'success'"),
		'worker: due tasks run by themselves');
	is($node->safe_psql('postgres', qq{
		SELECT bool_and(started_at >= send_at) FROM coupon_task WHERE id IN ($later[0], $later[2])}),
		't', 'worker: not before their time');
	is($node->safe_psql('postgres', "SELECT state FROM coupon_task WHERE id = $later[1]"),
		'pending', 'worker: the one of tomorrow waits');

	# A task that fails again and again does not stop the next one, and is told of.
	$node->safe_psql('postgres', qq{
		SELECT coupon_task_submit($later[1], clock_timestamp() + '1 day');
		DROP TABLE coupon_stage_$later[1];
		SELECT coupon_task_submit($later[1])});
	ok($node->poll_query_until('postgres', "SELECT attempts > 0 AND last_error ~ 'coupon_stage' FROM coupon_task WHERE id = $later[1]"),
		'worker: an error is noted');
	my ($id2, $task2) = new_task('after', 5_000);
	ok($node->poll_query_until('postgres', "SELECT state = 'success' FROM coupon_task WHERE id = $task2"),
		'worker: and the next task runs');
	is($node->safe_psql('postgres', "SELECT kind, attempts > 0, last_error ~ 'coupon_stage' FROM coupon_stuck('0') WHERE id = $later[1]"),
		'task|t|t', 'worker: coupon_stuck tells of it');
}

$node->stop;
done_testing();
