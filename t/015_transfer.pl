# The network below deliveries: everything arrives once, over few connections;
# hostile receivers and slow ones get a verdict and stop nobody; no address
# that is refused is ever connected to; nothing can be smuggled into a mail or
# a header.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();

# A module with the function, names, and a certificate.
sub run_ok { my ($what, @command) = @_; my $out; IPC::Run::run(\@command, '>', \$out, '2>&1') or die "$what: $out"; return; }
chomp(my $include = `pg_config --includedir-server`);
run_ok('module', 'cc', '-shared', '-fPIC', '-O2', '-Wall', '-Werror', '-I.', "-I$include", 't/lib/transfer_test.c', '-o', "$dir/transfer_test.so");
run_ok('names', 'cc', '-shared', '-fPIC', '-O2', '-Wall', '-Werror', 't/lib/transfer_test_names.c', '-o', "$dir/names.so", '-ldl');
run_ok('certificate', 'openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=test',
	'-addext', 'subjectAltName=DNS:localhost,DNS:mail.test,IP:127.0.0.1', '-keyout', "$dir/key", '-out', "$dir/cert");

my $receiver = start_receiver("$dir/cert", "$dir/key");
my %port = %{ $receiver->{port} };
my ($plain, $tls) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
my $nginx = start_nginx('$connection $server_protocol $content_length $http_authorization', <<"X");
	keepalive_requests 100000;
	server { listen 127.0.0.1:$plain; location / { return 204; } }
	server { listen 127.0.0.1:$tls ssl http2; ssl_certificate $dir/cert; ssl_certificate_key $dir/key; location / { return 204; } }
X
my $http = "http://127.0.0.1:$port{http}";
my $mail = "smtp://127.0.0.1:$port{smtp}";

# The environment must not matter: each of these would send it elsewhere.
$ENV{$_} = "http://127.0.0.1:$port{http}" for qw(http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY);
my $node;
{
	local $ENV{LD_PRELOAD} = "$dir/names.so";
	$node = new_node('transfer', "coupon.databases = ''\ncoupon.endpoint_ca_file = '$dir/cert'");
}
$node->safe_psql('postgres', qq{
	CREATE FUNCTION transfer_test(endpoints text[], n int DEFAULT 1, in_flight int DEFAULT 1, body text DEFAULT 'x ', timeout int DEFAULT 10000,
		headers text[] DEFAULT NULL, username text DEFAULT NULL, password text DEFAULT NULL, mail_from text DEFAULT NULL, mail_to text[] DEFAULT NULL)
	RETURNS TABLE (number bigint, status int, sent_nothing boolean, retry_after bigint, error text, ms float8)
	AS '$dir/transfer_test', 'transfer_test' LANGUAGE C;});

sub sql { return $node->safe_psql('postgres', $_[0]); }

# One transfer: status, whether nothing was sent, Retry-After, error.
sub send_one
{
	my ($endpoint, $more) = @_;
	return sql("SELECT status, sent_nothing, retry_after, error FROM transfer_test(ARRAY['$endpoint']" . ($more ? ", $more" : '') . ')');
}

sub set
{
	my ($name, $value) = @_;
	sql("ALTER SYSTEM SET $name = '$value'");
	sql('SELECT pg_reload_conf()');
	$node->poll_query_until('postgres', "SELECT current_setting('$name') = '$value'") or die;
	return;
}

