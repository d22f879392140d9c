# Ten million lines beside one million: as many a second, in as much memory.
#
# In a server that is in use: its WAL files are there already, to be written
# again, and its shared buffers hold the indexes, in huge pages if the system has
# any to give (vm.nr_hugepages).  A fresh cluster has to make each WAL file, of
# which the longer run needs ten times as many.
#
# shellcheck shell=bash disable=SC2034

WAL_FILES=400                   # 6.4 GB; ten million lines write 5

make_wal_files() {
    local i

    for ((i = 0; i < WAL_FILES; i++)); do
        echo "SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal();"
    done | "$BIN/psql" -Xq -o /dev/null
    query CHECKPOINT
}

part_flatness() {
    local lines=1000000 round rate_few rate_many memory
    local few=() many=()

    [[ $QUICK == no ]] || lines=200000
    fresh_server "shared_buffers = '4GB'" "max_wal_size = '24GB'" "min_wal_size = '16GB'"
    query_file setup.sql
    make_wal_files
    row setup '' 'huge pages' "$(query "SELECT CASE WHEN setting = 'try' THEN 'if there are any' ELSE setting END
        FROM pg_settings WHERE name = 'huge_pages'")" 'reserved by the system' \
        "$(sed -n 's/^HugePages_Total: *//p' /proc/meminfo)"
    for ((round = 0; round < (ROUNDS < 2 ? 1 : 2); round++)); do
        run_big "$lines"
        few+=("$RATE") memory=$MEMORY
        run_big $((10 * lines))
        many+=("$RATE")
    done
    rate_few=$(median "${few[@]}") rate_many=$(median "${many[@]}")
    row flatness 1 "$(commas $((10 * lines))) lines, random" "$(rate "$rate_many")" \
        "$(commas "$lines") lines" "$(rate "$rate_few")" "$(ratio "$rate_many" "$rate_few")"
    row flatness 1 "the runner's own memory at most, $(commas $((10 * lines))) lines" "$(commas "$MEMORY") kB" \
        "$(commas "$lines") lines" "$(commas "$memory") kB" "$(ratio "$MEMORY" "$memory")"
    empty_tables
    verify_row flatness
}
