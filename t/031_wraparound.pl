# A frozen row keeps the number of the transaction that wrote it, which comes again after
# four billion others: that one must not take the template for its own.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('wraparound', "coupon.databases = ''\nautovacuum = off");
sub sql { return $node->safe_psql('postgres', $_[0]); }

my $xid = sql(q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status) VALUES (1, 'old', 3, 1, 'published') RETURNING xmin});
$node->command_ok([ 'vacuumdb', '-p', $node->port, '-h', $node->host, '--all', '--freeze' ], 'freeze all');
$node->stop;
$node->command_ok([ 'pg_resetwal', '-x', $xid - 4, '-e', 1, '-D', $node->data_dir ], 'four billion transactions later');
$node->start;

my $last = 0;
$last = sql('SELECT pg_current_xact_id()::xid') until $last >= $xid - 1;
my $again = $node->background_psql('postgres');
is($again->query_safe('BEGIN; SELECT pg_current_xact_id()::xid'), $xid, 'the number comes again');
is($again->query_safe('SELECT count(*) FROM coupon_receive_many(1, ARRAY[1, 2, 3]) WHERE code = 0'), '3', 'its transaction claims');
is(sql('SELECT count(*) FROM coupon_receive_many(1, ARRAY[4, 5, 6]) WHERE code = 0'), '0', 'which others know of');
$again->query_safe('COMMIT');
$again->quit;
books_balance($node, 'wraparound');
$node->stop;
done_testing();
