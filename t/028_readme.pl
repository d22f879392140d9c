# The SQL of README.md runs as it is written, one block after the other.

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
books_balance_of($node);
$node->stop;
done_testing();

# In the schema of README.
sub books_balance_of
{
	is($_[0]->safe_psql('postgres', 'SELECT count(*) FROM coupon.coupon_verify() WHERE NOT ok'), '0', 'the books balance');
	return;
}
