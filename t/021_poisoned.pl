# One row that cannot be handled stops nobody: a channel that was edited by
# hand, a push that was copied back from the history, a trigger that fails, and
# pushes that were cut for a channel of another kind.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('poisoned', '');
my $db = 'postgres';
my $mails = PostgreSQL::Test::Utils::tempdir() . '/mails';
append_to_file($mails, '');

# Listen, with a process for each connection; returns port and pid.
sub receiver
{
	my ($serve) = @_;
	my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 100)
	  or die $!;
	my $pid = fork // die;
	return ($listen->sockport, $pid) if $pid;
	$SIG{CHLD} = 'IGNORE';
	$SIG{TERM} = 'DEFAULT';	# not the harness's, which would stop the server
	while (my $c = $listen->accept)
	{
		next if fork;
		$serve->($c);
		POSIX::_exit(0);
	}
	POSIX::_exit(0);
}

# Says 200 to everything; on /slow, a second later.
sub serve_http
{
	my ($c) = @_;
	while (my $line = <$c>)
	{
		my ($slow, $length) = ($line =~ m{ /slow }, 0);
		while (defined($line = <$c>) && $line ne "\r\n")
		{
			$length = $1 if $line =~ /^Content-Length: (\d+)/i;
		}
		read($c, my $body, $length);
		sleep 1 if $slow;
		print $c "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
		$c->flush;
	}
}

# Notes the recipients of each mail.
sub serve_smtp
{
	my ($c) = @_;
	my ($in_text, @to);
	print $c "220 ready\r\n";
	while (my $line = <$c>)
	{
		if ($in_text)
		{
			next if $line ne ".\r\n";
			append_to_file($mails, "@to\n");
			($in_text, @to) = (0);
		}
		push @to, $1 if $line =~ /^RCPT TO:<(.*)>/;
		$in_text = $line =~ /^DATA/;
		print $c $in_text ? "354 go on\r\n" : "250 ok\r\n";
	}
}

sub queue_is_empty
{
	my ($what) = @_;
	ok($node->poll_query_until($db, "SELECT count(*) = 0 FROM coupon_notification"), $what);
}

sub send_test
{
	my ($channel) = @_;
	return $node->safe_psql($db, "SELECT * FROM coupon_channel_test('$channel', 'a\@example.com')");
}

my ($http, $http_pid) = receiver(\&serve_http);
my ($smtp, $smtp_pid) = receiver(\&serve_smtp);

# Channels that were edited by hand: the others go on.
$node->safe_psql($db, qq{
	SELECT coupon_channel_set(c, 'http://127.0.0.1:$http/') FROM unnest(ARRAY['sms', 'app', 'ch3']) AS c;
	SELECT coupon_channel_set('ch4', 'http://127.0.0.1:$http/slow');
	INSERT INTO coupon_secret VALUES ('channel_secret', 'app', 'x');
	UPDATE coupon_channel SET endpoint = 'smtp://127.0.0.1:$smtp' WHERE channel = 'ch3'});
my $id = send_test('sms');
queue_is_empty('a push leaves beside channels that cannot be used');
is( $node->safe_psql($db,
		'SELECT channel, disabled_reason FROM coupon_channel WHERE NOT enabled ORDER BY 1'),
	qq{app|secret is malformed: It must begin with "whsec_".\nch3|a mail needs a sender},
	'these are off, and say why');

# One that is in the history already.
$node->safe_psql($db, q{
	INSERT INTO coupon_notification (id, channel, kind, user_ids, address, due_at, next_at)
	SELECT id, channel, kind, user_ids, address, due_at, now() FROM coupon_notification_history;
	SELECT coupon_worker_wake()});
queue_is_empty('one that was copied back from the history leaves again');
send_test('sms');
queue_is_empty('and so does what comes after it');
is( $node->safe_psql($db,
		"SELECT state, ended_at > due_at FROM coupon_notification_history WHERE id = $id"),
	'delivered|t', 'it is recorded');

# Recipients are numbers, and there is one at least.
for my $users ('{}', '{1,NULL}')
{
	isnt($node->psql($db, qq{
			INSERT INTO coupon_notification (channel, kind, user_ids, due_at, next_at)
			VALUES ('sms', 'test', '$users', now(), now())}, stderr => \my $stderr),
		0, "no push to $users");
}

# Cut for a gateway, sent as a mail: everybody who has a mailbox gets it.
$node->safe_psql($db, qq{
	SELECT coupon_contact_set(u, 'email', format('u%s\@example.com', u)) FROM generate_series(1, 3) AS u;
	INSERT INTO coupon_notification (channel, kind, user_ids, due_at, next_at)
	VALUES ('email', 'test', '{1,2,9,3}', now(), now());
	SELECT coupon_channel_set('email', 'smtp://127.0.0.1:$smtp', mail_from => 'shop\@example.com')});
queue_is_empty('a push to several is sent as a mail');
is(slurp_file($mails), "u1\@example.com u2\@example.com u3\@example.com\n", 'to all of them');

# Tables that are not as they were installed: nothing goes past what is new.
$node->safe_psql($db, q{
	ALTER TABLE coupon_notification_history ADD COLUMN note text DEFAULT 'mine';
	CREATE TABLE seen (op text);
	CREATE FUNCTION sees() RETURNS trigger LANGUAGE plpgsql SET search_path = public
		AS 'BEGIN INSERT INTO seen VALUES (tg_op); RETURN NULL; END';
	CREATE TRIGGER sees AFTER INSERT OR UPDATE OR DELETE ON coupon_notification
		FOR EACH ROW EXECUTE FUNCTION sees()});
$id = send_test('sms');
queue_is_empty('a push leaves through tables with additions');
is( $node->safe_psql($db, 'SELECT string_agg(op, NULL ORDER BY op DESC) FROM seen'),
	'UPDATEINSERTDELETE', 'a trigger has seen it added, leased and gone');
$node->safe_psql($db, 'DROP TRIGGER sees ON coupon_notification');
is($node->safe_psql($db, "SELECT state, note FROM coupon_notification_history WHERE id = $id"),
	'delivered|mine', 'a column has its default');
$id = send_test('sms');
queue_is_empty('a push leaves when only the history has one');
is($node->safe_psql($db, "SELECT state, note FROM coupon_notification_history WHERE id = $id"),
	'delivered|mine', 'and it has its default again');
$node->safe_psql($db, 'ALTER TABLE coupon_notification_history DROP COLUMN note');

# While answers cannot be recorded the worker rests, though more of them come.
$node->safe_psql($db, q{
	CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END';
	CREATE TRIGGER fails BEFORE INSERT ON coupon_notification_history
		FOR EACH ROW EXECUTE FUNCTION fails()});
$node->safe_psql($db, q{
	SELECT count(*) FROM generate_series(1, 5), coupon_channel_test('sms', 'a') AS a,
		coupon_channel_test('ch4', 'b') AS b});
ok( $node->poll_query_until($db,
		"SELECT errors >= 6 FROM coupon_stat_worker WHERE kind = 'worker'"),
	'recording fails again and again');
cmp_ok($node->safe_psql($db, "SELECT turns FROM coupon_stat_worker WHERE kind = 'worker'"),
	'<', 2000, 'the worker does not spin');
$node->safe_psql($db,
	'DROP TRIGGER fails ON coupon_notification_history; SELECT coupon_worker_wake()');
queue_is_empty('it goes on when it can');

kill 'TERM', $http_pid, $smtp_pid;
$node->stop;
done_testing();