# Many.
is(sql("SELECT status, count(*), count(DISTINCT number) FROM transfer_test(ARRAY['$http/ok'], 2000, 32, 'p ') GROUP BY 1"), '204|2000|2000', '2,000 POSTs');
my @got = received($receiver, 'http');
is(@got, 2000, '2,000 arrive');
is_deeply([ sort { $a <=> $b } map { $_->{body} =~ /^p (\d+)\r\n$/ ? $1 : -1 } @got ], [ 0 .. 1999 ], 'each once, as it was sent');
cmp_ok(keys %{ { map { $_->{connection} => 1 } @got } }, '<=', 32, 'over at most 32 connections');
is((grep { exists $_->{headers}{expect} || exists $_->{headers}{cookie} || exists $_->{headers}{'user-agent'} } @got), 0, 'neither Expect nor cookies, nor a User-Agent but that of the caller');
is(sql("SELECT status, count(*) FROM transfer_test(ARRAY['http://127.0.0.1:$plain/'], 2000, 16) GROUP BY 1"), '204|2000', 'nginx, 16 at a time');
sub nginx_log { return map { [ split / / ] } split /\n/, slurp_file("$nginx->{dir}/log"); }
# It writes the line after the answer.
sub nginx_lines { my ($n) = @_; for (1 .. 300) { last if nginx_log() >= $n; select(undef, undef, undef, 0.1); } return nginx_log(); }
my @lines = nginx_lines(2000);
is(@lines, 2000, 'nginx saw them');
cmp_ok(keys %{ { map { $_->[0] => 1 } @lines } }, '<=', 16, 'over at most 16 connections');
is(sql("SELECT status, count(*), max(ms) < 10000 FROM transfer_test(ARRAY['https://127.0.0.1:$tls/'], 500, 50) GROUP BY 1"), '204|500|t', 'over TLS, and nobody waits for its timeout');
my %tls = map { $_->[0] => $_->[1] } (nginx_lines(2500))[2000 .. 2499];
is(join(' ', sort { $a cmp $b } keys %{ { reverse %tls } }), 'HTTP/1.1', 'by HTTP/1.1, even where HTTP/2 is offered');
cmp_ok(keys %tls, '<=', 50, 'over at most 50 connections');
is(send_one("$http/ok", "body => repeat('x', 3000000)"), '204|f|-1|', 'a body of 3 MB, without waiting for a 100');
is((received($receiver, 'http'))[-1]{length}, 3_000_000 + length("0\r\n"), 'arrives whole');
is(send_one("$http/ok", "headers => '{webhook-id: msg_1,X\@Strange: 1,Content-Type: application/json}'"), '0|t|-1|a header contains a character that may not be there, such as a line break', 'a strange name of a header');
is(send_one("$http/ok", "headers => '{webhook-id: msg_1,Content-Type: application/json}', username => 'me', password => 'pass:word'"), '204|f|-1|', 'headers and a password');
my $last = (received($receiver, 'http'))[-1]{headers};
is("$last->{'webhook-id'} $last->{'content-type'} $last->{authorization}", 'msg_1 application/json Basic bWU6cGFzczp3b3Jk', 'arrive');
is(send_one("$http/ok"), '204|f|-1|', 'the next one');
$last = (received($receiver, 'http'))[-1]{headers};
ok(!exists $last->{authorization} && !exists $last->{'webhook-id'}, 'does not have them');

# The first letter says what is expected: the status, - for none.
my %hostile = (
	'ok' => 204, 'status/299' => 299, 'status/410' => 410, 'status/500' => 500, 'retry-after/30' => 429, 'retry-date/3600' => 503,
	'interim' => 204, 'large-header' => 204, 'redirect/status/298' => 302, 'slow/300' => 204,
	'hang' => 0, 'close' => 0, 'reset' => 0, 'close-headers' => 0, 'drip' => 0, 'garbage' => 0, 'no-header' => 0,
	'endless-headers' => 0, 'endless-line' => 0, 'endless-interim' => 0,
	'close-body' => 200, 'hang-body' => 200, 'drip-body' => 200, 'endless-body' => 200);
