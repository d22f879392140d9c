# What the end of a transaction that has deleted 100,000 coupons costs: of 300 templates
# that are loaded, plain and under a savepoint, as psql's ON_ERROR_ROLLBACK and JDBC's
# autosave set one.
#
# shellcheck shell=bash disable=SC2034

# run_deletes [statement]: sets RATE to milliseconds of the COMMIT.
run_deletes() {
    query "SELECT count(*) FROM generate_series(1, 300) t,
               coupon_receive_many(t, ARRAY(SELECT generate_series(1, 334)))" > /dev/null
    query 'SELECT coupon_fold()' > /dev/null
    printf '%s\n' '\timing on' 'BEGIN;' "${1:-}" 'DELETE FROM user_coupon;' 'COMMIT;' |
        "$BIN/psql" -XAt > "$WORK/commit.log"
    RATE=$(sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' "$WORK/commit.log" | tail -n 1)
    COUNT=1
}

run_plain_deletes() {
    run_deletes
}

run_savepoint_deletes() {
    run_deletes 'SAVEPOINT a;'
}

part_commit() {
    local plain savepoint

    fresh_server
    query "INSERT INTO coupon_template (id, name, discount_value, status, per_user_limit)
           SELECT g, 't', 1, 'published', 1 FROM generate_series(1, 300) g"
    alternate 1 plain_deletes savepoint_deletes
    plain=$(median_of plain_deletes) savepoint=$(median_of savepoint_deletes)
    row commit 1 'COMMIT after 100,000 deletes under a savepoint' "$(milliseconds "$savepoint")" \
        'without one' "$(milliseconds "$plain")" "$(ratio "$savepoint" "$plain")"
}
