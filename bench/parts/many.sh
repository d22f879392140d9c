# 100 users a call, beside one user a call.
#
# shellcheck shell=bash disable=SC2034

run_many() {
    pgbench_run "$BENCH/sql/claim_many.sql" "$1"
    RATE=$(awk -v x="$RATE" 'BEGIN {print x * 100}')
    COUNT=$((COUNT * 100))
}

part_many() {
    fresh_server
    query_file setup.sql
    query CHECKPOINT
    alternate 32 claim many
    check_coupons 1 "${TOTALS[claim]}"
    check_coupons 2 "${TOTALS[many]}"
    row_of many 32 'coupon_receive_many, 100 users a call' many coupon_receive claim
    verify_row many
}
