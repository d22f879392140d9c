# Distribution of a file, beside COPY of the finished coupons into the same
# table, made empty and checkpointed before each run.  Loading the stage is not
# in the time of a distribution, and has a row of its own; sealing is.
#
# COPY has the rows in the order of the file.  What it can do at best is beside
# that: the rows in the order of a dump, one partition after the other, and all
# triggers of user_coupon disabled, of which ours tells the cache of each row.
#
# Making the finished rows for COPY takes a distribution, which is not counted:
# caches are warm then, so no other round is lost to that.
#
# shellcheck shell=bash disable=SC2034

TASK=
FILE=                           # its lines
COPY_LINES=                     # how many
ALONE=                          # lines a second of one runner, without claims

# Milliseconds that the statements on standard input take, all together.
timed() {
    "$BIN/psql" -Xq -v ON_ERROR_STOP=1 > "$WORK/timed.log" 2> "$WORK/timed.err" ||
        die "$(grep -m 1 ERROR "$WORK/timed.err")"
    sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' "$WORK/timed.log" | awk '{n += $1} END {print n}'
}

per_second() {
    awk -v n="$1" -v ms="$2" 'BEGIN {print n * 1000 / ms}'
}

# write_users file order lines: a file of users, 1 to lines.
write_users() {
    local order=n

    [[ $2 != random ]] || order='hashint8(n), n'
    query "COPY (SELECT n FROM generate_series(1, $3) n ORDER BY $order) TO '$1'"
}

# User_coupon as it is made by CREATE EXTENSION, but for the templates.
empty_tables() {
    query "TRUNCATE user_coupon, coupon_stock, coupon_watermark, coupon_task, coupon_task_batch, coupon_task_failure"
    query CHECKPOINT
}

