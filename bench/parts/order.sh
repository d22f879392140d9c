# Locking and using a coupon, beside a bare UPDATE of the same row by its primary key with the
# INSERT of the event, in one statement; and what a quote takes.
#
# shellcheck shell=bash disable=SC2034

ORDER_COUPONS=500000

run_lock() {
    pgbench_run "$BENCH/sql/order_lock.sql" "$1" -D coupons=$ORDER_COUPONS
}

run_use() {
    pgbench_run "$BENCH/sql/order_use.sql" "$1" -D coupons=$ORDER_COUPONS
}

run_update() {
    pgbench_run "$BENCH/sql/order_update.sql" "$1" -D coupons=$ORDER_COUPONS
}

for size in 20 200 2000; do
    eval "run_quote_$size() { pgbench_run \"\$BENCH/sql/order_quote.sql\" \"\$1\" -D owner=$((ORDER_COUPONS * 10 + size)); }"
done

part_order() {
    local size hot

    fresh_server
    query_file order.sql coupons=$ORDER_COUPONS
    query CHECKPOINT
    alternate 32 lock use update
    row_of order 32 coupon_lock lock 'UPDATE and INSERT in one statement' update
    row_of order 32 'coupon_use, with coupon and amount' use 'UPDATE and INSERT in one statement' update
    hot=$(query "SELECT round(100.0 * sum(n_tup_hot_upd) / sum(n_tup_upd)) || ' %' FROM pg_stat_user_tables WHERE relname ~ '^user_coupon_'")
    row order 32 'updates of user_coupon that are HOT' "$hot"
    alternate 1 quote_20 quote_200 quote_2000
    for size in 20 200 2000; do
        row order 1 "coupon_quote, wallet of $size" "$(milliseconds "$(awk -v x="$(median_of "quote_$size")" 'BEGIN {print 1000 / x}')")"
    done
}
