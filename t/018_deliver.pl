# Delivery through the worker: what was put into the outbox arrives once, with
# one webhook-id, whatever receivers and administrators do.  COUPON_SEED repeats
# a run.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use Digest::SHA qw(hmac_sha256_base64);
use Encode;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

seeded();
my ($node, $receiver) = start_both('deliver', "coupon.batch_size = 100\nmax_prepared_transactions = 5");

# Keys by number, the secrets of a channel, and whether somebody else signs a
# request with these keys in the same way.
sub key { my ($k) = @_; return join('', map { chr((7 * $_ * $k + $k) % 256) } 1 .. 32); }
sub secrets { return join(' ', map { 'whsec_' . encode_base64(key($_), '') } @_); }
sub is_signed
{
	my ($request, @keys) = @_;
	my %h = %{ $request->{headers} };
	my $text = join('.', $h{'webhook-id'}, $h{'webhook-timestamp'}, encode_utf8($request->{body}));
	my @signatures = map { my $s = hmac_sha256_base64($text, key($_)); 'v1,' . $s . '=' x (-length($s) % 4) } @keys;
	return $h{'webhook-signature'} eq "@signatures";
}

# Delivered once, with the right body, headers and signatures.
{
	my @keys = (3, 5);
	my $secrets = secrets(@keys);
	my $name = "Gr\x{f6}\x{df}e \x{5496}\x{5561} \"50 %\" \\ off";
	channel('sms', 'ok/first', "secret => '$secrets', headers => '{\"X-Shop\": \"seven\"}'");
	channel('app', 'ok/second', q{body_template => '{"to": {addresses}, "text": "{subject}"}', headers => '{"Authorization": "Bearer t"}'});
	sql(q{SELECT coupon_contact_set(7, 'sms', '+49 151 7'), coupon_contact_set(8, 'app', 'device "8"')});
	my $id = reminders_due('sms,app', 1, 20, encode_utf8($name));
	my $tests = tests('sms', 10, 'number') . ',' . tests('app', 10, 'device');
	await('count(*) = 0 AND (SELECT count(*) = 60 FROM coupon_notification_history) FROM coupon_notification', 'first: the queue runs empty');
	is(sql(q{SELECT DISTINCT state, attempts, last_status, sent_at >= due_at AND ended_at >= sent_at FROM coupon_notification_history}),
		'delivered|1|204|t', 'first: all is in the history');
	is(sql(q{SELECT channel, kind, count(*), count(DISTINCT user_ids) FROM coupon_notification_history GROUP BY 1, 2 ORDER BY 1, 2}),
		"app|reminder|20|20\napp|test|10|1\nsms|reminder|20|20\nsms|test|10|1", 'first: of each user once');

	my (@sms, @app) = ();
	@sms = arrived('ok/first');
	@app = arrived('ok/second');
	is(ids_of(@sms, @app), sorted(sql(q{SELECT string_agg(id::text, ',') FROM coupon_notification_history})), 'first: each arrives once, under its id');
	my ($signed, $right) = (0, 0);
	for my $r (@sms)
	{
		my %h = %{ $r->{headers} };
		$signed++ if is_signed($r, @keys) && abs($h{'webhook-timestamp'} - $r->{time}) < 60;
		my $body = decode_json(encode_utf8($r->{body}));
		my $d = $body->{data};
		my ($to) = @{ $d->{recipients} };
		next if $h{'x-shop'} ne 'seven' || $h{'user-agent'} ne 'coupon/1.0' || $h{'content-type'} ne 'application/json' || $d->{id} ne $h{'webhook-id'} || @{ $d->{recipients} } != 1;
		$right++ if $body->{type} eq 'coupon.test' && $to->{address} =~ /^number\d+$/;
		$right++ if $body->{type} eq 'coupon.reminder' && $d->{template_id} eq $id && $d->{name} eq $name && $d->{minutes} == 30
			&& $d->{subject} eq "$name starts soon" && $to->{address} eq ($to->{user_id} == 7 ? '+49 151 7' : $to->{user_id});
	}
	is($signed, 30, 'first: two signatures that somebody else computes alike');
	is($right, 30, 'first: bodies and headers are right');
	is(scalar(grep { my $b = decode_json(encode_utf8($_->{body})); $_->{headers}{authorization} eq 'Bearer t' && $b->{to}[0] =~ /^(device\d+|device "8"|\d+)$/
		&& ($b->{text} eq "$name starts soon" || $b->{text} eq 'Test of channel app') && !exists $_->{headers}{'webhook-id'} } @app),
		30, 'second: the dialect of a gateway');
}

