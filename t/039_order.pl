# Orders at 64 clients, at all isolation levels, with backends and the postmaster killed: the
# history is one that could have happened one call after the other, the rows are as it says,
# and each use that was acknowledged is in it.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('order', "restart_after_crash = on\nmax_connections = 120\ncoupon.databases = ''");
sub sql { return $node->safe_psql('postgres', $_[0]); }
sql(q{INSERT INTO coupon_template (id, name, discount_value, status, per_user_limit, refund_policy, receive_start)
	VALUES (1, 'a', 10, 'published', 10, 'return', '2020-01-01');
	INSERT INTO user_coupon (id, user_id, template_id, receive_seq, use_start, use_end, holder)
	SELECT u * 100 + s, u, 1, s, '2020-01-01', '2090-01-01', 0 FROM generate_series(1, 4) u, generate_series(1, 10) s});

# Few coupons and orders, so that calls meet; leases of which many run out at once.  The
# orders of a round are new ones, since those that have refunded a coupon do not get it again.
sub calls_of
{
	my ($round) = @_;
	return script(<<"X");
\\set u random(1, 4)
\\set c :u * 100 + random(1, 10)
\\set o random(1, 200)
\\set ttl random(1, 20)
\\set what random(1, 9)
\\if :what <= 3
SELECT code FROM coupon_lock(:c, :u, 'o$round-' || :o, 50, ttl => :ttl * interval '1 ms');
\\elif :what <= 5
SELECT code FROM coupon_use(:u, 'o$round-' || :o);
\\elif :what <= 6
SELECT code FROM coupon_use(:u, 'o$round-' || :o, :c, 50);
\\elif :what <= 7
SELECT code FROM coupon_release(:u, 'o$round-' || :o);
\\else
SELECT code FROM coupon_refund(:u, 'o$round-' || :o);
\\endif
X
}

# A session that logs each use whose COMMIT was acknowledged, and makes room for the next.
sub start_acks
{
	my ($round) = @_;
	my $text = join '', map {
		my ($u, $o) = (1 + int(rand(4)), 1 + int(rand(20000)));
		my $c = $u * 100 + 1 + int(rand(10));
		"SELECT 'ack ' || user_coupon_id || ' $u a$round-$o' FROM coupon_use($u, 'a$round-$o', $c, 50) WHERE code = 0 AND NOT repeated;\n"
		. "SELECT FROM coupon_refund($u, 'a$round-$o');\n"
	} 1 .. 20000;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/acks$round";
	local %ENV = $node->_get_env();
	return { file => $file, handle => IPC::Run::start([ 'psql', '-XAtq', '-d', 'postgres', '-f', script($text) ], '<', \undef, '>', $file, '2>', '/dev/null') };
}

# What the events of each coupon, one after the other, say of it; and those that could not have happened.
sub replay
{
	my (%state, %has, %refunded, @wrong);
	for my $line (split /\n/, sql(q{SELECT user_coupon_id, kind, user_id || ' ' || order_id FROM coupon_event ORDER BY id}))
	{
		my ($coupon, $kind, $order) = split /\|/, $line;
		my ($was, $of) = @{ $state{$coupon} // [ 'free', '' ] };
		my $possible = $kind eq 'lock' ? $was ne 'used' && !($was eq 'locked' && $of eq $order) && !$refunded{"$coupon $order"}
			: $kind eq 'use' ? $was ne 'used' && !$refunded{"$coupon $order"} && !%{ $has{$order} // {} }
			: $kind eq 'refund' ? $was eq 'used' && $of eq $order
			: $kind eq 'release';
		push @wrong, $line unless $possible;
		next if $kind eq 'release' && $of ne $order;	# its lease had run out
		$state{$coupon} = $kind eq 'lock' ? [ 'locked', $order ] : $kind eq 'use' ? [ 'used', $order ] : [ 'free', '' ];
		$has{$order}{$coupon} = 1 if $kind eq 'use';
		delete $has{$order}{$coupon} if $kind eq 'refund';
		$refunded{"$coupon $order"} = 1 if $kind eq 'refund';
	}
	my %rows = map { my ($id, $status, $order) = split /\|/; ($id => qw(free locked used)[$status] . " $order") }
		split /\n/, sql(q{SELECT id, status, COALESCE(user_id || ' ' || order_id, '') FROM user_coupon});
	my %said = map { $_ => join ' ', @{ $state{$_} // [ 'free', '' ] } } keys %rows;
	return (\@wrong, \%rows, \%said);
}

my $logged = 0;
my @levels = ('read committed', 'repeatable read', 'serializable', 'read committed');
for my $round (0 .. $#levels)
{
	sql("ALTER DATABASE postgres SET default_transaction_isolation = '$levels[$round]'");
	my $acks = start_acks($round);
	my $bench = start_pgbench($node, '-c', 64, '-j', 2, '-T', 300, '--max-tries=1000', '-f', calls_of($round));
	select(undef, undef, undef, 0.01) while (-s $acks->{file} || 0) < 400 && $acks->{handle}->pumpable;
	if ($round == $#levels) { $node->kill9; }
	else { kill 'KILL', sql(q{SELECT pid FROM pg_stat_activity WHERE query ~ 'coupon_' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1}); }
	$acks->{handle}->finish;
	$bench->{handle}->signal('TERM');
	$bench->{handle}->finish;
	if ($round == $#levels) { start_again($node); }
	else { $node->wait_for_log(qr/all server processes terminated; reinitializing/, $logged); $logged = -s $node->logfile; $node->poll_query_until('postgres', 'SELECT true') or die 'no recovery'; }
	my ($wrong, $rows, $said) = replay();
	is_deeply($wrong, [], "$levels[$round], killed: one call after the other");
	is_deeply($rows, $said, 'the rows are as the history says');
	my @acked = slurp_file($acks->{file}) =~ /^ack (.+)$/mg;
	my %used = map { $_ => 1 } split /\n/, sql(q{SELECT user_coupon_id || ' ' || user_id || ' ' || order_id FROM coupon_event WHERE kind = 'use'});
	cmp_ok(scalar(@acked), '>', 8, 'uses were acknowledged');
	is_deeply([ grep { !$used{$_} } @acked ], [], 'each of them is there');
}
sql('ALTER DATABASE postgres RESET default_transaction_isolation');
is(sql(q{SELECT string_agg(kind, ' ' ORDER BY kind) FROM (SELECT kind FROM coupon_event GROUP BY 1 HAVING count(*) > 0) k}), 'lock refund release use', 'all kinds');

# In one transaction with the shop's own order: all of it or nothing.
sql(q{CREATE TABLE shop_order (id text PRIMARY KEY, payable numeric)});
my $one = q{INSERT INTO shop_order SELECT 'shop-1', payable FROM coupon_receive(1, 9) r, coupon_lock(r.user_coupon_id, 9, 'shop-1', 50);
	SELECT code FROM coupon_use(9, 'shop-1')};
is(sql("BEGIN; $one; ROLLBACK; SELECT count(*) FROM shop_order, user_coupon WHERE user_id = 9"), "0\n0", 'rolled back as one');
is(sql("BEGIN; $one; COMMIT; SELECT o.payable, c.status FROM shop_order o, user_coupon c WHERE c.user_id = 9"), "0\n40.00|2", 'committed as one');
$node->stop;
done_testing();
