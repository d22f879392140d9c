# Mail: what arrives at a server of SMTP, what becomes of refusals, and when
# there is a mailer.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use Encode;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $receiver) = start_both('mail');
my $smtp = "smtp://127.0.0.1:$receiver->{port}{smtp}";

sub mails { my ($word) = @_; return grep { join(' ', @{ $_->{mail_to} }) =~ /$word/ } received($receiver, 'smtp'); }

sub mailer_is
{
	my ($n, $what, $db) = @_;
	await("count(*) = $n FROM pg_stat_activity WHERE backend_type = 'coupon mailer' AND datname = '" . ($db || 'postgres') . "'", $what);
	return;
}

# Headers unfolded, by name, and the text.
sub parsed
{
	my ($mail) = @_;
	my ($head, $text) = split(/\r?\n\r?\n/, $mail->{text}, 2);
	$head =~ s/\r?\n[ \t]+/ /g;
	my %h = map { /^([^:]+): (.*)$/ ? (lc($1) => $2) : () } split(/\r?\n/, $head);
	$h{subject} = decode('MIME-Header', $h{subject});
	$h{text} = decode('UTF-8', decode_base64($text));
	return \%h;
}

# Nobody sends mail, so nobody is there for it.
channel('app', 'ok/none');
my $ids = tests('app', 1, 'x');
await("count(*) = 1 FROM coupon_notification_history WHERE id = $ids", 'before: a push over HTTP');
is(pid_of('mailer'), '', 'before: there is no mailer');

# One mail for each, with what an administrator wants to say.
channel('email', $smtp, q{mail_from => 'shop@example.test'});
mailer_is(1, 'a channel with smtp brings a mailer');
my $name = "Gr\x{f6}\x{df}e \x{5496}\x{5561}";
my $subject = "\x{2709} {name} opens in {minutes} minutes, which is soon enough to need more than one line";
sql(encode_utf8(qq{SELECT coupon_message_set('reminder', 'email', '$subject', 'Dear {address},\n.\n{name}')}));
sql(q{SELECT coupon_contact_set(u, 'email', 'user' || u || '@mail.test') FROM generate_series(1, 20) u});
my $id = reminders_due('email', 1, 20, encode_utf8($name));
await("count(*) = 20 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered' AND last_status = 250 AND attempts = 1", 'mail: all are delivered');
my @mails = mails('user\d+@mail.test');
is(join(' ', sort map { join(',', @{ $_->{mail_to} }) } @mails), join(' ', sort map { "user$_\@mail.test" } 1 .. 20), 'mail: one for each, to nobody else');
is(scalar(grep { $_->{mail_from} ne 'shop@example.test' } @mails), 0, 'mail: from the sender that was set');
$subject =~ s/\{name\}/$name/;
$subject =~ s/\{minutes\}/30/;
is(scalar(grep { parsed($_)->{subject} ne $subject } @mails), 0, 'mail: the subject, in UTF-8');
is(scalar(grep { my $m = $_; my $p = parsed($m); $p->{text} ne "Dear $m->{mail_to}[0],\r\n.\r\n$name" && $p->{text} ne "Dear $m->{mail_to}[0],\r\n.\r\n$name\r\n" } @mails), 0, 'mail: and the text');
is(scalar(grep { my $m = $_; my $p = parsed($m); $p->{to} ne "<$m->{mail_to}[0]>" || $p->{from} ne '<shop@example.test>' || $p->{'message-id'} !~ /^<\d+\@coupon\.example\.test>$/ } @mails), 0, 'mail: headers');
is(join(',', sort map { parsed($_)->{'message-id'} =~ /<(\d+)/ } @mails),
	sorted(sql("SELECT string_agg(id::text, ',') FROM coupon_notification_history WHERE template_id = $id")), 'mail: the id of the push is that of the mail');

# Refused for good, refused for now, and one who has no mailbox at all.
sql(q{SELECT coupon_contact_set(21, 'email', 'refused@mail.test'), coupon_contact_set(22, 'email', 'later@mail.test'),
	coupon_contact_set(23, 'email', 'spam@mail.test'), coupon_contact_set(24, 'email', 'good@mail.test'), coupon_contact_set(25, 'email', 'close@mail.test')});
$id = reminders_due('email', 21, 25);
await("count(*) = 3 FROM coupon_notification_history WHERE template_id = $id", 'refused: some are over');
is(sql("SELECT user_ids[1], state, attempts, last_status FROM coupon_notification_history WHERE template_id = $id ORDER BY 1"),
	"21|dead|1|550\n23|dead|1|554\n24|delivered|1|250", 'refused: 5yz is for good, and others arrive');
await("count(*) = 2 FROM coupon_notification WHERE template_id = $id AND attempts >= 2", 'refused: 4yz and a lost connection are tried again');
is(sql("SELECT last_status, last_error ~ '451' FROM coupon_notification WHERE template_id = $id AND user_ids = '{22}'"), '451|t', 'refused: it is told why');
sql(q{SELECT coupon_contact_set(22, 'email', 'better@mail.test'), coupon_contact_set(25, 'email', 'best@mail.test'), coupon_contact_set(21, 'email', 'mended@mail.test')});
sql("SELECT coupon_notification_replay(id) FROM coupon_notification_history WHERE template_id = $id AND user_ids = '{21}'");
await("count(*) = 4 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", 'refused: at other addresses they are delivered');
is(scalar(mails('^(better|best|mended)@')), 3, 'refused: once each');

