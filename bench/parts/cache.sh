# 100,000 templates, of which 4,096 fit into the shared cache: claims of which
# about one in ten misses it, beside claims that all hit it.  Coupons are folded
# every two seconds, as on a live site.
#
# shellcheck shell=bash disable=SC2034

declare -A LOOKUPS LOADS        # of the runs of a variant

cache_counters() {
    query "SELECT lookups, loads FROM coupon_stat_cache"
}

# run_templates variant clients cold: so many per cent of the claims go to any
# template.  Beside them some for the 3,500 miss, whose places they take.
run_templates() {
    local before after

    before=$(cache_counters)
    pgbench_run "$BENCH/sql/spread.sql" "$2" -D cold="$3"
    after=$(cache_counters)
    LOOKUPS[$1]=$((${LOOKUPS[$1]:-0} + ${after%|*} - ${before%|*}))
    LOADS[$1]=$((${LOADS[$1]:-0} + ${after#*|} - ${before#*|}))
}

run_cached() {
    run_templates cached "$1" 0
}

run_spread() {
    run_templates spread "$1" 8
}

hit_rate() {
    awk -v l="${LOOKUPS[$1]}" -v m="${LOADS[$1]}" 'BEGIN {printf "%.1f %%", 100 * (1 - m / l)}'
}

part_cache() {
    LOOKUPS=()
    LOADS=()
    fresh_server
    query "INSERT INTO coupon_template (id, name, total_stock, discount_value, status)
           SELECT n, 'template ' || n, 1000000, 10, 'published' FROM generate_series(1, 100000) n"
    query "VACUUM ANALYZE coupon_template"
    query CHECKPOINT
    # The 3,500 are in the cache when the clock starts.
    query "SELECT count(*) FROM generate_series(1, 3500) n, LATERAL coupon_template_get(n)" > /dev/null
    start_folding
    alternate 32 cached spread
    stop_folding
    row_of cache 32 'claims over 100,000 templates, 4,096 places' spread 'claims over 3,500 templates' cached
    row cache 32 'hit rate of the former' "$(hit_rate spread)" 'of the latter' "$(hit_rate cached)"
    verify_row cache
}
