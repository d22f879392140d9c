# Claims on one hot template, beside other ways to do the same with SQL, and
# beside the bare INSERT of the record, which does less.

ANY_USER='-D users=1000000000000000'

run_claim() {
    # shellcheck disable=SC2086 -- two words
    pgbench_run "$BENCH/sql/claim.sql" "$1" $ANY_USER -D template=1
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

    check_coupons 1 "${DONE[claim]}"
    check_coupons 101 "${DONE[textbook]}"
    check_coupons 102 "${DONE[slots]}"
    sold=$(query "SELECT 2000000000 - stock FROM bench_stock")
    ((sold == DONE[textbook])) || die "the textbook way sold $sold for ${DONE[textbook]} coupons"
    sold=$(query "SELECT 8000000 * 256 - sum(stock) FROM bench_slot")
    ((sold == DONE[slots])) || die "the slotted way sold $sold for ${DONE[slots]} coupons"
}

# Every number of clients begins with empty tables.
part_claims() {
    local clients

    for clients in 1 8 32 64 100; do
        fresh_server
        query_file setup.sql
        query_file copy_of_user_coupon.sql name=bench_plain
        query "CREATE INDEX ON bench_plain (id)"
        query CHECKPOINT
        alternate "$clients" claim bare plain textbook slots
        check_claims
        row_of claims "$clients" 'coupon_receive, one hot template' claim 'bare INSERT into user_coupon' bare
        row_of claims "$clients" '"' claim 'bare INSERT into a copy without triggers' plain
        row_of claims "$clients" '"' claim 'textbook SQL' textbook
        row_of claims "$clients" '"' claim 'slotted counter, SKIP LOCKED' slots
    done
    verify_row claims
}