# Pushes that leave together say what they are about: each its own, where the
# message names a user, or is the same for all.
my $says = 0;
for my $message ('of {name}', 'of {name}, for {user_id}', '{id} of {name}', 'of {name}, to {address}')
{
	my $path = 'ok/says' . ++$says;
	channel('ch3', $path);
	sql(q{SELECT coupon_channel_enable('ch3', false)});
	sql("SELECT coupon_message_set('reminder', 'ch3', 'subject', '$message')");
	my %name = map { reminders_due('ch3', 11, 15, "sale $_") => "sale $_" } 1 .. 3;
	await("count(*) = 15 FROM coupon_notification WHERE channel = 'ch3'", "\"$message\": all wait");
	sql(q{UPDATE coupon_notification SET next_at = due_at - user_ids[1] * interval '1 s' WHERE channel = 'ch3'});
	my %of = split /[|\n]/, sql(q{SELECT id, template_id FROM coupon_notification WHERE channel = 'ch3'});
	sql(q{SELECT coupon_channel_enable('ch3')});
	await_arrived($path, 15);
	my $right = 0;
	for my $request (arrived($path))
	{
		my $d = data_of($request);
		my $user = $d->{recipients}[0]{user_id};
		my $name = $name{ $of{ $d->{id} } };
		my $body = $message =~ s/\{name\}/$name/r =~ s/\{id\}/$d->{id}/r =~ s/\{(user_id|address)\}/$user/r;
		$right++ if $d->{body} eq $body && $d->{name} eq $name && $d->{template_id} eq $of{ $d->{id} } && $request->{headers}{'webhook-id'} eq $d->{id};
	}
	is($right, 15, "\"$message\": of each sale, to each user");
}
sql(q{DELETE FROM coupon_message});

# Channels take turns, have many secrets, and get others.
{
	my $round = 0;
	for ([ [1], [2] ], [ [ 2, 1, 3, 4, 6 ], [ 1, 3 ] ], [ [3], [2] ])
	{
		my ($sms, $ch3) = @$_;
		$round++;
		channel('sms', "ok/secrets-sms$round", "secret => '" . secrets(@$sms) . "', max_in_flight => 2");
		channel('ch3', "ok/secrets-ch3$round", "secret => '" . secrets(@$ch3) . "', max_in_flight => 2");
		my $ids = tests('sms', 10, 'x') . ',' . tests('ch3', 10, 'x');
		await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($ids)", "secrets $round: delivered");
		is(scalar(grep { is_signed($_, @$sms) } arrived("ok/secrets-sms$round")), 10, "secrets $round: one channel");
		is(scalar(grep { is_signed($_, @$ch3) } arrived("ok/secrets-ch3$round")), 10, "secrets $round: another");
	}
}

# What another session holds is passed over, and goes when it lets it go.
{
	channel('sms', "ok/held", 'max_in_flight => 2');
	sql(q{SELECT coupon_channel_enable('sms', false)});
	my $ids = sql(q{WITH added AS (INSERT INTO coupon_notification (channel, kind, user_ids, due_at, next_at)
		SELECT 'sms', 'test', ARRAY[n], now(), now() - 5 * interval '1 s' + n * interval '1 ms' FROM generate_series(1, 6) n RETURNING id)
		SELECT string_agg(id::text, ',' ORDER BY id) FROM added});
	my ($first, $second, $third) = split /,/, $ids;
	sql("BEGIN; SELECT FROM coupon_notification WHERE id IN ($first, $third) FOR UPDATE; PREPARE TRANSACTION 'held'");
	sql(q{SELECT coupon_channel_enable('sms')});
	await("count(*) = 4 FROM coupon_notification_history WHERE id IN ($ids)", "held: the others are delivered");
	is(sql("SELECT string_agg(id::text || ' ' || attempts, ',' ORDER BY id) FROM coupon_notification WHERE id IN ($ids)"), "$first 0,$third 0", "held: those wait");
	sql(q{COMMIT PREPARED 'held'});
	await("count(*) = 6 FROM coupon_notification_history WHERE id IN ($ids)", "held: and go then");
	is(ended($ids), 'delivered|1|204|6', "held: each at the first attempt");
	is(ids_of(arrived("ok/held")), sorted($ids), "held: each once");
}

