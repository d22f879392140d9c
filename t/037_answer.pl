# What a receiver says in the body of its answer: whether it is a success, whom it names, and
# what of it is kept.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use DeliverTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $receiver) = start_both('answer', "coupon.databases = 'postgres'");
sub error_of { my ($statement) = @_; return ($node->psql('postgres', $statement))[2]; }

# 200 is not all: the body decides.
switch_to('plain', '{"code": "isv.BUSINESS_LIMIT", "message": "触发流控"}');
channel('app', 'says/plain', q{success_when => '$.code == "OK"'});
my $id = tests('app', 1, 'device');
await("last_status = 200 AND last_error = 'the answer is no success by success_when' FROM coupon_notification WHERE id = $id", 'an error within 200 is no success');
is(sql("SELECT last_answer FROM coupon_notification WHERE id = $id"), '{"code": "isv.BUSINESS_LIMIT", "message": "触发流控"}', 'what it said is there to be read');
switch_to('plain', 'OK');
await("last_error LIKE 'the answer cannot be judged: invalid input syntax for type json%' FROM coupon_notification WHERE id = $id", 'nor is what is no JSON');
switch_to('plain', '');
await("last_error LIKE 'the answer cannot be judged: invalid input syntax for type json%' AND last_answer IS NULL FROM coupon_notification WHERE id = $id", 'nor is silence');
switch_to('plain', '[' x 30000);
await("last_error LIKE 'the answer cannot be judged: %' AND last_answer IS NOT NULL FROM coupon_notification WHERE id = $id", 'nor is what cannot be read');
switch_to('plain', '{"code": "OK", "id": 7}');
sql("UPDATE coupon_notification SET next_at = now() WHERE id = $id; SELECT coupon_worker_wake()");
await("state = 'delivered' AND last_error IS NULL AND last_answer = '{\"code\": \"OK\", \"id\": 7}' FROM coupon_notification_history WHERE id = $id", 'a success is');
is(sql("SELECT attempts > 2 FROM coupon_notification_history WHERE id = $id"), 't', 'after some attempts');
limit_attempts(2);
switch_to('plain', '{"code": 1}');
$id = tests('app', 1, 'device');
await("state = 'dead' AND attempts = 2 FROM coupon_notification_history WHERE id = $id", 'it is given up as others are');
limit_attempts(12);

# A batch: who is dead, who is tried again, and who has got it.
sql(q{INSERT INTO coupon_template (id, name, discount_value, status) VALUES (101, 'a', 1, 'published'), (102, 'b', 1, 'published'), (103, 'c', 1, 'published');
	SELECT coupon_contact_set(2, 'app', 'device two'); SELECT coupon_contact_set(5, 'app', 'device five')});
switch_to('batch', '{"gone": ["device two", "nobody"], "later": [3, 3, "5"], "n": 2}');
channel('app', 'says/batch', q{batch_size => 10, dead_recipients => '$.gone[*]', retry_recipients => '$.later[*]'});
sub distribute
{
	my ($template) = @_;
	my $task = sql("SELECT task_id FROM coupon_task_create('to $template', $template, notify => '{app}')");
	sql("INSERT INTO coupon_stage_$task (user_id) SELECT generate_series(1, 6); CALL coupon_task_run($task)");
	return;
}
distribute(101);
await(q{count(*) = 1 FROM coupon_notification WHERE template_id = 101 AND attempts > 0 AND leased_until IS NULL}, 'one request becomes three');
is(sql(q{SELECT ARRAY(SELECT u FROM unnest(user_ids) u ORDER BY u), state, last_error FROM coupon_notification_history WHERE template_id = 101 ORDER BY state}),
	"{2}|dead|the answer names these recipients\n{1,4,6}|delivered|", 'who has it, and who is given up');
is(sql(q{SELECT ARRAY(SELECT u FROM unnest(user_ids) u ORDER BY u), last_error, last_status FROM coupon_notification WHERE template_id = 101}), '{3,5}|the answer names these recipients, to be tried again|200', 'and who is tried again');
switch_to('batch', '{"gone": ["3"], "later": ["3"]}');
await(q{count(*) = 0 FROM coupon_notification WHERE template_id = 101}, 'they alone');
is(sql(q{SELECT user_ids, state, attempts FROM coupon_notification_history WHERE template_id = 101 ORDER BY ended_at DESC, state LIMIT 2}), "{3}|dead|2\n{5}|delivered|2", 'each with his own end: dead, who is both');
my @requests = map { data_of($_) } arrived('says/batch');
is(join(' ', map { join(',', sort map { $_->{user_id} } @{ $_->{recipients} }) } @requests), '1,2,3,4,5,6 3,5', 'nobody else was bothered');
isnt($requests[0]{id}, $requests[1]{id}, 'other recipients are another request');
is(sql(q{SELECT count(*), count(DISTINCT u) FROM coupon_notification_history, unnest(user_ids) u WHERE template_id = 101}), '6|6', 'each is in the history once');
is(sql(q{SELECT id FROM coupon_notification_history WHERE template_id = 101 AND state = 'delivered' ORDER BY ended_at LIMIT 1}), $requests[0]{id}, 'under the id that the receiver knows');