# Mail that hangs holds up no push over HTTP.
sql(q{SELECT coupon_contact_set(26, 'email', 'hang@mail.test')});
channel('email', $smtp, q{mail_from => 'shop@example.test', timeout => '3 s'});
$id = reminders_due('email', 26, 26);
await("leased_until IS NOT NULL FROM coupon_notification WHERE template_id = $id", 'hang: a mail hangs');
$ids = tests('app', 100, 'x');
await("count(*) = 100 FROM coupon_notification_history WHERE id IN ($ids)", 'hang: pushes over HTTP are delivered');
is(sql("SELECT attempts, last_error FROM coupon_notification WHERE template_id = $id"), '1|', 'hang: meanwhile');
sql("DELETE FROM coupon_notification");

# Nor another mail: a server that never replies to a text has one place each.
channel('email', $smtp, q{mail_from => 'shop@example.test', timeout => '10 min', max_in_flight => 5});
my $held = sql(q{SELECT string_agg(notification_id::text, ',') FROM generate_series(1, 3) g, coupon_channel_test('email', 'hold@mail.test' || left(g::text, 0))});
await("count(*) = 3 FROM coupon_notification WHERE id IN ($held) AND leased_until IS NOT NULL", 'hold: three mails wait for a reply');
$ids = sql(q{SELECT string_agg(notification_id::text, ',') FROM generate_series(1, 20) g, coupon_channel_test('email', 'beside@mail.test' || left(g::text, 0))});
await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($ids) AND state = 'delivered'", 'hold: others are delivered beside them');
is(sql("SELECT count(*) FROM coupon_notification WHERE id IN ($held) AND attempts = 1"), '3', 'hold: these still wait');
my $children = 'ps -o pid= --ppid ' . pid_of('mailer');
my @left;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	@left = split /\s+/, `$children` =~ s/^\s+//r;
	last if @left == 3;			# others are taking leave of the server
	select(undef, undef, undef, 0.1);
}
is(scalar(@left), 3, 'hold: each in a process of its own');

# When there is a mailer.
my $pid = pid_of('mailer');
sql("SELECT pg_terminate_backend($pid)");
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last unless grep { kill(0, $_) } @left;
	select(undef, undef, undef, 0.1);
}
is(scalar(grep { kill(0, $_) } @left), 0, 'mailer: terminated, it leaves no process behind');
sql("DELETE FROM coupon_notification WHERE id IN ($held)");
await("pid <> $pid FROM coupon_stat_worker WHERE kind = 'mailer' AND pid IS NOT NULL", 'mailer: terminated, it comes back');
$ids = tests('email', 1, 'again@mail.test');
await("count(*) = 1 FROM coupon_notification_history WHERE id = $ids AND state = 'delivered'", 'mailer: and delivers');
sql(q{SELECT coupon_channel_enable('email', false)});
mailer_is(0, 'mailer: leaves when mail is switched off');
is(pid_of('worker') ne '', 1, 'mailer: the worker does not');
sql(q{SELECT coupon_channel_enable('email')});
mailer_is(1, 'mailer: comes when it is switched on');
channel('email', 'ok/email');
mailer_is(0, 'mailer: leaves when the channel is no longer smtp');
$ids = tests('email', 1, 'x');
await("count(*) = 1 FROM coupon_notification_history WHERE id = $ids", 'mailer: which the worker serves then');

# A server without TLS gets nothing where TLS is required.
channel('email', $smtp, q{mail_from => 'shop@example.test', require_tls => true});
mailer_is(1, 'TLS required: a mailer');
$ids = tests('email', 1, 'secret@mail.test');
await("count(*) = 1 FROM coupon_notification WHERE id = $ids AND last_error ~* 'ssl|tls'", 'TLS required: the mail waits, and says why');
is(scalar(mails('secret')), 0, 'TLS required: nothing was sent');
channel('email', $smtp, q{mail_from => 'shop@example.test'});
sql("UPDATE coupon_notification SET next_at = clock_timestamp() WHERE id = $ids; SELECT coupon_worker_wake()");
await("count(*) = 1 FROM coupon_notification_history WHERE id = $ids AND state = 'delivered'", 'TLS required no more: it goes');

# A server that does not stop to say farewell keeps no process of ours: it has the mail.
my $mailer = pid_of('mailer');
$ids = sql(q{SELECT string_agg(notification_id::text, ',') FROM generate_series(1, 5) g, coupon_channel_test('email', 'drips@mail' || g || '.test')});
await("count(*) = 5 FROM coupon_notification_history WHERE id IN ($ids) AND state = 'delivered'", 'farewell: delivered');
my $since = time;
while (time < $since + 60 && `pgrep -P $mailer`) { select(undef, undef, undef, 0.1) }
is(`pgrep -P $mailer`, '', 'farewell: nobody waits for its end');

# DROP DATABASE with a mailer, and a mail that hangs.
sql('CREATE DATABASE other');
sql('CREATE EXTENSION coupon', 'other');
channel('email', $smtp, q{mail_from => 'shop@example.test', timeout => '60 s'}, 'other');
mailer_is(1, 'drop: a mailer', 'other');
sql(q{SELECT notification_id FROM unnest('{hang,hold}'::text[]) u, coupon_channel_test('email', u || '@mail.test')}, 'other');
await('count(*) = 2 FROM coupon_notification WHERE leased_until IS NOT NULL', 'drop: mails hang', 'other');
# It waits for five seconds, and fails while anybody is there.
sql('DROP DATABASE other');
is(pid_of('mailer', 'other') . pid_of('worker', 'other'), '', 'drop: both are gone');

$node->stop;
stop_process($receiver);
done_testing();
