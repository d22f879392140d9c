# The first claim after kill -9 of the server.  A checkpoint goes before it, so
# that what is timed is our own recovery, the count of what was issued, and not
# PostgreSQL's.  The files may still be in the operating system's cache.
#
# shellcheck shell=bash disable=SC2034

UNFOLDED=5000                   # claims after the last fold

# issue coupons, in batches by four sessions
issue() {
    "$BIN/pgbench" -n -M prepared -c 4 -j 2 -t $(($1 / 40000)) -f "$BENCH/sql/issue.sql" \
        > "$WORK/pgbench.log" 2>&1 || die "cannot issue coupons: $(tail -1 "$WORK/pgbench.log")"
}

claim_some() {
    "$BIN/pgbench" -n -M prepared -c 8 -j 2 -t $((UNFOLDED / 8)) -D template=1 \
        -D users=1000000000000000 -f "$BENCH/sql/claim.sql" > "$WORK/pgbench.log" 2>&1 ||
        die "cannot claim: $(tail -1 "$WORK/pgbench.log")"
}

# Two claims of one session, timed by psql; sets FIRST and SECOND.
time_two_claims() {
    local times user=$((2000000000000000 + RANDOM * 100000 + RANDOM))

    "$BIN/psql" -XAt -v ON_ERROR_STOP=1 > "$WORK/timing.log" <<TIMING
\timing on
SELECT outcome FROM coupon_receive(1, $user);
SELECT outcome FROM coupon_receive(1, $user + 1000000000000000);
TIMING
    [[ $(grep -c '^ok$' "$WORK/timing.log") == 2 ]] || die "the claims were refused: $(< "$WORK/timing.log")"
    times=$(sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' "$WORK/timing.log")
    read -r -d '' FIRST SECOND <<< "$times" || true
}

# recover issued what: several times, each with two claims more
recover() {
    local round firsts=() seconds=() off

    for ((round = 1; round <= ROUNDS; round++)); do
        query CHECKPOINT
        crash_server
        time_two_claims
        firsts+=("$FIRST")
        seconds+=("$SECOND")
        say "recovery, round $round: $FIRST ms, then $SECOND ms"
    done
    off=$(query "SELECT 1000000000 - count(*) - coupon_stock_left(1) FROM user_coupon WHERE template_id = 1")
    ((off == 0)) || die "after the crashes stock is off by $off"
    row recovery 1 "first claim after kill -9, $1 issued, $2" \
        "$(milliseconds "$(median "${firsts[@]}")")" 'the next claim' \
        "$(milliseconds "$(median "${seconds[@]}")")"
}

# fold_and_recover issued fresh
fold_and_recover() {
    local before after

    before=$(date +%s%3N)
    query "SELECT coupon_fold()" > /dev/null
    after=$(date +%s%3N)
    row recovery 1 "coupon_fold() of $2 coupons" "$(milliseconds $((after - before)))"
    claim_some
    recover "$1" "all folded but $(commas "$UNFOLDED")"
}

part_recovery() {
    fresh_server
    query_file setup.sql
    query "UPDATE coupon_template SET total_stock = 1000000000 WHERE id = 1"
    issue 1000000
    query "VACUUM ANALYZE user_coupon"
    recover 1,000,000 'none folded'
    fold_and_recover 1,000,000 1,000,000
    if [[ $QUICK == no ]]; then
        issue 9000000
        query "VACUUM ANALYZE user_coupon"
        fold_and_recover 10,000,000 9,000,000
    fi
    verify_row recovery
}
