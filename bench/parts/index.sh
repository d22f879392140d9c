# How "ids past the watermark" are best found: three copies of user_coupon
# with no index for it, a btree and a BRIN on id.
#
# shellcheck shell=bash disable=SC2034

run_none() {
    pgbench_run "$WORK/insert_none.sql" "$1"
}

run_btree() {
    pgbench_run "$WORK/insert_btree.sql" "$1"
}

run_brin() {
    pgbench_run "$WORK/insert_brin.sql" "$1"
}

# buffers kind: rows that have lived are 1 million, of which 4 in 100 were
# used since; then come 1 in 100 new ones, and these are asked for.
buffers() {
    local table=bench_$1 rows=$2 upto

    query "TRUNCATE $table"
    query "INSERT INTO $table (user_id, template_id, use_end)
           SELECT n, 1, now() + '30 days' FROM generate_series(1, $rows) n"
    query "VACUUM ANALYZE $table"
    upto=$(query "SELECT max(id) FROM $table")
    query "UPDATE $table SET status = 2 WHERE random() < 0.04"
    query "VACUUM $table"
    query "INSERT INTO $table (user_id, template_id, use_end)
           SELECT n, 1, now() + '30 days' FROM generate_series($rows + 1, $rows + $rows / 100) n"
    query "SELECT bench_buffers('SELECT count(*) FROM $table WHERE id > $upto')"
}

part_index() {
    local kind rows=1000000 btree brin pages

    fresh_server
    query_file buffers.sql
    for kind in none btree brin; do
        query_file copy_of_user_coupon.sql name="bench_$kind"
        sed "s/TABLE_NAME/bench_$kind/" "$BENCH/sql/index_insert.sql" > "$WORK/insert_$kind.sql"
    done
    query "CREATE INDEX ON bench_btree USING btree (id)"
    query "CREATE INDEX ON bench_brin USING brin (id)"
    query CHECKPOINT
    alternate 32 none btree brin
    row_of index 32 'inserts with btree (id)' btree 'without' none
    row_of index 32 'inserts with BRIN (id)' brin 'without' none

    btree=$(buffers btree $rows)
    brin=$(buffers brin $rows)
    pages=$(query "SELECT sum(pg_relation_size(inhrelid)) / 8192 FROM pg_inherits
                   WHERE inhparent = 'bench_brin'::regclass")
    row index 1 "pages read for the newest 1 % of $(commas $rows), btree" "$(commas "$btree")" \
        BRIN "$(commas "$brin")" "$(ratio "$btree" "$brin")"
    row index 1 'pages of that table that BRIN reads' \
        "$(awk -v a="$brin" -v b="$pages" 'BEGIN {printf "%.0f %%", 100 * a / b}')"
}
