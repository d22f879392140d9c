# The same claim as a Lua script in Redis, which answers out of memory: with
# every write synced to its log before the answer, and with nothing kept.
#
# shellcheck shell=bash disable=SC2034

# load_redis socket: an empty server with the template.
load_redis() {
    local now

    now=$(date +%s)
    redis-cli -s "$1" FLUSHALL > /dev/null
    redis-cli -s "$1" HSET 'coupon:{1}' stock 2000000000 limit 1 \
        receive_start "$now" receive_end $((now + 86400)) > /dev/null
}

# run_lua name clients: redis-benchmark knows no seconds but a number of
# requests, so each run takes as many as the run before it promises.
run_lua() {
    local socket=$WORK/$1.sock clients=$2 sha requests claims

    load_redis "$socket"
    sha=$(redis-cli -s "$socket" SCRIPT LOAD "$(< "$BENCH/lib/receive_coupon.lua")")
    requests=$(awk -v x="${LAST_RATE[$1]:-10000}" -v s="$SECONDS_EACH" 'BEGIN {print int(x * s)}')
    redis-benchmark -s "$socket" -c "$clients" -n "$requests" -r 2000000000 -q \
        EVALSHA "$sha" 3 'coupon:{1}' 'coupon:{1}:users' 'coupon:{1}:claims' __rand_int__ \
        > "$WORK/redis.log" 2>&1
    RATE=$(grep -o '[0-9.]* requests per second' "$WORK/redis.log" | tail -1 | cut -d' ' -f1)
    LAST_RATE[$1]=$RATE

    # A user drawn a second time is refused: what counts are claims.
    claims=$(redis-cli -s "$socket" XLEN 'coupon:{1}:claims')
    ((claims > requests * 99 / 100)) || die "only $claims of $requests requests to Redis were claims"
    RATE=$(awk -v x="$RATE" -v c="$claims" -v r="$requests" 'BEGIN {print x * c / r}')
    COUNT=$claims
}

run_lua_always() {
    run_lua redis-always "$1"
}

run_lua_nothing() {
    run_lua redis-nothing "$1"
}

part_redis() {
    declare -gA LAST_RATE=()

    if ! command -v redis-server > /dev/null || ! command -v redis-benchmark > /dev/null; then
        row redis '' 'not measured: no redis-server, redis-benchmark here' ''
        return
    fi
    fresh_server
    query_file setup.sql
    query CHECKPOINT
    start_redis redis-always --appendonly yes --appendfsync always
    start_redis redis-nothing --appendonly no
    alternate 32 claim many lua_always lua_nothing
    row_of redis 32 coupon_receive claim 'Lua, appendfsync always' lua_always
    row_of redis 32 coupon_receive claim 'Lua, appendonly no' lua_nothing
    row_of redis 32 'coupon_receive_many, 100 users a call' many 'Lua, appendfsync always' lua_always
    row_of redis 32 'coupon_receive_many, 100 users a call' many 'Lua, appendonly no' lua_nothing
    stop_redis
}
