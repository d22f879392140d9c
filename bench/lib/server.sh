# The private PostgreSQL cluster and the private Redis servers.
#
# shellcheck shell=bash disable=SC2034

SERVER_PID=
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
coupon.databases = ''
coupon.max_templates = 4096
SETTINGS
}

find_programs() {
    local pg_config=${PG_CONFIG:-pg_config} name

    command -v "$pg_config" > /dev/null || die "no pg_config; name it in PG_CONFIG"
    BIN=$("$pg_config" --bindir)
    for name in initdb postgres pg_isready psql pgbench; do
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

# Not by pg_ctl: a child of ours is reaped by us once it has been killed, and
# until then it would look alive to its successor.
start_server() {
    "$BIN/postgres" -D "$WORK/data" >> "$WORK/server.log" 2>&1 &
    SERVER_PID=$!
    until "$BIN/pg_isready" -q; do
        if ! kill -0 "$SERVER_PID" 2> /dev/null; then
            wait "$SERVER_PID" || true
            SERVER_PID=
            return 1
        fi
        sleep 0.05
    done
}

stop_server() {
    stop_folding
    end_process QUIT "$SERVER_PID"
    SERVER_PID=
}

# end_process signal pid; bash reports a killed job on standard error
end_process() {
    if [[ -n $2 ]]; then
        kill -s "$1" "$2" 2> /dev/null || true
        { wait "$2" || true; } 2> /dev/null
    fi
}

# Its children notice by themselves, and hold the shared memory until then.
crash_server() {
    end_process KILL "$SERVER_PID"
    for _ in {1..100}; do
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
    end_process TERM "$WATCHER"
    WATCHER=
}

# start_redis name option ...: listens on $WORK/name.sock
start_redis() {
    local name=$1

    shift
    mkdir "$WORK/$name"
    redis-server --port 0 --unixsocket "$WORK/$name.sock" --dir "$WORK/$name" \
        --save '' --auto-aof-rewrite-percentage 0 "$@" > "$WORK/$name.log" 2>&1 &
    REDIS_PIDS+=($!)
    for _ in {1..50}; do
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
        end_process TERM "$pid"
    done
    REDIS_PIDS=()
    rm -rf "$WORK"/redis-*
}

stop_everything() {
    stop_redis
    stop_receivers
    stop_server
}