my @kinds = sort keys %hostile;
my $urls = join ',', map { "'$http/$_'" } @kinds;
my $rows = sql("SELECT number % @{[scalar @kinds]}, status, sent_nothing, error <> '', count(*)
	FROM transfer_test(ARRAY[$urls], 10 * @{[scalar @kinds]}, 400, timeout => 3000) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2");
is($rows, join("\n", map { "$_|$hostile{$kinds[$_]}|f|" . ($hostile{$kinds[$_]} ? 'f' : 't') . '|10' } 0 .. $#kinds), 'each hostile answer gets its verdict');
like(send_one("$http/$_", 'timeout => 100000'), qr/^0\|f\|-1\|.*too (long|large)/i, "$_ is cut off")
	for 'endless-headers', 'endless-line', 'endless-interim';
is(send_one("$http/endless-body", 'timeout => 100000'), '200|f|-1|', 'and a body is');
is((grep { $_->{path} eq '/status/298' } received($receiver, 'http')), 0, 'no redirect is followed');
is(send_one("$http/retry-after/30"), '429|f|30000|', 'Retry-After in seconds');
like(send_one("$http/retry-date/3600"), qr/^503\|f\|35[0-9]{5}\|$|^503\|f\|3600000\|$/, 'Retry-After as a date');
# Which is six hours to newer versions of libcurl.
like(send_one("$http/retry-after/99999999999"), qr/^429\|f\|(2147483647|21600000)\|$/, 'Retry-After for ever');
is(send_one("$http/retry-after/soon"), '429|f|-1|', 'Retry-After that says nothing');
is(send_one("$http/retry-date/-60"), '503|f|-1|', 'Retry-After in the past');
is(send_one("$http/ok"), '204|f|-1|', 'nothing of it stays');
is(sql("SELECT status, count(*) FROM transfer_test(ARRAY['$http/once'], 1000, 7) GROUP BY 1"), '204|1000', 'kept connections that were closed do no harm');

# One that hangs, and the others.
is(sql("WITH r AS (SELECT *, number % 10 = 0 AS hangs FROM transfer_test(ARRAY['$http/hang'] || array_fill('$http/ok'::text, '{9}'), 300, 40, timeout => 4000))
	SELECT count(*) FILTER (WHERE hangs AND status = 0 AND error LIKE '%timed out%' AND ms BETWEEN 4000 AND 8000), count(*) FILTER (WHERE NOT hangs AND status = 204),
		max(ms) FILTER (WHERE NOT hangs) < min(ms) FILTER (WHERE hangs) FROM r"), '30|270|t', 'timeouts, while the others go on');
is(sql("WITH r AS (SELECT *, number = 0 AS slow FROM transfer_test(ARRAY['http://slow.test/'] || array_fill('$http/ok'::text, '{49}'), 50, 10, timeout => 2000))
	SELECT count(*) FILTER (WHERE slow AND status = 0 AND sent_nothing AND ms < 10000), count(*) FILTER (WHERE NOT slow AND status = 204 AND ms < 2000) FROM r"),
	'1|49', 'a resolver that hangs stops nobody, not even when its time is over');
like(send_one('http://unknown.test/'), qr/^0\|t\|-1\|Could not resolve host: unknown.test/, 'unknown name');
my $closed = PostgreSQL::Test::Cluster::get_free_port();
like(send_one("http://127.0.0.1:$closed/"), qr/^0\|t\|-1\|Failed to connect to 127.0.0.1(:| port )$closed/, 'connection refused');

# Cancelled, and what comes after.
is(sql("SET statement_timeout = '1s';
	DO \$\$ BEGIN PERFORM * FROM transfer_test(ARRAY['$http/hang', '$http/ok', 'http://slow.test'], 200, 100); EXCEPTION WHEN query_canceled THEN RAISE NOTICE 'cancelled'; END \$\$;
	SELECT status, count(*) FROM transfer_test(ARRAY['$http/ok'], 200, 100) GROUP BY 1"), '204|200', 'all forgotten, and on with the next');

# Addresses, however they are written.
my $ipv6 = socket(my $s, AF_INET6, SOCK_STREAM, 0);
for my $host (qw(169.254.169.254 169.254.0.1 2852039166 0xa9fea9fe 0251.0376.0251.0376 169.254.43518 metadata.test 100.100.100.200
	0.0.0.0 0 0.1.2.3 224.0.0.1 239.1.2.3 255.255.255.255
	[::ffff:169.254.169.254] [::ffff:a9fe:a9fe] [::169.254.169.254] [64:ff9b::169.254.169.254] [64:ff9b::6464:64c8] [64:ff9b:1::a9fe:a9fe]
	[64:ff9b:1:a9fe:a9:fe00::] [64:ff9b:1:a9:fe:a9fe::] [2002:a9fe:a9fe::1] [::ffff:0.0.0.0] [::] [fe80::1] [febf::1] [ff02::1] [fd00:ec2::254]
	192.0.0.192 [::ffff:0:169.254.169.254] [2001:0:1:2:3:4:5601:5601] [fd00:ec2::23] [fd00:c1::a9fe:a9fe] [fd00:42::42]))
{
	my $answer = send_one("http://$host:$port{http}/refused");
	like($answer, $host =~ /^\[/ && !$ipv6 ? qr/^0\|t\|-1\|(address .* is refused|Could not resolve)/ : qr/^0\|t\|-1\|address .* is refused: /, "$host is refused");
}
like(send_one('smtp://169.254.169.254', "mail_to => '{a\@b.test}'"), qr/^0\|t\|-1\|address 169.254.169.254 is refused/, 'for mail as well');
like(send_one("http://[::1]:$closed/"), qr/^0\|t\|-1\|(Failed to connect|Could not resolve)/, '::1 is not');
is((grep { $_->{path} eq '/refused' } received($receiver, 'http')), 0, 'and nothing arrived');

# Further ranges; a session with a kept connection notices too.
my $session = $node->background_psql('postgres');
my $once = "SELECT status, error FROM transfer_test(ARRAY['$http/ok'])";
is($session->query_safe($once), '204|', 'allowed by default');
for my $range ('127.0.0.0/8', '10.0.0.0/8, 127.0.0.1', '::ffff:127.0.0.0/104,fd00::/8', '0.0.0.0/0')
{
	set('coupon.endpoint_deny', $range);
	is($session->query_safe($once), '0|address 127.0.0.1 is refused: it is in coupon.endpoint_deny, or link-local, multicast or of a metadata service',
		"$range refuses it, even over a kept connection");
	like(send_one("http://[::ffff:127.0.0.1]:$port{http}/ok"), qr/^0\|t\|-1\|(address .* is refused|Could not resolve)/, 'and as mapped');
}
for my $range ('10.0.0.0/8', '::/0', '126.0.0.0/8', '128.0.0.0/1', '')
{
	set('coupon.endpoint_deny', $range);
	is($session->query_safe($once), '204|', "'$range' does not");
}
$session->quit;
for my $bad ('10.0.0.1/8', '10.0.0.0/33', '10.0.0.0/', '10.0.0.0/-1', '10.0.0.0/8x', 'gateway', '10.0.0', '10.0.0.0/8,', ',', '::1/129', '::1/64', '1.2.3.4 5.6.7.8', 'fe80::1%eth0')
{
	my ($rc, $out, $err) = $node->psql('postgres', "ALTER SYSTEM SET coupon.endpoint_deny = '$bad'");
	like($err, qr/ERROR:  invalid value for parameter "coupon.endpoint_deny".*\n.*DETAIL:  .* is no address range/, "'$bad' is no range");
}

# What is not sent at all.
my $before = received($receiver, 'http');
for my $endpoint ('ftp://127.0.0.1/', 'file:///etc/passwd', '127.0.0.1/', 'gopher://127.0.0.1/', '', 'httpx://127.0.0.1/', ' http://127.0.0.1/')
{
	is(send_one($endpoint), '0|t|-1|the endpoint does not begin with http://, https://, smtp:// or smtps://', "'$endpoint'");
}
for my $endpoint ("$http/o k", "$http/ok\r\nX: y", 'http://', 'http://[::1', 'http://127.0.0.1:99999/', "http://me:secret\@127.0.0.1:$port{http}/ok")
{
	like(send_one($endpoint), qr/^0\|t\|-1\|\w/, "'$endpoint'");
}
is(send_one("$http/ok", "headers => ARRAY[E'X: y$_']"), '0|t|-1|a header contains a character that may not be there, such as a line break', "a header with $_")
	for '\r\nY: z', '\nY: z', '\rY: z', '\x01', '\x7f';
is(send_one("$http/ok", "headers => ARRAY[E'$_']"), '0|t|-1|a header contains a character that may not be there, such as a line break', "a header $_") for 'X y: z', 'X\r\nY: z';
is(send_one("$http/ok", "headers => ARRAY['$_']"), '0|t|-1|a header is not of the form "Name: value"', "a header '$_'") for 'X', ': y', '';
is(send_one("$http/ok", "headers => ARRAY['$_']"), '0|t|-1|the headers Content-Length, Transfer-Encoding and Expect cannot be set', $_)
	for 'content-length: 3', 'Transfer-Encoding: chunked', 'Expect: 100-continue';
is(received($receiver, 'http'), $before, 'and nothing of it arrived');

# Mail.
my $text = 'Subject: hello\r\n\r\n.\r\n..two\r\n';
my $one = "E'$text', mail_from => 'shop\@a.test', mail_to => '{ann\@b.test,bob\@c.test}'";
is(sql("SELECT status, error, count(*) FROM transfer_test(ARRAY['$mail'], 30, 4, $one) GROUP BY 1, 2"), '250||30', '30 mails');
my @mails = received($receiver, 'smtp');
is(@mails, 30, 'arrive');
is_deeply([ sort { $a <=> $b } map { $_->{text} =~ /^Subject: hello\r\n\r\n\.\r\n\.\.two\r\n(\d+)\r\n$/ ? $1 : -1 } @mails ], [ 0 .. 29 ], 'each once, as it was sent');
is((grep { $_->{mail_from} eq 'shop@a.test' && "@{$_->{mail_to}}" eq 'ann@b.test bob@c.test' } @mails), 30, 'with their envelopes');
is(keys %{ { map { $_->{connection} => 1 } @mails } }, 30, 'over a connection of its own');
is(send_one("$mail", "body => 'x', mail_from => '', mail_to => '{ann\@b.test}'"), '250|f|-1|', 'without a sender');
is((received($receiver, 'smtp'))[-1]{mail_from}, '', 'is one from <>');

sub send_to { my ($to, $more) = @_; return send_one($mail, "body => 'x', mail_from => 'shop\@a.test', mail_to => '{$to}'" . ($more // '')); }
my $mails = received($receiver, 'smtp');
is(send_to('refused@b.test'), '550|t|-1|', 'a recipient who is unknown');
is(send_to('ann@b.test,refused@b.test'), '550|t|-1|', 'one of two');
is(send_to('later@b.test'), '451|t|-1|', 'not now');
is(send_to('spam@b.test'), '554|f|-1|', 'refused after the text');
like(send_to('hang@b.test', ', timeout => 1000'), qr/^0\|t\|-1\|.*timed out/, 'no reply');
like(send_to('close@b.test'), qr/^0\|f\|-1\|./, 'closed after the text');
like(send_one("smtp://127.0.0.1:$port{http}", "timeout => 1000, mail_to => '{a\@b.test}'"), qr/^0\|t\|-1\|./, 'no mail server');
for my $to ('a@b.test\r\nRCPT TO:<c@d.test', 'a@b.test\n', 'a@b.test> <c@d.test', '<a@b.test>', 'a b@c.test', 'a\x7f@b.test')
{
	is(send_one($mail, "body => 'x', mail_from => '', mail_to => ARRAY[E'$to']"), '0|t|-1|a mail address contains a character that may not be there, such as a line break', "recipient $to");
	is(send_one($mail, "body => 'x', mail_from => E'$to', mail_to => '{a\@b.test}'"), '0|t|-1|a mail address contains a character that may not be there, such as a line break', "sender $to");
}
is(send_one($mail, 'body => $$x$$' . $_), '0|t|-1|the mail has no recipient', 'no recipient') for '', ', mail_to => $${}$$', ', mail_to => $${""}$$';
is(received($receiver, 'smtp'), $mails, 'and nothing of it arrived');
$session = $node->background_psql('postgres');
is($session->query_safe(join ' UNION ALL ', map { "(SELECT status FROM transfer_test(ARRAY['$mail'], mail_from => '', mail_to => '{$_\@b.test}'))" } qw(close ann)), "0\n250", 'a connection that was lost is not used again');
$session->quit;

# Passwords and TLS.
my $login = ", username => 'user', password => 'secret'";
is(send_to('ann@b.test', $login), '250|f|-1|', 'a password, to this machine');
is((received($receiver, 'smtp'))[-1]{user}, 'user', 'is known');
is(send_to('ann@b.test', ", username => 'user', password => 'wrong'"), '535|t|-1|', 'a wrong one');
$mail = "smtp://mail.test:$port{smtp}";
like(send_to('ann@b.test', $login), qr/^0\|t\|-1\|.*STARTTLS|^0\|t\|-1\|.*SSL/, 'none in clear over the network');
is(send_to('ann@b.test'), '250|f|-1|', 'mail without a password goes');
for my $endpoint ("smtp://mail.test:$port{starttls}", "smtps://mail.test:$port{smtps}")
{
	$mail = $endpoint;
	is(send_to('ann@b.test', $login), '250|f|-1|', "$endpoint with a password");
	$last = (received($receiver, 'smtp'))[-1];
	ok($last->{tls} && $last->{user} eq 'user', 'over TLS');
	is(send_to('ann@b.test'), '250|f|-1|', 'without one');
	ok((received($receiver, 'smtp'))[-1]{tls}, 'over TLS');
}
is(send_one("https://mail.test:$port{https}/ok"), '204|f|-1|', 'https');
like(send_one("https://other.test:$port{https}/ok"), qr/^0\|t\|-1\|SSL: no alternative certificate subject name matches/, 'a certificate for somebody else');
$session = $node->background_psql('postgres');
$once = "SELECT status, left(error, 15) FROM transfer_test(ARRAY['https://localhost:$port{https}/ok'])";
is($session->query_safe($once), '204|', 'a certificate that is known');
set('coupon.endpoint_ca_file', '');
is($session->query_safe($once), '0|SSL certificate', 'is not by the authorities of the system');
$session->quit;
$mail = "smtp://mail.test:$port{starttls}";
like(send_to('ann@b.test'), qr/^0\|t\|-1\|SSL certificate /, 'STARTTLS with an unknown certificate');

# Nothing of all this went through a proxy.
is((grep { $_->{method} ne 'POST' || $_->{path} !~ m{^/} } received($receiver, 'http')), 0, 'no proxy of the environment');
unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal/, 'no crash');

$node->stop;
stop_process($_) for $receiver, $nginx;
done_testing();