# Row triggers BEFORE, on the queue, beside others who change and hold its rows.  Early:
# after an error the worker locks each row for a minute.
{
	channel('sms', 'ok/before');
	sql(q{CREATE FUNCTION before_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';
		CREATE FUNCTION before_history() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(18); RETURN NEW; END';
		CREATE TRIGGER before_row BEFORE DELETE ON coupon_notification FOR EACH ROW EXECUTE FUNCTION before_row();
		CREATE TRIGGER before_history BEFORE INSERT ON coupon_notification_history FOR EACH ROW EXECUTE FUNCTION before_history()});
	my $holding = $node->background_psql('postgres');
	$holding->query_safe('SELECT pg_advisory_lock(18)');
	my $id = tests('sms', 1, 'x');
	await(q{EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)}, 'before: the worker records');
	my $changing = $node->background_psql('postgres');
	$changing->query_until(qr/begun/, "\\echo begun\nUPDATE coupon_notification SET last_error = 'by hand' WHERE id = $id;\n");
	await(q{EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'UPDATE coupon_notification%' AND wait_event_type = 'Lock')}, 'before: who changes the row meanwhile waits');
	$holding->query_safe('SELECT pg_advisory_unlock(18)');
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $id AND state = 'delivered'", 'before: it is recorded');
	is(ids_of(arrived('ok/before')), $id, 'before: once');
	$_->quit for $holding, $changing;
	# Held as a foreign key holds it: nobody else waits.
	channel('sms', 'slow/key/500');
	channel('app', 'ok/key');
	sql(q{DROP FUNCTION before_row() CASCADE; DROP FUNCTION before_history() CASCADE});
	$id = tests('sms', 1, 'x');
	my $key = $node->background_psql('postgres');
	$key->query_safe("BEGIN; SELECT FROM coupon_notification WHERE id = $id FOR KEY SHARE");
	await_arrived('slow/key/500', 1);
	my $beside = tests('app', 5, 'x');
	await("count(*) = 5 FROM coupon_notification_history WHERE id IN ($beside)", 'key share: others are recorded');
	is(sql("SELECT count(*) FROM coupon_notification WHERE id = $id"), '1', 'key share: while it waits');
	$key->query_safe('COMMIT');
	$key->quit;
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $id", 'key share: and is recorded then');
	unlike(slurp_file($node->logfile), qr/lock timeout/, 'key share: the worker has not waited');
}

# Without the index that they are found by, pushes wait and say why.
{
	channel('sms', 'ok/index');
	sql('DROP INDEX coupon_notification_next');
	my $ids = tests('sms', 3, 'x');
	await(q{bool_or(last_error LIKE '%lacks an index%') FROM coupon_stat_worker}, 'index: the worker says what is missing');
	sql('CREATE INDEX coupon_notification_next ON coupon_notification (channel, lane, next_at)');
	await("count(*) = 3 FROM coupon_notification_history WHERE id IN ($ids)", 'index: with it they go');
	is(ids_of(arrived('ok/index')), sorted($ids), 'index: each once');
}

# A gateway may mean one recipient by 410: he gets no more, and others theirs; where many
# have been refused in a row, nobody is given up for it, and the channel goes on.
{
	my @words = map { $_ == 3 ? "bad$_" : "good$_" } 1 .. 6;
	channel('ch3', 'status-on/bad/410', q{recipient_status => '{410,429}', max_in_flight => 1});
	my $ids = join(',', map { sql("SELECT notification_id FROM coupon_channel_test('ch3', '$_')") } @words);
	await("count(*) = 6 FROM coupon_notification_history WHERE id IN ($ids)", 'recipient: all are over');
	is(ended($ids), "dead|1|410|1\ndelivered|1|204|5", 'recipient: one is refused for good');
	is(sql(q{SELECT enabled FROM coupon_channel WHERE channel = 'ch3'}), 't', 'recipient: and nobody else');
	$ids = tests('ch3', 9, 'bad');
	await("count(*) = 2 FROM coupon_notification WHERE id IN ($ids) AND last_status = 410", 'recipient: of many in a row the last are tried again');
	is(sql("SELECT count(*) FROM coupon_notification_history WHERE id IN ($ids)"), '7', 'recipient: seven were given up before');
	is(sql(q{SELECT enabled FROM coupon_channel WHERE channel = 'ch3'}), 't', 'recipient: the channel is not switched off');
	channel('ch3', 'status-on/bad/429', q{recipient_status => '{410,429}', max_in_flight => 4});
	await("count(*) = 2 FROM coupon_notification WHERE id IN ($ids) AND last_status = 429", 'recipient: 429 is tried again');
	my $good = tests('ch3', 20, 'good');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($good) AND attempts = 1", 'recipient: and slows nobody else');
	sql("DELETE FROM coupon_notification WHERE id IN ($ids)");
	my ($rc, $out, $err) = $node->psql('postgres', q{SELECT coupon_channel_set('ch3', 'http://h', recipient_status => '{410,200}')});
	like($err, qr/recipient_status must be HTTP statuses from 400 to 599/, 'recipient: what is no refusal is none');
}