# make_task template file: sets TASK
make_task() {
    TASK=$(query "SELECT task_id FROM coupon_task_create('bench', $1, first_row => 1)")
    LOAD_TIME=$(timed <<< "\\timing on
        COPY coupon_stage_$TASK (user_id) FROM '$2';")
    query CHECKPOINT
}

submit_and_run() {
    timed <<< "SET client_min_messages = warning;
        \\timing on
        SELECT * FROM coupon_task_submit($TASK);
        CALL coupon_task_run($TASK);"
}

check_task() {
    [[ $(query "SELECT state, issued FROM coupon_task WHERE id = $TASK") == "success|$1" ]] ||
        die "task $TASK did not issue $1 coupons"
}

run_task() {
    local ms

    empty_tables
    make_task 1 "$FILE"
    ms=$(submit_and_run)
    check_task "$COPY_LINES"
    LOADS_OF_STAGE+=("$LOAD_TIME")
    RATE=$(per_second "$COPY_LINES" "$ms")
    COUNT=$COPY_LINES
}

# copy_finished file
copy_finished() {
    RATE=$(per_second "$COPY_LINES" "$(timed <<< "\\timing on
        COPY user_coupon FROM '$1';")")
    COUNT=$COPY_LINES
    [[ $(query "SELECT count(*) FROM user_coupon") == "$COPY_LINES" ]] || die "COPY has lost rows"
}

run_copy() {
    empty_tables
    copy_finished "$WORK/finished"
}

# triggers what: on user_coupon and its partitions
triggers() {
    "$BIN/psql" -XqAt -v ON_ERROR_STOP=1 > /dev/null <<TRIGGERS
SELECT format('ALTER TABLE %s $1 TRIGGER %I', tgrelid::regclass, tgname) FROM pg_trigger
WHERE tgrelid = 'user_coupon'::regclass OR tgrelid IN
    (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'user_coupon'::regclass) \gexec
TRIGGERS
}

run_dump_copy() {
    empty_tables
    triggers DISABLE
    copy_finished "$WORK/finished_dump"
    triggers 'ENABLE ALWAYS'
}

# Finished rows for COPY, from a distribution.
write_finished() {
    run_task
    query "CREATE TEMP TABLE line (n bigint GENERATED ALWAYS AS IDENTITY, user_id bigint);
           COPY line (user_id) FROM '$FILE';
           COPY (SELECT c.* FROM user_coupon c JOIN line l USING (user_id) ORDER BY l.n) TO '$WORK/finished'"
    query "COPY (SELECT * FROM user_coupon) TO '$WORK/finished_dump'"
}

run_two() {
    local ms pid

    empty_tables
    make_task 1 "$FILE"
    query "SELECT * FROM coupon_task_submit($TASK)" > /dev/null
    "$BIN/psql" -Xq -c "CALL coupon_task_run($TASK)" > /dev/null 2>&1 &
    pid=$!
    ms=$(submit_and_run)
    wait "$pid" || die "a second runner failed"
    check_task "$COPY_LINES"
    RATE=$(per_second "$COPY_LINES" "$ms")
    COUNT=$COPY_LINES
}

# against_copy order lines [variant ...]
against_copy() {
    local lines

    COPY_LINES=$2
    lines="$(commas "$2") lines, $1"
    FILE=$WORK/users_$1
    write_users "$FILE" "$1" "$2"
    shift 2
    LOADS_OF_STAGE=()
    write_finished
    WARM_UP=0 alternate 1 task copy "$@"
    row_of distribute 1 "$lines" task 'COPY of the finished rows' copy
    [[ " $* " != *' dump_copy '* ]] ||
        row_of distribute 1 "$lines" task 'COPY in the order of a dump, without triggers' dump_copy
    [[ " $* " != *' two '* ]] || row_of distribute 2 "$lines, two runners" two 'one runner' task
    row distribute 1 "COPY of $lines, into the stage" "$(milliseconds "$(median "${LOADS_OF_STAGE[@]}")")"
    ALONE=$(median_of task)
}

small_files() {
    local times=() i

    empty_tables
    FILE=$WORK/users_small
    write_users "$FILE" random 5000
    for ((i = 0; i <= 2 * ROUNDS; i++)); do
        query "TRUNCATE user_coupon, coupon_stock, coupon_watermark"
        make_task 1 "$FILE"
        times+=("$(submit_and_run)")
        check_task 5000
    done
    row distribute 1 '5,000 lines, sealed and done' "$(milliseconds "$(median "${times[@]}")")"
}

# Highest memory of a backend that is its own: shared buffers are in VmHWM too.
watch_memory() {
    local own most=0

    while own=$(sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$1/status" 2> /dev/null) && [[ -n $own ]]; do
        ((own <= most)) || most=$own
        echo "$most" > "$WORK/memory"
        sleep 0.2
    done
}

# run_big lines: sets RATE and MEMORY, the kilobytes of the runner
run_big() {
    local runner=$WORK/runner.log ms watcher

    FILE=$WORK/users_big
    write_users "$FILE" random "$1"
    empty_tables
    make_task 1 "$FILE"
    : > "$runner"
    {
        until [[ -s $runner ]]; do sleep 0.1; done
        watch_memory "$(head -1 "$runner")"
    } &
    watcher=$!
    ms=$("$BIN/psql" -XqAt -v ON_ERROR_STOP=1 << BIG 2> "$WORK/timed.err" | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' | awk '{n += $1} END {print n}'
\o $runner
SELECT pg_backend_pid();
\o
SET client_min_messages = warning;
\timing on
SELECT * FROM coupon_task_submit($TASK);
CALL coupon_task_run($TASK);
BIG
    )
    wait "$watcher"
    check_task "$1"
    MEMORY=$(< "$WORK/memory")
    RATE=$(per_second "$1" "$ms")
    rm -f "$FILE"
}

# Claims beside a distribution that goes on all the while; it is cancelled at
# the end.
start_distribution() {
    make_task "$1" "$FILE"
    query "SELECT * FROM coupon_task_submit($TASK)" > /dev/null
    "$BIN/psql" -Xq -c "CALL coupon_task_run($TASK)" > /dev/null 2>&1 &
    RUNNER=$!
    until [[ $(query "SELECT count(*) FROM coupon_task_batch WHERE task_id = $TASK AND done_at IS NOT NULL") != 0 ]]; do
        sleep 0.05
    done
}

end_distribution() {
    [[ $(query "SELECT state FROM coupon_task WHERE id = $TASK") == in_progress ]] ||
        die "the distribution was over before the claims; take fewer --seconds"
    BATCHES+=("$(query "SELECT round(1000 * max(t)) FROM (SELECT extract(epoch FROM done_at - lag(done_at) OVER (ORDER BY done_at)) AS t
                        FROM coupon_task_batch WHERE task_id = $TASK) x")")
    query "SELECT * FROM coupon_task_cancel($TASK)" > /dev/null
    wait "$RUNNER" || true
}

# claims template users clients: sets LONGEST, the milliseconds of a claim
claims() {
    rm -f "$WORK"/latency.*
    pgbench_run "$BENCH/sql/claim.sql" "$3" -D template="$1" -D users="$2" -l --log-prefix="$WORK/latency"
    LONGEST=$(cat "$WORK"/latency.* | awk '$3 > m {m = $3} END {print m / 1000}')
}

run_alone() {
    empty_tables
    claims 2 1000000000000000 "$1"
}

# Lines done, and when.
progress() {
    query "SELECT sum(lines), extract(epoch FROM clock_timestamp()) FROM coupon_task_batch WHERE task_id = $TASK AND done_at IS NOT NULL"
}

run_beside() {
    local before

    empty_tables
    start_distribution 1
    before=$(progress)
    claims 2 1000000000000000 "$1"
    PACES+=("$(echo "$before|$(progress)" | awk -F'|' '{print ($3 - $1) / ($4 - $2)}')")
    end_distribution
}

# Of the same template, by users of the file: some are in the open batch.
run_same() {
    empty_tables
    start_distribution 1
    claims 1 "$COPY_LINES" "$1"
    LONGESTS+=("$LONGEST")
    end_distribution
}

claims_meanwhile() {
    FILE=$WORK/users_random
    BATCHES=()
    LONGESTS=()
    PACES=()
    SECONDS_EACH=$((SECONDS_EACH < 4 ? SECONDS_EACH : 4)) WARM_UP=0 alternate 8 alone beside same
    row_of distribute 8 'claims of another template during a distribution' beside 'without one' alone
    row distribute 8 'lines of a distribution during claims of another template' \
        "$(rate "$(median "${PACES[@]}")")" 'without claims' "$(rate "$ALONE")" \
        "$(ratio "$(median "${PACES[@]}")" "$ALONE")"
    row distribute 8 'longest claim of its own template, by users of the file' \
        "$(milliseconds "$(median "${LONGESTS[@]}")")" 'longest batch of the run' \
        "$(milliseconds "$(median "${BATCHES[@]}")")" \
        "$(ratio "$(median "${LONGESTS[@]}")" "$(median "${BATCHES[@]}")")"
}

part_distribute() {
    local lines=1000000

    [[ $QUICK == no ]] || lines=200000
    fresh_server
    query_file setup.sql
    against_copy random "$lines" dump_copy two
    claims_meanwhile
    small_files
    against_copy ascending 200000
    empty_tables
    verify_row distribute
}