limit_attempts(1);
switch_to('batch', '{"later": ["3"]}');
distribute(102);
await(q{state = 'dead' AND user_ids = '{3}' FROM coupon_notification_history WHERE template_id = 102 AND state = 'dead'}, 'too many attempts end that, too');
is(sql(q{SELECT count(*) FROM coupon_notification WHERE template_id = 102}), '0', 'and nothing is left');
limit_attempts(12);
channel('app', 'says/batch', q{batch_size => 10, success_when => '$.code == 0', dead_recipients => '$.gone[*]', retry_recipients => '$.later[*]'});
distribute(103);
await(q{last_error = 'the answer is no success by success_when' FROM coupon_notification WHERE template_id = 103}, 'whom a failure names is not asked');
is(sql(q{SELECT cardinality(user_ids) FROM coupon_notification WHERE template_id = 103}), '6', 'all are tried again');
sql(q{DELETE FROM coupon_notification WHERE template_id = 103});

# A reminder that is tried again is found by its cancel.
switch_to('batch', '{"code": 0, "later": ["12"]}');
$id = reminders_due('app', 11, 13, 'a sale');
await("count(*) = 1 FROM coupon_notification WHERE template_id = $id AND user_ids = '{12}'", 'a reminder is tried again');
sql("UPDATE coupon_notification SET next_at = now() + interval '1 hour' WHERE template_id = $id AND leased_until IS NULL");
is(sql("SELECT notifications[1] = (SELECT n.id FROM coupon_notification n WHERE n.template_id = $id) FROM coupon_remind WHERE template_id = $id AND user_id = 12"), 't', 'under another id, which it knows');
is(sql("SELECT outcome FROM coupon_remind_cancel($id, 12, 'app', 30)"), 'ok', 'it can be cancelled still');
is(sql("SELECT count(*) FROM coupon_notification WHERE template_id = $id"), '0', 'and is gone then');

# Nor does it come twice while its row is held: the answer waits, and so does the lease.
sql('DELETE FROM coupon_notification');
switch_to('batch', '{"code": 0, "later": [32]}');
channel('app', 'says/batch', q{batch_size => 10, timeout => '1 s', success_when => '$.code == 0', retry_recipients => '$.later[*]', enabled => false});
$id = reminders_due('app', 31, 33, 'held');
await("count(*) = 1 FROM coupon_notification WHERE template_id = $id", 'a reminder waits');
my $held = $node->background_psql('postgres');
$held->query_safe("BEGIN; SELECT 1 FROM coupon_remind WHERE template_id = $id AND user_id = 32 FOR UPDATE");
my $arrived = lines_arrived('says/batch');
sql(q{SELECT coupon_channel_enable('app')});
await("leased_until > now() + interval '20 s' FROM coupon_notification WHERE template_id = $id", 'its lease is prolonged while its answer cannot be recorded');
is(scalar(lines_arrived('says/batch')), $arrived + 1, 'it was sent once');
$held->query_safe('COMMIT');
$held->quit;
await("count(*) = 1 FROM coupon_notification_history WHERE template_id = $id AND state = 'delivered'", 'then it is recorded');
sql("DELETE FROM coupon_notification WHERE template_id = $id");

# A receiver may say what it likes: it is bounded, and names no strangers.
for my $case ([ 'a name many times', '{"code": 0, "dead": [' . join(',', (1) x 30000) . ']}', 1 ], [ 'numbers of a million digits', '{"code": 0, "dead": [' . join(',', ('1e131071') x 5000) . ']}', 0 ],
	[ 'many names', '{"code": 0, "dead": [' . join(',', 1 .. 9000) . ']}', 6 ], [ 'odd items', '{"code": 0, "dead": [null, true, {"a": 2}, [3], -4, 0, 5.0, "06", "6", "' . ('x' x 3000) . '"]}', 2 ])
{
	my ($what, $body, $n) = @$case;
	switch_to('batch', $body);
	channel('app', 'says/batch', q{batch_size => 10, success_when => '$.code == 0', dead_recipients => '$.dead[*]'});
	my $template = sql(q{INSERT INTO coupon_template (name, discount_value, status) VALUES ('d', 1, 'published') RETURNING id});
	distribute($template);
	await("sum(cardinality(user_ids)) = 6 FROM coupon_notification_history WHERE template_id = $template", "$what: it is judged");
	is(sql("SELECT COALESCE(sum(cardinality(user_ids)), 0) FROM coupon_notification_history WHERE template_id = $template AND state = 'dead'"), $n, "$what: who is named");
}

