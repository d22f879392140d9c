package DeliverTest;

# What the tests of deliveries share: a node, a receiver, and words for what
# they do to each other.

use strict;
use warnings FATAL => 'all';
use CouponTest;
use Encode;
use Exporter 'import';
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_both sql await await_turn channel tests switch_to limit_attempts arrived lines_arrived await_arrived
  ids_of sorted data_of address_of users_of ended new_template reminders_due
  cancel start_psql finish pid_of seeded);

our ($node, $receiver, $http);

# Start a receiver and a server with that configuration; returns both.
sub start_both
{
	my ($name, $conf) = @_;
	$receiver = start_receiver();
	$http = "http://127.0.0.1:$receiver->{port}{http}";
	$node = new_node($name, "restart_after_crash = on\nmax_worker_processes = 16\n" . ($conf || ''), allows_streaming => 1);
	return ($node, $receiver);
}

# Seed the random numbers of a test; COUPON_SEED repeats a run.
sub seeded
{
	my $seed = $ENV{COUPON_SEED} || time;
	srand($seed);
	note("seed $seed");
	return;
}

sub sql
{
	my ($sql, $db) = @_;
	return $node->safe_psql($db || 'postgres', $sql);
}

# Wait for a condition; where it does not come, tell how things are.
sub await
{
	my ($condition, $what, $db, $with) = @_;
	ok($node->poll_query_until($db || 'postgres', ($with || '') . " SELECT $condition"), $what)
		or diag($node->safe_psql($db || 'postgres', q{
			SELECT channel, enabled, waiting, leased, retrying, dead, disabled_reason FROM coupon_stat_channel WHERE set_up;
			SELECT kind, state, last_error FROM coupon_stat_worker;
			SELECT id, channel, attempts, next_at, leased_until, last_error FROM coupon_notification LIMIT 5}));
	return;
}

# Wait until the worker has looked at everything since now, also at what tells
# nobody: at what was changed by hand.  The second turn to end began after it.
sub await_turn
{
	my $worker = q{FROM coupon_stat_worker WHERE kind = 'worker' AND database = 'postgres'};
	my $turns = sql("SELECT turns $worker");
	await("(SELECT true FROM wake) AND turns > $turns + 1 $worker", 'the worker looks around', undef,
		'WITH wake AS MATERIALIZED (SELECT coupon_worker_wake())');
	return;
}

# Set a channel to a path of the receiver.
sub channel
{
	my ($name, $path, $options, $db) = @_;
	my $url = $path =~ /:/ ? $path : "$http/$path";
	# Most users here have no contact.
	$options = join(', ', $options || (), 'user_id_is_address => true') if $name eq 'sms' && ($options || '') !~ /user_id_is_address/;
	sql("SELECT coupon_channel_set('$name', '$url'" . ($options ? ", $options" : '') . ')', $db);
	return;
}

# Push tests, to the addresses word1 … wordn; returns their ids, separated by commas.
sub tests
{
	my ($name, $n, $word, $db) = @_;
	return sql("SELECT string_agg(notification_id::text, ',') FROM generate_series(1, $n) g, coupon_channel_test('$name', '$word' || g)", $db);
}

# From now on /switch/<file> answers so.
sub switch_to
{
	my ($file, $what) = @_;
	my $path = "$receiver->{dir}/$file";
	append_to_file("$path.new", $what);
	rename("$path.new", $path) or die "$path: $!";
	return;
}

sub limit_attempts
{
	my ($n) = @_;
	sql("ALTER SYSTEM SET coupon.max_attempts = $n");
	$node->reload;
	return;
}

# Requests whose path contains a word, as lines of the receiver's log: reading
# thousands as JSON takes long.
sub lines_arrived
{
	my ($word) = @_;
	return grep { /"path": "[^"]*$word/ } split /\n/, slurp_file("$receiver->{dir}/http");
}

# The same, read.
sub arrived
{
	my ($word) = @_;
	return map { decode_json($_) } lines_arrived($word);
}

# Wait until so many requests have come whose path contains a word.
sub await_arrived
{
	my ($word, $n) = @_;
	for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if lines_arrived($word) >= $n;
		select(undef, undef, undef, 0.01);
	}
	BAIL_OUT("$n requests do not arrive at $word");
}

# Ids of requests in order, separated by commas, and such a list in that order.
sub ids_of { return join(',', sort map { $_->{headers}{'webhook-id'} || $_->{headers}{'idempotency-key'} } @_); }
sub sorted { return join(',', sort split(/,/, $_[0])); }

# What one tells, and whom.
sub data_of { return decode_json(encode_utf8($_[0]{body}))->{data}; }
sub address_of { return data_of($_[0])->{recipients}[0]{address}; }
sub users_of { return map { $_->{user_id} } @{ data_of($_[0])->{recipients} }; }

# How pushes have ended: state, attempts and status, each with its number.
sub ended
{
	my ($ids, $db) = @_;
	return sql("SELECT state, attempts, last_status, count(*) FROM coupon_notification_history WHERE id IN ($ids) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3", $db);
}

# A published template whose sale begins after so long.
my $template = 0;
sub new_template
{
	my ($start, $name) = @_;
	$template++;
	sql("INSERT INTO coupon_template (id, name, discount_value, status, receive_start, receive_end)
		VALUES ($template, '" . ($name || "sale $template") . "', 1, 'published', now() + interval '$start', now() + interval '2 days')");
	return $template;
}

# Reminders of users first to last are due now: they are half an hour before
# the start, and that is moved to a little less from now.
sub reminders_due
{
	my ($channels, $first, $last, $name) = @_;
	my $id = new_template('10 hours', $name);
	sql("SELECT DISTINCT code FROM generate_series($first, $last) u, unnest('{$channels}'::text[]) c, coupon_remind_create($id, u, c, 30)") eq '0' or die;
	sql("UPDATE coupon_template SET receive_start = now() + interval '29 min 30 s' WHERE id = $id");
	return $id;
}

sub cancel
{
	my ($id, $user, $name) = @_;
	return sql("SELECT outcome FROM coupon_remind_cancel($id, $user, '$name', 30)");
}

# Run statements in the background; finish returns what they answer.
sub start_psql
{
	my ($sql) = @_;
	local %ENV = $node->_get_env();
	my $out = '';
	my $h = IPC::Run::start([ 'psql', '-XqAt', '-d', 'postgres', '-f', script($sql) ], '<', \'', '>', \$out, '2>&1');
	return { handle => $h, out => \$out };
}

sub finish
{
	my ($run) = @_;
	$run->{handle}->finish;
	return ${ $run->{out} };
}

# The process of a kind, 'worker' or 'mailer', of a database; empty: none.
sub pid_of
{
	my ($kind, $db) = @_;
	return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'coupon $kind' AND datname = '" . ($db || 'postgres') . "'");
}

1;