# Of what somebody holds while it is on its way the answer waits, and nothing else
# does: one that is good, one that is not, and the 410 of a channel.
{
	channel('sms', 'slow/holding/1000');
	channel('ch3', 'hang/holding', q{timeout => '1 s'});
	channel('app', 'ok/beside');
	my $slow = tests('sms', 1, 'x');
	my $hanging = tests('ch3', 1, 'x');
	await("count(*) = 2 FROM coupon_notification WHERE id IN ($slow, $hanging) AND leased_until IS NOT NULL", 'holding: they leave');
	sql("BEGIN; SELECT FROM coupon_notification WHERE id IN ($slow, $hanging) FOR UPDATE; PREPARE TRANSACTION 'holding'");
	channel('ch4', 'status/410');
	sql(q{BEGIN; SELECT FROM coupon_channel WHERE channel = 'ch4' FOR UPDATE; PREPARE TRANSACTION 'channel'});
	my $gone = tests('ch4', 1, 'x');
	await("last_status = 410 FROM coupon_notification WHERE id = $gone", 'holding: a channel is gone');
	await("bool_and(leased_until - (CASE channel WHEN 'sms' THEN '18 s' ELSE '9 s' END)::interval < clock_timestamp()) FROM coupon_notification WHERE id IN ($slow, $hanging)", 'holding: their answers have come');
	my $beside = tests('app', 20, 'b');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($beside)", 'holding: another channel delivers');
	is(sql("SELECT count(*), max(attempts), count(last_error) FROM coupon_notification WHERE id IN ($slow, $hanging)"), '2|1|0', 'holding: those stay as they are');
	is(sql(q{SELECT enabled FROM coupon_channel WHERE channel = 'ch4'}), 't', 'holding: a channel cannot be switched off');
	sql("COMMIT PREPARED 'holding'");
	sql("COMMIT PREPARED 'channel'");
	await(q{disabled_reason ~ '410' FROM coupon_channel WHERE channel = 'ch4'}, 'holding: it is, when it can be');
	cmp_ok(scalar(arrived('status/410')), '<', 20, 'holding: and was not asked on and on');
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $slow", 'holding: the good answer is recorded then');
	is(ended($slow), 'delivered|1|204|1', 'holding: as it came');
	await("last_error IS NOT NULL FROM coupon_notification WHERE id = $hanging", 'holding: and the other');
	is(ids_of(arrived('slow/holding')), $slow, 'holding: it was sent once');
	unlike(slurp_file($node->logfile), qr/lock timeout/, 'holding: the worker has not waited');
	sql("DELETE FROM coupon_notification WHERE id IN ($hanging, $gone)");
}

# Tried again: under the same id, with the same body, when the receiver says.
{
	channel('sms', 'flaky/again/2');
	channel('app', 'retry-after/later/3');
	switch_to('gone', 'status/410');
	channel('ch3', 'switch/gone');
	my $flaky = tests('sms', 1, 'x');
	my $later = tests('app', 1, 'x');
	my $gone = tests('ch3', 1, 'x');
	await("last_status = 429 FROM coupon_notification WHERE id = $later", 'later: refused');
	is(sql("SELECT next_at >= due_at + interval '3 s' FROM coupon_notification WHERE id = $later"), 't', 'later: until the time in Retry-After');
	await(q{NOT enabled AND disabled_reason ~ '410' FROM coupon_channel WHERE channel = 'ch3'}, 'gone: 410 switches the channel off');
	is(sql("SELECT attempts, leased_until IS NULL, last_status FROM coupon_notification WHERE id = $gone"), '1|t|410', 'gone: the push waits');
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $flaky", 'again: delivered after two failures');
	is(ended($flaky), 'delivered|3|204|1', 'again: with three attempts');
	my @requests = arrived('flaky/again');
	is(ids_of(@requests), "$flaky,$flaky,$flaky", 'again: each under the same id');
	is(scalar(keys %{ { map { $_->{body} => 1 } @requests } }), 1, 'again: and with the same body');
	await("attempts >= 2 FROM coupon_notification WHERE id = $later", 'later: tried again');
	@requests = arrived('retry-after/later');
	cmp_ok($requests[1]{time} - $requests[0]{time}, '>=', 2.99, 'later: not before the time in Retry-After');
	is(sql("SELECT coupon_stuck.state FROM coupon_stuck('0') WHERE id = $later"), 'retrying', 'later: coupon_stuck tells of it');
	is(scalar(arrived('switch/gone')), 1, 'gone: nothing more was sent');
	switch_to('gone', 'ok');
	sql(q{SELECT coupon_channel_enable('ch3')});
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $gone", 'gone: enabled, the push goes out');
	is(ids_of(arrived('switch/gone')), "$gone,$gone", 'gone: under the same id');
	sql("DELETE FROM coupon_notification WHERE id = $later");
}

