# 100,000 templates, of which 4,096 fit into the shared cache: claims of which
# about one in ten misses it, beside claims that all hit it.  Coupons are folded
# every two seconds, as on a live site.
#
# shellcheck shell=bash disable=SC2034

run_cached() {
    pgbench_run "$BENCH/sql/spread.sql" "$1" -D cold=0
}

run_spread() {
    local before after

    before=$(cache_counters)
    pgbench_run "$BENCH/sql/spread.sql" "$1" -D cold=10
    after=$(cache_counters)
    LOOKUPS=$((LOOKUPS + ${after%|*} - ${before%|*}))
    LOADS=$((LOADS + ${after#*|} - ${before#*|}))
}

cache_counters() {
    query "SELECT lookups, loads FROM coupon_stat_cache"
}

part_cache() {
    fresh_server coupon.max_templates=4096
    query "INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
           SELECT n, 'template ' || n, 1000000, 10, 'published' FROM generate_series(1, 100000) n"
    query "VACUUM ANALYZE coupon_template"
    query CHECKPOINT
    # The hot ones are in the cache when the clock starts.
    query "SELECT count(*) FROM generate_series(1, 3500) n, LATERAL coupon_template_get(n)" > /dev/null
    LOOKUPS=0
    LOADS=0
    start_folding
    alternate 32 cached spread
    stop_folding
    row_of cache 32 'claims over 100,000 templates, 4,096 places' spread 'claims over 3,500 templates' cached
    row cache 32 'hit rate of the former' \
        "$(awk -v l="$LOOKUPS" -v m="$LOADS" 'BEGIN {printf "%.1f %%", 100 * (1 - m / l)}')"
    verify_row cache
}
