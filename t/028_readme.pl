# The SQL of README.md and docs/ runs as it is written: that of README one block after
# the other in a new database, each block of docs/ by itself in a shop that is set up.
# A block after the line "<!-- not run: why -->" does not.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @blocks = slurp_file('README.md') =~ /^```sql\n(.*?)^```$/gms;
cmp_ok(scalar @blocks, '>=', 4, 'README has SQL');
my $node = new_node('readme', "coupon.databases = ''");
$node->safe_psql('postgres', 'DROP EXTENSION coupon');
my ($rc, $out, $err) = $node->psql('postgres', join("\\echo --\n", @blocks), on_error_stop => 1);
is($rc, 0, 'each statement of README') or diag($err);
unlike($err, qr/ERROR|WARNING/, 'without errors or warnings');
my @codes = $out =~ /^(\d{1,2})\|\w+\|/gm;
is(join(' ', @codes), '0 4 0 0', 'and answers what it says');
like($out, qr/\|success\|.*\|21\|/, 'the distribution too');
is($node->safe_psql('postgres', 'SELECT count(*) FROM coupon.coupon_verify() WHERE NOT ok'), '0', 'the books balance');

# A shop: with templates, coupons, a task that can be run, channels and roles.
$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('shop', q{
	CREATE SCHEMA coupon; CREATE EXTENSION coupon SCHEMA coupon; ALTER DATABASE shop SET search_path = public, coupon});
$node->safe_psql('shop', q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'one', 1000, 10, 'published'), (300, 'three', 1000, 10, 'published');
	INSERT INTO coupon_template (id, name, discount_value, status, receive_start) VALUES (2, 'later', 10, 'published', now() + '1 day');
	SELECT count(*) FROM coupon_receive_many(1, ARRAY(SELECT generate_series(1, 20)));
	SELECT coupon_remind_create(2, 42, 'sms', 10), coupon_channel_set('sms', 'http://127.0.0.1:9/'), coupon_channel_set('app', 'http://127.0.0.1:9/')});
$node->safe_psql('postgres', "CREATE ROLE $_ LOGIN") for qw(app backoffice grafana);
my $sql = qr/(?:SELECT|CALL|ALTER|INSERT|UPDATE|DELETE|CREATE|SET|BEGIN|WITH|DROP|TRUNCATE|VACUUM|REFRESH|DO|\\copy)\b/;
for my $file (sort glob 'docs/*.md')
{
	my @lines = split /\n/, slurp_file($file), -1;
	for (my $i = 0; $i < @lines; $i++)
	{
		next unless $lines[$i] =~ /^    $sql/ && ($i == 0 || $lines[ $i - 1 ] eq '');
		my ($begin, $block) = ($i, '');
		my $left_out = $i >= 2 && $lines[ $i - 2 ] =~ /^<!-- not run: .+ -->$/;
		for (; $i < @lines && $lines[$i] =~ /^(?:    |$)/; $i++)
		{
			$block .= "$lines[$i]\n";
		}
		next if $left_out;
		# Answers are shown below their statements.
		my @statements = $block =~ /^    DO \$\$/ ? ($block) : $block =~ /^    ((?:$sql|\\)(?:.*?)(?:;(?: +--.*)?|\\gset|\\gexec))$/gms;
		next unless @statements;
		my $fails = $block =~ /^    ERROR: /m;
		my ($id, $task) = split /\|/, $node->safe_psql('shop', q{
			WITH t AS (INSERT INTO coupon_template (name, total_stock, discount_value, status) VALUES ('docs', 1000, 10, 'published') RETURNING id)
			SELECT id FROM t}) . '|' . $node->safe_psql('shop', q{SELECT task_id FROM coupon_task_create('docs', 1)});
		$node->safe_psql('shop', "INSERT INTO coupon_stage_$task (user_id) VALUES ('77')");
		my ($ended, $said, $errors) = $node->psql('shop', "\\set id $id\n\\set task $task\n\\set user_id 42\n" . join("\n", @statements) . "\n", on_error_stop => 1);
		is($ended, $fails ? 3 : 0, $file . ':' . ($begin + 1) . ': ' . ($block =~ /^\s*(.{1,50})/)[0]) or diag($errors);
	}
}
$node->stop;
done_testing();
