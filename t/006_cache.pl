# More templates than places: eviction, a full cache, and loaders, writers and
# evictors racing.  An existing template is never "not found", and a change
# that was committed is never missed.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('cache', 'coupon.max_templates = 16');
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
	SELECT g, 't' || g, 50, 10, 'published' FROM generate_series(1, 200) g});

# Every template in turn, all in one session: each claim finds its template.
my $codes = $node->safe_psql('postgres', q{
	SELECT format('SELECT code FROM coupon_receive(%s, %s)', t, u) FROM generate_series(1, 3) u, generate_series(1, 200) t \gexec});
is($codes, join("\n", (0) x 600), 'claims all over a cache of 16');
books_balance($node, 'eviction');

# Pinned entries are not evicted.  A transaction pins at most half of them, so that others
# can claim meanwhile; one more is an error, never a claim without its check.
my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nBEGIN;\nSELECT count(*) FROM generate_series(1, 9) t, coupon_receive(t, 10);\nCOMMIT;");
like($err, qr/VC004: this transaction has claims of 8 templates/, 'half of the places are pinned');
$node->safe_psql('postgres', q{CREATE ROLE app7 LOGIN; SELECT coupon_grant('app7', 'application', 7);
	INSERT INTO coupon_template (id, name, total_stock, discount_value, status, shop_number, issuer) SELECT g, 't', 50, 10, 'published', 7, 'shop' FROM generate_series(701, 705) g});
(undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT count(*) FROM generate_series(701, 705) t, coupon_receive(t, 10)", extra_params => [ '-U', 'app7' ]);
like($err, qr/VC004: this transaction has claims of 4 templates/, 'a quarter, for a shop');
is($node->safe_psql('postgres', 'SELECT count(*) FROM user_coupon WHERE user_id = 10'), '0', 'and nothing claimed');
is($node->safe_psql('postgres', <<'X'), "8\n8\n4\n186", 'eight fit, and more of the same; another transaction has its share; others claim');
BEGIN;
SELECT count(*) FROM generate_series(1, 8) t, coupon_receive(t, 10) WHERE code = 0;
SELECT count(*) FROM generate_series(1, 8) t, coupon_receive(t, 11) WHERE code = 0;
\! psql -XAtq -d postgres -c 'SELECT count(*) FROM generate_series(11, 14) t, coupon_receive(t, 10) WHERE code = 0'
\! for t in $(seq 15 200); do echo "SELECT code FROM coupon_receive($t, 10);"; done | psql -XAtq -d postgres | grep -c '^0$'
COMMIT;
X
books_balance($node, 'pinned');

# Wide changes need no places.
$node->safe_psql('postgres', q{UPDATE coupon_template SET usage_note = 'x'});
books_balance($node, 'wide change');

# Nor do many rows under a savepoint look at the whole cache for each of them.
my $read = 'SELECT invalidations FROM coupon_stat_cache';
my $before = $node->safe_psql('postgres', $read);
$node->safe_psql('postgres', q{
	INSERT INTO coupon_template (id, name, discount_value) SELECT g, 't', 1 FROM generate_series(1001, 1400) g;
	SELECT coupon_stock_left(t) FROM generate_series(1, 16) t;
	BEGIN; SAVEPOINT a;
	INSERT INTO user_coupon (template_id, user_id, use_end, holder) SELECT 1001 + g % 400, g, now() + interval '1 day', 0 FROM generate_series(1, 4000) g;
	RELEASE a;
	COMMIT});
cmp_ok($node->safe_psql('postgres', $read) - $before, '<', 2000, 'many rows under a savepoint');
books_balance($node, 'many rows under a savepoint');

# Writers switch a template off and on in pairs of transactions and check, in
# a transaction that began after the commit returned, that claims follow.
my $switch = script(<<'X');
\set t random(1, 200)
\set u random(1000, 1000000)
SELECT pg_advisory_lock(:t) AS l \gset
UPDATE coupon_template SET status = 'offline' WHERE id = :t;
SELECT 1 / (code = 6)::int AS must_be_off FROM coupon_receive(:t, :u);
UPDATE coupon_template SET status = 'published' WHERE id = :t;
SELECT 1 / (code IN (0, 2, 4))::int AS must_be_on FROM coupon_receive(:t, :u);
SELECT pg_advisory_unlock(:t) AS l \gset
X
my $claim = script(<<'X');
\set t random(1, 200)
\set u random(1000, 1000000)
SELECT 1 / (code IN (0, 2, 4, 6))::int AS must_exist FROM coupon_receive(:t, :u);
X
# Registrations of more templates than one transaction has room for: the first are given.
$node->safe_psql('postgres', q{INSERT INTO coupon_template (id, name, category, discount_value, status)
	SELECT 300 + g, 'welcome ' || g, 'new_user', 1, 'published' FROM generate_series(1, 12) g});
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT outcome, ' ' ORDER BY outcome), count(*) FROM coupon_receive_new_user(77)}), 'ok out_of_stock|12', 'registrations: what there is room for');
is($node->safe_psql('postgres', q{SELECT DISTINCT outcome FROM coupon_receive_new_user(77)}), 'ok', 'and the rest when he comes again');
$node->safe_psql('postgres', 'SELECT coupon_fold(); DELETE FROM user_coupon WHERE template_id BETWEEN 301 AND 312; UPDATE coupon_template SET status = $$offline$$ WHERE id BETWEEN 301 AND 312');
my $create = script(<<'X');
INSERT INTO coupon_template (name, total_stock, discount_value, status) VALUES ('fresh', 1, 10, 'published') RETURNING id \gset
SELECT 1 / (code = 0)::int AS must_exist FROM coupon_receive(:id, 7);
SELECT 1 / (code = 2)::int AS must_be_empty FROM coupon_receive(:id, 8);
X
my $unknown = script(<<'X');
\set t random(1000000, 2000000)
SELECT 1 / (code = 1)::int FROM coupon_receive(:t, 1);
X
my @load = map { start_pgbench($node, '-T', 6, @$_) } (
	[ '-c', 4, '-f', $switch ], [ '-c', 6, '-f', $claim ],
	[ '-c', 2, '-f', $create ], [ '-c', 1, '-f', $unknown ]);
for (@load)
{
	$_->{handle}->finish;
	unlike(${ $_->{out} }, qr/ERROR|aborted/, 'no claim went wrong') or diag(${ $_->{out} });
}
books_balance($node, 'racing');
cmp_ok($node->safe_psql('postgres', 'SELECT evictions FROM coupon_stat_cache'), '>', 200, 'there was eviction');
$node->stop;
done_testing();