# Bad receivers: dead after so many attempts, and no other channel minds.
{
	my $closed = PostgreSQL::Test::Cluster::get_free_port();
	my %bad = (garbage => 'garbage/x', close => 'close/x', reset => 'reset/x', redirect => 'redirect/ok', 'no name' => 'http://no.such.host.invalid/x',
		'no port' => "http://127.0.0.1:$closed/x", headers => 'endless-headers/x', refused => 'http://169.254.169.254/x');
	limit_attempts(2);
	my @kinds = sort keys %bad;
	while (my @round = splice(@kinds, 0, 4))
	{
		my %ids;
		my %channels;
		@channels{@round} = qw(sms email app ch3);
		channel($channels{$_}, $bad{$_}, q{timeout => '2 s'}) for @round;
		channel('ch4', 'ok/good');
		$ids{$_} = tests($channels{$_}, 3, "bad-$_") for @round;
		my $good = tests('ch4', 50, 'good');
		await("count(*) = 50 FROM coupon_notification_history WHERE id IN ($good)", "bad (@round): another channel delivers");
		for my $kind (@round)
		{
			await("count(*) = 3 FROM coupon_notification_history WHERE id IN ($ids{$kind})", "bad ($kind): given up");
			is(sql("SELECT DISTINCT state, attempts, last_error <> '' FROM coupon_notification_history WHERE id IN ($ids{$kind})"), 'dead|2|t', "bad ($kind): after two attempts");
		}
		# Answers count once their headers are there, whatever the body is.
		if (!@kinds)
		{
			my ($endless, $short) = map { channel('ch4', $_); my $t = tests('ch4', 3, 'x'); await("count(*) = 3 FROM coupon_notification_history WHERE id IN ($t)", "$_: over"); $t } 'endless-body/x', 'close-body/x';
			is(ended("$endless,$short"), 'delivered|1|200|6', 'an endless body and a short one are answers');
			for my $kind (@round)
			{
				channel($channels{$kind}, "ok/replayed-$channels{$kind}");
				is(sql("SELECT replayed FROM coupon_notification_replay(channel => '$channels{$kind}')") >= 3, 1, "replay ($kind)");
				await("count(*) = 3 FROM coupon_notification_history WHERE id IN ($ids{$kind}) AND state = 'delivered' AND attempts = 3", "replay ($kind): delivered");
				my %seen = map { $_->{headers}{'webhook-id'} => 1 } arrived("ok/replayed-$channels{$kind}");
				is(scalar(grep { $seen{$_} } split(/,/, $ids{$kind})), 3, "replay ($kind): under the same ids");
			}
		}
	}
	unlike(join(' ', map { $_->{path} } received($receiver, 'http')), qr{^/ok$}m, 'bad: no redirect was followed');
	limit_attempts(12);
	await('count(*) = 0 FROM coupon_notification', 'bad: nothing is left behind');
}

# A queue that is written anew, and gets shorter, while a push is on its way.
{
	channel('app', 'slow/moved/2000');
	sql('VACUUM FULL coupon_notification');
	sql(q{INSERT INTO coupon_notification (channel, kind, user_ids, due_at, next_at) SELECT 'ch3', 'test', '{1}', now(), now() + interval '1 day' FROM generate_series(1, 500)});
	my $moved = tests('app', 1, 'm');
	await("leased_until IS NOT NULL AND ctid > '(1,0)' FROM coupon_notification WHERE id = $moved", 'moved: it is on its way, from a page behind the first');
	sql(q{DELETE FROM coupon_notification WHERE channel = 'ch3'});
	sql('VACUUM FULL coupon_notification');
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $moved", 'moved: it is recorded');
	is(ended($moved), 'delivered|1|204|1', 'moved: as what it was');
	unlike(slurp_file($node->logfile), qr/could not read block/, 'moved: and nobody reads behind the end');

	# What somebody has made NOT NULL is not written past him.
	sql('ALTER TABLE coupon_notification ALTER task_id SET NOT NULL');
	my ($rc, $out, $err) = $node->psql('postgres', q{SELECT coupon_channel_test('app', 'null')});
	like($err, qr/null value in column "task_id"/, 'not null: a push without it is refused');
	sql('ALTER TABLE coupon_notification ALTER task_id DROP NOT NULL');

	# Nor is a CHECK of his, in the place of ours.
	my $kinds = 'ALTER TABLE coupon_notification DROP CONSTRAINT coupon_notification_sane, ADD CONSTRAINT coupon_notification_sane CHECK';
	sql("$kinds (address <> 'checked')");
	($rc, $out, $err) = $node->psql('postgres', q{SELECT coupon_channel_test('app', 'checked')});
	like($err, qr/violates check constraint "coupon_notification_sane"/, 'check: a push that it forbids is refused');
	sql("$kinds (coupon_notification_sane(channel, kind, user_ids))");

	# A push in a table that inherits from the queue is none of ours.
	await('count(*) = 0 FROM coupon_notification', 'inherits: the queue is empty');
	sql('CREATE TABLE child () INHERITS (coupon_notification)');
	sql(q{INSERT INTO child (channel, kind, user_ids, due_at, next_at) VALUES ('app', 'test', '{1}', now(), now() - interval '1 s')});
	my $ours = tests('app', 1, 'x');
	await("count(*) = 1 FROM coupon_notification_history WHERE id = $ours AND state = 'delivered'", 'inherits: one of ours is delivered');
	is(sql('SELECT attempts, leased_until FROM child'), '0|', 'inherits: and no other');
	sql('DROP TABLE child; ANALYZE coupon_notification');
}

# A receiver that hangs holds up nobody else, and no more than it may.
{
	channel('ch4', 'hang/five', q{timeout => '5 s'});
	channel('app', 'ok/quick');
	my $hanging = tests('ch4', 100, 'h');
	await(q{leased = 64 FROM coupon_stat_channel WHERE channel = 'ch4'}, 'hang: as many wait as may');
	my $quick = tests('app', 500, 'q');
	await("count(*) = 500 FROM coupon_notification_history WHERE id IN ($quick)", 'hang: another channel delivers all');
	is(sql("SELECT max(attempts), count(*) FILTER (WHERE attempts = 1), count(*) FILTER (WHERE last_error IS NOT NULL) FROM coupon_notification WHERE id IN ($hanging)"),
		'1|64|0', 'hang: while the first of it still hangs, and no more is leased than can leave');
	sql(q{DELETE FROM coupon_notification; SELECT coupon_channel_enable('ch4', false)});
}

