# Claims on one hot template, beside other ways to do the same with SQL, and
# beside the bare INSERT of the record, which does less.
#
# shellcheck shell=bash disable=SC2034

ANY_USER=(-D users=1000000000000000)

run_claim() {
    pgbench_run "$BENCH/sql/claim.sql" "$1" "${ANY_USER[@]}" -D template=1
}

run_textbook() {
    pgbench_run "$BENCH/sql/textbook.sql" "$1"
}

run_slots() {
    pgbench_run "$BENCH/sql/slots.sql" "$1"
}

run_bare() {
    pgbench_run "$BENCH/sql/bare.sql" "$1"
}

run_plain() {
    pgbench_run "$BENCH/sql/plain.sql" "$1"
}

# Nothing was lost, refused or sold twice by any of the ways.
check_claims() {
    local sold

    check_coupons 1 "${TOTALS[claim]}"
    check_coupons 101 "${TOTALS[textbook]}"
    check_coupons 102 "${TOTALS[slots]}"
    sold=$(query "SELECT 2000000000 - stock FROM bench_stock")
    ((sold == TOTALS[textbook])) || die "the textbook way sold $sold for ${TOTALS[textbook]} coupons"
    sold=$(query "SELECT 8000000 * 256 - sum(stock) FROM bench_slot")
    ((sold == TOTALS[slots])) || die "the slotted way sold $sold for ${TOTALS[slots]} coupons"
}

# Every number of clients begins with empty tables.
part_claims() {
    local clients

    for clients in "${CLAIM_CLIENTS[@]}"; do
        fresh_server
        query_file setup.sql
        query_file copy_of_user_coupon.sql name=bench_plain
        query "CREATE INDEX ON bench_plain (id)"
        query CHECKPOINT
        alternate "$clients" claim bare plain textbook slots
        check_claims
        row_of claims "$clients" coupon_receive claim 'bare INSERT into user_coupon' bare
        row_of claims "$clients" coupon_receive claim 'bare INSERT into a copy without triggers' plain
        row_of claims "$clients" coupon_receive claim 'textbook SQL' textbook
        row_of claims "$clients" coupon_receive claim 'slotted counter, SKIP LOCKED' slots
    done
    verify_row claims
}
