# Measuring, medians, and the rows of the table.
#
# shellcheck shell=bash disable=SC2034

declare -A RATES                # variant -> results of its runs
declare -A TOTALS                 # variant -> transactions in all its runs
RATE=                           # result of the last run
COUNT=                          # transactions in the last run

# pgbench_run script clients [pgbench option ...]: sets RATE and COUNT.
pgbench_run() {
    local script=$1 clients=$2 threads

    shift 2
    threads=$((clients < CORES ? clients : CORES))
    if ! "$BIN/pgbench" -n -M prepared -c "$clients" -j "$threads" -T "$SECONDS_EACH" \
        -f "$script" "$@" > "$WORK/pgbench.log" 2>&1; then
        grep -v '^scaling\|^query mode\|^number of' "$WORK/pgbench.log" | tail -5 >&2
        die "pgbench failed on $script"
    fi
    RATE=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$WORK/pgbench.log")
    COUNT=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$WORK/pgbench.log")
}

# alternate clients variant ...: calls run_<variant> in turns, and fills RATES
# and TOTALS.  Each round begins with another variant, so that none is always the
# first on the emptiest table.  In a full run one round before them is not
# counted: it fills caches, and makes the first pages.
alternate() {
    local clients=$1 round i variant variants

    shift
    variants=("$@")
    RATES=()
    TOTALS=()
    for ((round = 1 - WARM_UP; round <= ROUNDS; round++)); do
        for ((i = 0; i < $#; i++)); do
            variant=${variants[(round + i) % $#]}
            if ((round == 0)); then
                SECONDS_EACH=1 "run_$variant" "$clients"
            else
                "run_$variant" "$clients"
                RATES[$variant]+="$RATE "
                say "$clients clients, round $round, $variant: $(rate "$RATE")"
            fi
            TOTALS[$variant]=$((${TOTALS[$variant]:-0} + COUNT))
        done
    done
}

# median number ...
median() {
    printf '%s\n' "$@" | sort -g |
        awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'
}

median_of() {
    local rates

    read -r -a rates <<< "${RATES[$1]}"
    median "${rates[@]}"
}

# Whole numbers with commas.
commas() {
    printf '%.0f' "$1" | sed ':a;s/\B[0-9]\{3\}\>/,&/;ta'
}

rate() {
    echo "$(commas "$1")/s"
}

milliseconds() {
    awk -v x="$1" 'BEGIN {printf (x < 10 ? "%.1f ms" : "%.0f ms"), x}'
}

ratio() {
    awk -v a="$1" -v b="$2" 'BEGIN {if (b > 0) printf "%.2f ×", a / b; else print "–"}'
}

table_head() {
    echo '| part | clients | what | result | beside it | result | ratio |'
    echo '|--|--:|--|--:|--|--:|--:|'
}

# row part clients what result [other result ratio]
row() {
    echo "| $1 | $2 | $3 | $4 | ${5:-} | ${6:-} | ${7:-} |"
}

# row_of part clients what variant [other what, other variant]
row_of() {
    local one other

    one=$(median_of "$4")
    if (($# == 4)); then
        row "$1" "$2" "$3" "$(rate "$one")"
    else
        other=$(median_of "$6")
        row "$1" "$2" "$3" "$(rate "$one")" "$5" "$(rate "$other")" "$(ratio "$one" "$other")"
    fi
}

redis_version() {
    if command -v redis-server > /dev/null; then
        redis-server --version | sed 's/.* v=\([^ ]*\).*/\1/'
    else
        echo none
    fi
}

table_facts() {
    row setup '' cores "$CORES" PostgreSQL "$(query 'SHOW server_version' | cut -d' ' -f1)"
    row setup '' synchronous_commit "$(query 'SHOW synchronous_commit')" fsync "$(query 'SHOW fsync')"
    row setup '' shared_buffers "$(query 'SHOW shared_buffers')" 'data on' "$(stat -f -c %T "$WORK")"
    row setup '' 'seconds a run' "$SECONDS_EACH" rounds "$ROUNDS"
    row setup '' 'autovacuum, checkpoints meanwhile' none Redis "$(redis_version)"
}

# Every transaction of a run was meant to write exactly so many coupons.
check_coupons() {
    local template=$1 expected=$2 found

    found=$(query "SELECT count(*) FROM user_coupon WHERE template_id = $template")
    ((found == expected)) || die "template $template has $found coupons, not $expected"
}

# Prints a row; a benchmark of wrong books is worth nothing.
verify_row() {
    local part=$1 templates problems

    IFS='|' read -r templates problems <<< "$(query "
        SELECT count(*), count(*) FILTER (WHERE NOT ok) FROM coupon_verify()")"
    ((problems == 0)) || die "coupon_verify finds $problems of $templates templates wrong"
    row "$part" '' 'templates that coupon_verify finds wrong' "0 of $(commas "$templates")"
}