# However long it takes to judge answers, no more is on its way than may be.
switch_to('batch', '{"code": 0, "dead": [' . join(',', 100001 .. 109000) . ']}');
channel('app', 'says/batch', q{max_in_flight => 15, dead_recipients => '$.dead[*]', retry_recipients => '$.dead[*]', enabled => false});
sql(q{DELETE FROM coupon_notification; CREATE TABLE seen (n bigint);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.seen SELECT count(*) FROM public.coupon_notification WHERE leased_until > clock_timestamp(); RETURN NULL; END $$;
	CREATE TRIGGER note AFTER UPDATE ON coupon_notification FOR EACH ROW EXECUTE FUNCTION note()});
distribute(sql(q{INSERT INTO coupon_template (name, discount_value, status) VALUES ('e', 1, 'published') RETURNING id})) for 1 .. 20;
sql(q{SELECT coupon_channel_enable('app')});
await('count(*) = 0 FROM coupon_notification', 'many answers that take long to judge');
cmp_ok(sql('SELECT max(n) FROM seen'), '<=', 30, 'those that are judged give their places up, at most');
sql('DROP TRIGGER note ON coupon_notification');

# What is kept: cut, readable, without what is secret.
switch_to('echo', '{"error": "no", "escaped": "k\\u002d7654321 t0ken\\/2 pass\\u002Fword+9", "you": {request}, "pad": "' . ('满' x 2000) . '"}');
channel('ch3', 'says/echo?access_token=abcdefgh12345678', q{success_when => '$.error == null', username => 'me', password => 'pass/word+9', headers => '{"X-Key": "k-7654321", "X-Api-Auth": "Bearer t0ken/2"}'});
$id = tests('ch3', 1, 'number');
await("last_answer IS NOT NULL FROM coupon_notification WHERE id = $id", 'a receiver that repeats what it was told');
my $kept = sql("SELECT last_answer FROM coupon_notification WHERE id = $id");
is(sql(q{SELECT count(*) > 0 FROM coupon_notification WHERE last_answer ~ 'abcd'}), 'f', 'not a part of it');
unlike($kept, qr/abcdefgh12345678|7654321|t0ken|word\+9|pass.?.?word|bWU6cGFzcy93b3JkKzk/, 'keys, tokens, passwords and logins are not kept');
like($kept, qr/"error": "no".*\*\*\*.*webhook-id/s, 'but what it said is');
is(sql("SELECT octet_length(last_answer) BETWEEN 2040 AND 2048 FROM coupon_notification WHERE id = $id"), 't', 'cut at 2 kB');
channel('ch3', 'status/400');
sql("UPDATE coupon_notification SET next_at = now() WHERE id = $id; SELECT coupon_worker_wake()");
await("last_answer ~ 'status 400' FROM coupon_notification WHERE id = $id", 'a refusal is kept without any rule');
channel('ch3', 'status/200');
$id = tests('ch3', 1, 'number');
await("last_answer IS NULL AND state = 'delivered' FROM coupon_notification_history WHERE id = $id", 'a plain success is not');

# Operators read it, monitors do not.
sql(q{CREATE ROLE desk LOGIN; CREATE ROLE screen LOGIN; SELECT coupon_grant('desk', 'operator'), coupon_grant('screen', 'monitor')});
for my $table ('coupon_notification', 'coupon_notification_history')
{
	is(($node->psql('postgres', "SELECT count(last_answer) >= 0 FROM $table", extra_params => [ '-U', 'desk' ]))[1], 't', "an operator reads answers in $table");
	like(($node->psql('postgres', "SELECT count(last_answer) FROM $table", extra_params => [ '-U', 'screen' ]))[2], qr/permission denied/, 'a monitor does not');
	is(($node->psql('postgres', "SELECT count(last_error) >= 0 FROM $table", extra_params => [ '-U', 'screen' ]))[1], 't', 'but the errors');
}

# Bad rules.
like(error_of(q{SELECT coupon_channel_set('app', 'http://127.0.0.1/', success_when => '$.code ==')}), qr/syntax error/, 'no jsonpath');
like(error_of(q{SELECT coupon_channel_set('app', 'http://127.0.0.1/', success_when => '$code == 1')}), qr/could not find jsonpath variable "code"/, 'a variable that nobody gives');
like(error_of(q{SELECT coupon_channel_set('app', 'http://127.0.0.1/', dead_recipients => ('$' || repeat('.abcdefgh', 300))::jsonpath)}), qr/a jsonpath of \d+ bytes/, 'one that is too long');
like(error_of(q{SELECT coupon_channel_set('app', 'http://127.0.0.1/', dead_recipients => '$.**.token')}), qr/a jsonpath with \.\*\* is not possible/, 'one that copies all levels');
like(error_of(q{SELECT coupon_channel_set('email', 'smtp://127.0.0.1/', mail_from => 'a@b.c', retry_recipients => '$.a')}), qr/are for HTTP/, 'for mail');
$node->stop;
stop_process($receiver);
done_testing();