# Cancelled reminders.
{
	# Before anything was sent.
	channel('sms', 'ok/cancelled');
	sql(q{SELECT coupon_channel_enable('sms', false)});
	my $id = reminders_due('sms', 1, 5);
	await("count(*) = 5 FROM coupon_notification WHERE template_id = $id", 'cancel: reminders wait for their channel');
	is(cancel($id, 2, 'sms'), 'ok', 'cancel: one is taken back');
	is(sql("BEGIN; SELECT outcome FROM coupon_remind_cancel($id, 3, 'sms', 30); ROLLBACK"), 'ok', 'cancel: another one is not, after all');
	sql(q{SELECT coupon_channel_enable('sms')});
	await("count(*) = 4 FROM coupon_notification_history WHERE template_id = $id", 'cancel: the others leave');
	is(join(',', sort map { users_of($_) } arrived('ok/cancelled')), '1,3,4,5', 'cancel: and only they arrive');

	# While it is on its way.
	channel('sms', 'slow/flying/1000');
	$id = reminders_due('sms', 1, 1);
	await("leased_until IS NOT NULL FROM coupon_notification WHERE template_id = $id", 'flying: it leaves');
	is(cancel($id, 1, 'sms'), 'too_late', 'flying: a cancel is too late');
	await("count(*) = 1 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", 'flying: it arrives');

	# One of several in a request; and the last two of one at the same time.
	channel('sms', 'ok/several', 'batch_size => 3, enabled => false');
	$id = reminders_due('sms', 1, 5);
	await("count(*) = 2 FROM coupon_notification WHERE template_id = $id", 'several: two requests');
	is(cancel($id, 2, 'sms'), 'ok', 'several: one of three is taken back');
	my $open = $node->background_psql('postgres');
	is($open->query_safe("BEGIN; SELECT outcome FROM coupon_remind_cancel($id, 4, 'sms', 30)"), 'ok', 'several: and one of two');
	my $other = start_psql("SELECT outcome FROM coupon_remind_cancel($id, 5, 'sms', 30)");
	await(q{count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'cancel'}, 'several: and the other, who waits');
	$open->query_safe('COMMIT');
	$open->quit;
	is(finish($other), "ok\n", 'several: and can');
	sql(q{SELECT coupon_channel_enable('sms')});
	await("count(*) = 0 FROM coupon_notification", 'several: the queue runs empty');
	is(join(' ', map { join(',', users_of($_)) } arrived('ok/several')), '1,3', 'several: one request, without the one cancelled');

	# At any moment: what was taken back is not sent, what was too late is.
	channel('sms', 'slow/race/50', 'max_in_flight => 8');
	my $n = 300;
	$id = reminders_due('sms', 1, $n);
	my @order = sort { rand() <=> 0.5 } 1 .. $n;
	my $run = start_psql(join('', map { "SELECT $_, outcome FROM coupon_remind_cancel($id, $_, 'sms', 30);\n" . ($_ % 3 ? '' : "SELECT pg_sleep(0.01) WHERE false;\n") } @order));
	my %outcome = finish($run) =~ /^(\d+)\|(\w+)$/mg;
	await("count(*) = 0 FROM coupon_notification", 'race: the queue runs empty');
	my %sent;
	$sent{$_}++ for map { users_of($_) } arrived('slow/race');
	is(join(',', sort keys %{ { map { $_ => 1 } values %outcome } }), 'ok,too_late', 'race: some were in time, some not');
	is(scalar(grep { $outcome{$_} eq 'ok' && $sent{$_} } 1 .. $n), 0, 'race: none that was cancelled was sent');
	is(scalar(grep { $outcome{$_} eq 'too_late' && ($sent{$_} || 0) != 1 } 1 .. $n), 0, 'race: each other was, once');
}

# A sale that begins while its reminder waits for the next attempt.
{
	channel('sms', 'status/begun/500');
	my $id = reminders_due('sms', 1, 3);
	await("count(*) = 3 FROM coupon_notification WHERE template_id = $id AND last_status = 500", 'begun: reminders fail');
	sql("UPDATE coupon_template SET receive_start = now() - interval '1 s' WHERE id = $id");
	my $sent = scalar(arrived('status/begun'));
	await("count(*) = 3 FROM coupon_notification_history WHERE template_id = $id AND state = 'missed'", 'begun: then they are missed');
	cmp_ok(scalar(arrived('status/begun')) - $sent, '<=', 0, 'begun: and not sent');
}

