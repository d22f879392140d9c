# The private PostgreSQL cluster and the private Redis servers.

REDIS_PIDS=()
WATCHER=

# Only as little as makes runs alike: no vacuum and no checkpoint in the middle
# of a measurement.  What decides about durability keeps its default.
server_settings() {
    cat <<SETTINGS
shared_preload_libraries = 'coupon'
listen_addresses = ''
unix_socket_directories = '$WORK'
max_connections = 150
shared_buffers = '1GB'
max_wal_size = '8GB'
checkpoint_timeout = '1h'
autovacuum = off
coupon.max_templates = 4096
SETTINGS
}

find_programs() {
    local pg_config=${PG_CONFIG:-pg_config} name

    command -v "$pg_config" > /dev/null || die "no pg_config; name it in PG_CONFIG"
    BIN=$("$pg_config" --bindir)
    for name in initdb pg_ctl psql pgbench; do
        [[ -x $BIN/$name ]] || die "no $name in $BIN"
    done
    [[ -e $("$pg_config" --sharedir)/extension/coupon.control ]] ||
        die "the extension is not installed: make install"

    # Nothing of the caller's own settings for libpq.
    for name in ${!PG*}; do
        unset "$name"
    done
    export PGHOST=$WORK PGUSER=bench PGDATABASE=postgres
}

# fresh_server [setting=value ...]: an empty cluster with the extension.
fresh_server() {
    local setting

    stop_server
    rm -rf "$WORK/data"
    "$BIN/initdb" -D "$WORK/data" -U bench -A trust -E UTF8 --locale=C -N > "$WORK/initdb.log" 2>&1 ||
        die "initdb: $(tail -1 "$WORK/initdb.log")"
    server_settings >> "$WORK/data/postgresql.conf"
    for setting in "$@"; do
        echo "$setting" >> "$WORK/data/postgresql.conf"
    done
    start_server || die "the server does not start: $(tail -1 "$WORK/server.log")"
    query "CREATE EXTENSION coupon"
}

start_server() {
    "$BIN/pg_ctl" -D "$WORK/data" -l "$WORK/server.log" -w -t 600 start > /dev/null 2>&1
}

stop_server() {
    stop_folding
    if [[ -e $WORK/data/postmaster.pid ]]; then
        "$BIN/pg_ctl" -D "$WORK/data" -m immediate -w stop > /dev/null 2>&1 || true
    fi
}

# Its children notice by themselves, and hold the shared memory until then.
crash_server() {
    local tries

    kill -9 "$(head -1 "$WORK/data/postmaster.pid")"
    for tries in {1..100}; do
        if start_server; then
            return
        fi
        sleep 0.2
    done
    die "the server does not come back: $(tail -1 "$WORK/server.log")"
}

query() {
    "$BIN/psql" -XqAt -v ON_ERROR_STOP=1 -c "$1"
}

# query_file file [name=value ...]
query_file() {
    local file=$1 setting args=()

    shift
    for setting in "$@"; do
        args+=(-v "$setting")
    done
    "$BIN/psql" -XqAt -v ON_ERROR_STOP=1 "${args[@]}" -f "$BENCH/sql/$file"
}

# What a site does every few seconds.
start_folding() {
    "$BIN/psql" -XqAt > /dev/null 2>&1 <<< 'SELECT coupon_fold() \watch 2' &
    WATCHER=$!
}

stop_folding() {
    if [[ -n $WATCHER ]]; then
        kill "$WATCHER" 2> /dev/null || true
        wait "$WATCHER" 2> /dev/null || true
        WATCHER=
    fi
}

# start_redis name option ...: listens on $WORK/name.sock
start_redis() {
    local name=$1 tries

    shift
    mkdir "$WORK/$name"
    redis-server --port 0 --unixsocket "$WORK/$name.sock" --dir "$WORK/$name" \
        --save '' --auto-aof-rewrite-percentage 0 "$@" > "$WORK/$name.log" 2>&1 &
    REDIS_PIDS+=($!)
    for tries in {1..50}; do
        if redis-cli -s "$WORK/$name.sock" ping > /dev/null 2>&1; then
            return
        fi
        sleep 0.1
    done
    die "redis-server does not start: $(tail -1 "$WORK/$name.log")"
}

stop_redis() {
    local pid

    for pid in "${REDIS_PIDS[@]}"; do
        kill "$pid" 2> /dev/null || true
        wait "$pid" 2> /dev/null || true
    done
    REDIS_PIDS=()
    rm -rf "$WORK"/redis-*
}

stop_everything() {
    stop_redis
    stop_server
}
