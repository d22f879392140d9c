# Refusals beside SELECT 1, and what they write: nothing.
#
# Like beside like: SELECT outcome FROM coupon_receive(…), one column, beside
# SELECT 1; SELECT * beside six constants, since PostgreSQL and the client take
# longer over five more columns than over the claim.  And the latter beside SELECT 1,
# and beside a function with the same arguments and row that looks at nothing: what
# the server and the client take for any such call, so the fastest there could be.
#
# shellcheck shell=bash disable=SC2034

OWNERS=100000                   # users who have had their one coupon

run_select1() {
    pgbench_run "$BENCH/sql/select1.sql" "$1" "${ANY_USER[@]}"
}

run_nothing() {
    pgbench_run "$BENCH/sql/nothing.sql" "$1" "${ANY_USER[@]}" -D template=4
}

make_nothing() {
    local pg_config=${PG_CONFIG:-pg_config}

    "${CC:-cc}" -O2 -fPIC -shared -I"$("$pg_config" --includedir-server)" \
        -o "$WORK/nothing.so" "$BENCH/lib/nothing.c" || die "cannot compile $BENCH/lib/nothing.c"
    query "CREATE FUNCTION bench_nothing(template_id bigint, user_id bigint,
                                         request_id text DEFAULT NULL, source text DEFAULT 'center')
           RETURNS SETOF coupon_receive_row LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
           AS '$WORK/nothing.so', 'bench_nothing'"
}

run_six() {
    pgbench_run "$BENCH/sql/six.sql" "$1" "${ANY_USER[@]}"
}

# The four kinds, asked for their outcome, and for the whole row.
run_sold_out() {
    pgbench_run "$BENCH/sql/outcome.sql" "$1" "${ANY_USER[@]}" -D template=3
}

run_sold_out_row() {
    pgbench_run "$BENCH/sql/claim.sql" "$1" "${ANY_USER[@]}" -D template=3
}

run_not_started() {
    pgbench_run "$BENCH/sql/outcome.sql" "$1" "${ANY_USER[@]}" -D template=4
}

run_not_started_row() {
    pgbench_run "$BENCH/sql/claim.sql" "$1" "${ANY_USER[@]}" -D template=4
}

run_unknown() {
    pgbench_run "$BENCH/sql/unknown_outcome.sql" "$1"
}

run_unknown_row() {
    pgbench_run "$BENCH/sql/unknown.sql" "$1"
}

run_over_limit() {
    pgbench_run "$BENCH/sql/outcome.sql" "$1" -D users="$OWNERS" -D template=5
}

run_over_limit_row() {
    pgbench_run "$BENCH/sql/claim.sql" "$1" -D users="$OWNERS" -D template=5
}

# check_refusal template user outcome
check_refusal() {
    local outcome

    outcome=$(query "SELECT outcome FROM coupon_receive($1, $2)")
    [[ $outcome == "$3" ]] || die "template $1 answers $outcome, not $3"
}

# WAL position and next transaction id
server_state() {
    query "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_snapshot_xmax(pg_current_snapshot())"
}

# wal_level is minimal, where the background writer logs nothing by itself.
# The first round fills the caches and tidies catalog pages; the second counts.
measure_writes() {
    local before after variant round total=0

    for round in 1 2; do
        before=$(server_state)
        for variant in sold_out not_started unknown over_limit; do
            SECONDS_EACH=1 "run_$variant" 8
            if ((round == 2)); then total=$((total + COUNT)); fi
        done
        after=$(server_state)
    done
    row refusals 8 "$(commas "$total") refusals of the four kinds" '' \
        'WAL written, transaction ids taken' \
        "$((${after%|*} - ${before%|*})) bytes, $((${after#*|} - ${before#*|}))"
}

# Templates that refuse for each reason, known to do so.
prepare_refusals() {
    fresh_server wal_level=minimal max_wal_senders=0
    query_file setup.sql
    make_nothing
    query "SELECT count(*) FROM coupon_receive(3, 1)" > /dev/null
    query "SELECT count(*) FROM coupon_receive_many(5, ARRAY(SELECT generate_series(1, $OWNERS)))" > /dev/null
    query "VACUUM ANALYZE user_coupon"
    query CHECKPOINT
    check_coupons 5 "$OWNERS"
    check_refusal 3 2 out_of_stock
    check_refusal 4 2 not_started
    check_refusal 999999999 2 not_found
    check_refusal 5 "$OWNERS" over_limit
}

part_refusals() {
    local clients variant kinds=(sold_out not_started unknown over_limit)

    prepare_refusals
    for clients in "${REFUSAL_CLIENTS[@]}"; do
        alternate "$clients" select1 "${kinds[@]}" six nothing "${kinds[@]/%/_row}"
        for variant in "${kinds[@]}"; do
            row_of refusals "$clients" "${variant//_/ }: the outcome" "$variant" 'SELECT 1' select1
        done
        for variant in "${kinds[@]}"; do
            row_of refusals "$clients" "${variant//_/ }: the whole row" "${variant}_row" 'six constants' six
            row_of refusals "$clients" "${variant//_/ }: the whole row" "${variant}_row" 'SELECT 1' select1
            row_of refusals "$clients" "${variant//_/ }: the whole row" "${variant}_row" 'the same, looking at nothing' nothing
        done
        row_of refusals "$clients" 'a function that looks at nothing: the whole row' nothing 'SELECT 1' select1
    done
    measure_writes
    verify_row refusals
}