# A distribution tells those who got a coupon.
{
	channel('sms', 'ok/given-sms', 'batch_size => 100');
	channel('app', 'ok/given-app');
	my $id = new_template('-1 hour');
	sql("SELECT coupon_receive($id, u) FROM generate_series(1, 10) u");
	my $task = sql("SELECT task_id FROM coupon_task_create('given', $id, '{sms,app}')");
	sql("INSERT INTO coupon_stage_$task (user_id) SELECT u::text FROM generate_series(1, 250) u UNION ALL SELECT 'nobody' UNION ALL SELECT u::text FROM generate_series(50, 60) u;
		SELECT coupon_task_submit($task)");
	await("state = 'success' FROM coupon_task WHERE id = $task", 'given: the task runs');
	await('count(*) = 0 FROM coupon_notification', 'given: the queue runs empty');
	is(sql("SELECT issued, failed FROM coupon_task WHERE id = $task"), '240|22', 'given: some lines fail');
	my $expected = sql("SELECT string_agg(user_id::text, ',' ORDER BY user_id) FROM user_coupon WHERE request_id = 'task $task'");
	for my $word ('given-sms', 'given-app')
	{
		my @requests = arrived($word);
		is(join(',', sort { $a <=> $b } map { users_of($_) } @requests), $expected, "$word: exactly those who got one");
		is(scalar(grep { data_of($_)->{task_id} ne $task || decode_json(encode_utf8($_->{body}))->{type} ne 'coupon.received' } @requests), 0, "$word: what it tells");
	}
	cmp_ok(scalar(arrived('given-sms')), '<=', 6, 'given: many in one request');
	is(scalar(arrived('given-app')), 240, 'given: or one in each');
}

# Rows that somebody has broken by hand stop only themselves.
{
	limit_attempts(1);
	channel($_, 'ok/poison', q{max_in_flight => 4}) for qw(sms email app ch3 ch4);
	sql(q{
		INSERT INTO coupon_secret VALUES ('channel_headers', 'sms', '{"Bad Name": "x"}'), ('channel_secret', 'app', 'garbage');
		UPDATE coupon_channel SET endpoint = 'gopher://127.0.0.1/' WHERE channel = 'ch3';
		UPDATE coupon_channel SET endpoint = 'smtp://127.0.0.1:9/' WHERE channel = 'email'});
	await_turn();	# that wakes nobody, and the worker keeps its copy for a second
	my $insert = 'INSERT INTO coupon_notification (id, channel, kind, user_ids, address, attempts, due_at, next_at)';
	sql("$insert SELECT coupon_next_id(), c, 'test', '{1}', 'x', 0, now(), now() FROM unnest('{sms,email,app,ch3}'::text[]) c");
	my $good = tests('ch4', 20, 'good');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($good) AND state = 'delivered'", 'broken channels: another delivers');
	await(q{count(*) = 3 FROM coupon_channel WHERE NOT enabled AND disabled_reason <> ''}, 'broken channels: are switched off, with a reason');
	like(sql(q{SELECT string_agg(channel || ': ' || disabled_reason, '; ' ORDER BY channel) FROM coupon_channel WHERE NOT enabled}),
		qr/^app: secret is malformed: .*; email: a mail needs a sender; sms: header "Bad Name" cannot be sent/, 'broken channels: it says which');
	await(q{state = 'dead' AND last_error ~ 'http://' FROM coupon_notification_history WHERE channel = 'ch3' ORDER BY id DESC LIMIT 1}, 'broken endpoint: its push has failed');
	channel($_, 'ok/mended') for qw(sms email app ch3);
	await(q{count(*) = 0 FROM coupon_notification}, 'broken channels: mended, they deliver what waits');
	is(scalar(arrived('ok/mended')), 3, 'broken channels: all of it');

	my $before = $node->safe_psql('postgres', q{SELECT pid FROM coupon_stat_worker WHERE database = 'postgres' AND kind = 'worker'});
	my ($rc, $out, $err) = $node->psql('postgres', "$insert VALUES (11, 'ch4', 'test', '{}', 'x', 0, now(), now())");
	like($err, qr/user_ids of "coupon_notification" must hold at least one user/, 'poisoned pushes: one without recipients is refused');
	sql('ALTER TABLE coupon_notification DROP CONSTRAINT coupon_notification_sane');
	sql(qq{BEGIN;
		$insert VALUES (11, 'ch4', 'test', '{NULL}', 'x', 0, now(), now() - interval '1 h'), (12, 'ch4', 'test', '{}', 'x', 0, now(), now() - interval '1 h'),
			(13, 'ch4', 'test', '{{1,2},{3,4}}', 'x', 0, now(), now() - interval '1 h'), (14, 'ch4', 'reminder', '{1}', NULL, 0, now(), '-infinity'),
			(15, 'ch4', 'test', '{1}', E'\\x01\\r\\nX: y', 0, now(), now() - interval '1 h'), (-16, 'ch4', 'coupon', '{1}', NULL, 0, now(), now());
		INSERT INTO coupon_notification_history (id, channel, kind, user_ids, state, due_at, ended_at, attempts)
			VALUES (17, 'ch4', 'test', '{1}', 'dead', now(), now(), 1);
		$insert VALUES (17, 'ch4', 'test', '{1}', 'x', 0, now(), now());
		SELECT coupon_worker_wake();
		COMMIT});
	$good = tests('ch4', 20, 'good');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($good) AND state = 'delivered'", 'poisoned pushes: others are delivered');
	await(q{count(*) = 0 FROM coupon_notification}, 'poisoned pushes: none stays');
	is(sql('SELECT id, state FROM coupon_notification_history WHERE id < 20 ORDER BY 1'),
		"-16|delivered\n11|dead\n12|dead\n13|delivered\n14|missed\n15|delivered\n17|delivered", 'poisoned pushes: how they end');
	# One that cannot even be leased stops its channel, until it is taken away.
	sql("$insert VALUES (18, 'ch4', 'test', '{1}', 'x', 2147483647, now(), now() - interval '1 h')");
	$good = tests('app', 20, 'good');
	await("count(*) = 20 FROM coupon_notification_history WHERE id IN ($good) AND state = 'delivered'", 'unleasable: other channels go on');
	await(q{last_error ~ 'integer out of range' FROM coupon_stat_worker WHERE database = 'postgres' AND kind = 'worker'}, 'unleasable: it is told of');
	$good = tests('ch4', 5, 'good');
	sql('DELETE FROM coupon_notification WHERE id = 18; SELECT coupon_worker_wake()');
	await("count(*) = 5 FROM coupon_notification_history WHERE id IN ($good) AND state = 'delivered'", 'unleasable: gone, its channel goes on');
	is(sql(q{SELECT pid FROM coupon_stat_worker WHERE database = 'postgres' AND kind = 'worker'}), $before, 'poisoned pushes: the worker lives');
	limit_attempts(12);
	sql('SELECT replayed FROM coupon_notification_replay()') or 1;
	sql('DELETE FROM coupon_notification; DELETE FROM coupon_notification_history');
}

# Places that are free are used while the others hang.  Last: these hang on.
{
	channel('ch4', 'hang/most', q{timeout => '10 min', max_in_flight => 3});
	tests('ch4', 2, 'h');
	await(q{leased = 2 FROM coupon_stat_channel WHERE channel = 'ch4'}, 'free places: most hang');
	tests('ch4', 1, 'h');
	await(q{leased = 3 FROM coupon_stat_channel WHERE channel = 'ch4'}, 'free places: a later push leaves at once');
}

# Several busy channels share transactions: the one that a channel is worth takes
# for those of which few places are free, and no second one follows for them.
# Last, too.
{
	sql(q{
		CREATE TABLE done (tx xid8 DEFAULT pg_current_xact_id(), what text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.done (what) VALUES (TG_ARGV[0]); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER UPDATE ON coupon_notification FOR EACH ROW EXECUTE FUNCTION note('leased');
		CREATE TRIGGER note AFTER INSERT ON coupon_notification_history FOR EACH ROW EXECUTE FUNCTION note('recorded')});
	switch_to('lanes', 'hang');
	channel('app', 'switch/lanes', q{timeout => '10 min', max_in_flight => 20});
	tests('app', 12, 'h');
	await(q{leased = 12 FROM coupon_stat_channel WHERE channel = 'app'}, 'lanes: most places of one hang');
	await_arrived('switch/lanes', 12);
	switch_to('lanes', 'slow/25');
	channel('sms', 'slow/lane/5', 'max_in_flight => 1');
	# All at once, so that no commit calls for a transaction.
	my $ids = sql(q{SELECT string_agg(notification_id::text, ',') FROM (SELECT CASE WHEN g % 2 = 0 THEN 'app' ELSE 'sms' END AS c FROM generate_series(1, 400) g) c, coupon_channel_test(c, 'x')});
	await("count(*) = 400 FROM coupon_notification_history WHERE id IN ($ids) AND state = 'delivered'", 'lanes: the others deliver');
	my ($both, $leased) = split /\|/, sql(q{
		SELECT count(*) FILTER (WHERE recorded AND leased), count(*) FILTER (WHERE NOT recorded)
		FROM (SELECT bool_or(what = 'recorded') AS recorded, bool_or(what = 'leased') AS leased FROM done GROUP BY tx) t});
	note("$both transactions record and lease, $leased only lease");
	cmp_ok($leased, '<', 10, 'lanes: each transaction that leases records as well');
}

# A user without a contact is not reached by the user id unless the channel says so.
{
	sql(q{SELECT coupon_contact_set(9001, 'sms', '+49 151 9001')});
	channel('sms', 'ok/known', 'user_id_is_address => NULL');
	my $id = reminders_due('sms', 9001, 9003, 'known');
	await("count(*) FILTER (WHERE state = 'delivered') = 1 AND count(*) FILTER (WHERE state = 'dead' AND last_error ~ 'has no contact') = 2 FROM coupon_notification_history WHERE template_id = $id",
		'contacts: who has none is told nothing');
	is(join(' ', sort map { address_of($_) } arrived('ok/known')), '+49 151 9001', 'contacts: and no stranger is');
}

$node->stop;
stop_process($receiver);
done_testing();
