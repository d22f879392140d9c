# Reminders: many that are due in the same second, delivered by one worker to a
# local nginx that answers 204 and keeps connections; beside what libcurl alone
# does against the same nginx.  From the moment in which they are due to the end
# of the last one (ended_at), so everything that the worker does is in it.
#
# Then what a tick costs while millions wait and none is due, how late a reminder
# leaves an idle worker, and what a receiver that hangs costs the others.
#
# The time of a run is that of its reminders, not that of --seconds.
#
# shellcheck shell=bash disable=SC2034

NGINX_PID=
NGINX_PORT=
REQUESTS=
QUESTIONS=0                     # how often nginx was asked for them
SILENT_PID=
SILENT_PORT=
REMINDERS=100000                # due at once
PUSH_BYTES=                     # body of a push to one user
USER_BYTES=                     # each further one

free_port() {
    perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}

nginx_settings() {
    local kind

    mkdir -p "$WORK/nginx"
    cat << SETTINGS
daemon off;
worker_processes 1;
pid $WORK/nginx/pid;
error_log $WORK/nginx/error.log;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    limit_req_zone \$binary_remote_addr zone=all:1m rate=128r/s;
SETTINGS
    for kind in client_body proxy fastcgi uwsgi scgi; do
        echo "    ${kind}_temp_path $WORK/nginx/$kind;"
    done
    cat << SETTINGS
    server {
        listen 127.0.0.1:$NGINX_PORT backlog=4096;
        location = /status { stub_status; }
        location / { return 204; }
        location /limited/ { limit_req zone=all burst=4096; proxy_pass http://127.0.0.1:$NGINX_PORT/; }
    }
}
SETTINGS
}

start_nginx() {
    local program

    program=$(PATH=$PATH:/usr/sbin:/sbin type -P nginx) || die "no nginx"
    NGINX_PORT=$(free_port)
    nginx_settings > "$WORK/nginx.conf"
    "$program" -c "$WORK/nginx.conf" 2> "$WORK/nginx.log" &
    NGINX_PID=$!
    for _ in {1..100}; do
        if { true < "/dev/tcp/127.0.0.1/$NGINX_PORT"; } 2> /dev/null; then
            return
        fi
        sleep 0.05
    done
    die "nginx does not start: $(tail -1 "$WORK/nginx.log")"
}

# It takes connections and says nothing, for ever.
start_silent() {
    perl -MIO::Socket::INET -e '
        my $s = IO::Socket::INET->new(Listen => 4096, LocalAddr => "127.0.0.1") or die;
        $| = 1; print $s->sockport, "\n"; sleep;' > "$WORK/silent.port" &
    SILENT_PID=$!
    until [[ -s $WORK/silent.port ]]; do sleep 0.05; done
    SILENT_PORT=$(< "$WORK/silent.port")
}

stop_receivers() {
    end_process TERM "$NGINX_PID"
    end_process TERM "$SILENT_PID"
    end_process TERM "${MAIL_PID:-}"
    NGINX_PID='' SILENT_PID=''
}

# Sets REQUESTS: those that nginx has had, without such questions.
requests() {
    local fd n

    exec {fd}<> "/dev/tcp/127.0.0.1/$NGINX_PORT"
    printf 'GET /status HTTP/1.0\r\n\r\n' >&"$fd"
    n=$(awk 'seen {print $3; exit} /requests/ {seen = 1}' <&"$fd")
    exec {fd}>&-
    QUESTIONS=$((QUESTIONS + 1))
    REQUESTS=$((n - QUESTIONS))
}

# wait_for seconds what condition
wait_for() {
    local tries=$(($1 * 10))

    until [[ $(query "SELECT $3") == t ]]; do
        ((--tries > 0)) || die "gave up waiting for $2"
        sleep 0.1
    done
}

# set_channel channel port batch_size max_in_flight timeout
set_channel() {
    query "SELECT coupon_channel_set('$1', 'http://127.0.0.1:$2/', batch_size => $3, max_in_flight => $4, user_id_is_address => true,
                                     timeout => '$5', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw')" > /dev/null
}

# Reminders of a sale that is a day off; nothing is due.
store_reminders() {
    query "TRUNCATE coupon_notification, coupon_notification_history, coupon_remind"
    query "UPDATE coupon_template SET receive_start = now() + '1 day' WHERE id = 1"
    query "INSERT INTO coupon_remind (user_id, template_id, bitmap)
           SELECT n, 1, '{sms@5}' FROM generate_series(1, $REMINDERS) n"
    query "VACUUM ANALYZE coupon_remind"
    query CHECKPOINT
}

# In two seconds all are due: the sale is moved.
fire_reminders() {
    query "UPDATE coupon_template SET receive_start = clock_timestamp() + '5 min 2 s' WHERE id = 1"
}

# await_delivery requests before: until nginx has had so many more, and they are
# written down.  Asks the database only then: it has something else to do.
await_delivery() {
    local tries=1800

    until requests && ((REQUESTS - $2 >= $1)); do
        ((--tries > 0)) || die "only $((REQUESTS - $2)) of $1 requests came in three minutes"
        sleep 0.1
    done
    wait_for 60 'the history' "count(*) = $1 FROM coupon_notification_history WHERE channel = 'sms'"
}

# Every user once, none lost; sets RATE and COUNT.
check_delivery() {
    local users seconds failed

    users=$(query "SELECT count(DISTINCT u) FROM coupon_notification_history h, unnest(h.user_ids) u
                   WHERE h.channel = 'sms' AND h.state = 'delivered'")
    IFS='|' read -r seconds failed <<< "$(query "
        SELECT extract(epoch FROM max(ended_at) - min(due_at)), count(*) FILTER (WHERE state <> 'delivered')
        FROM coupon_notification_history WHERE channel = 'sms'")"
    ((users == REMINDERS && failed == 0)) || die "$users of $REMINDERS users were told, $failed pushes failed"
    RATE=$(awk -v n="$REMINDERS" -v s="$seconds" 'BEGIN {print n / s}')
    COUNT=$REMINDERS
}

# due_at_once batch_size max_in_flight
due_at_once() {
    local before more=$((REMINDERS / $1))

    set_channel sms "$NGINX_PORT" "$1" "$2" '10 s'
    store_reminders
    requests
    before=$REQUESTS
    fire_reminders
    await_delivery "$more" "$before"
    check_delivery
    requests
    ((REQUESTS - before == more)) || say "$((REQUESTS - before)) requests for $more pushes: some were sent twice"
}

run_remind_single() {
    due_at_once 1 "$1"
}

run_remind_hundred() {
    due_at_once 100 "$1"
}

# raw_curl in_flight recipients
raw_curl() {
    local requests=$((REMINDERS / $2))

    RATE=$("$WORK/raw_curl" "http://127.0.0.1:$NGINX_PORT/" "$requests" "$1" \
        $((PUSH_BYTES + ($2 - 1) * USER_BYTES))) || die "raw_curl failed"
    RATE=$((RATE * $2))
    COUNT=$requests
}

run_remind_raw() {
    raw_curl "$1" 1
}

run_remind_raw_hundred() {
    raw_curl "$1" 100
}

make_raw_curl() {
    "${CC:-cc}" -O2 -o "$WORK/raw_curl" "$BENCH/lib/raw_curl.c" -lcurl || die "cannot compile $BENCH/lib/raw_curl.c"
}

# What a push weighs, by its preview.
measure_body() {
    set_channel sms "$NGINX_PORT" 1 64 '10 s'
    PUSH_BYTES=$(query "SELECT octet_length(body) FROM coupon_channel_preview('reminder', 'sms', 50000)")
    USER_BYTES=$(query "SELECT octet_length('{\"user_id\":\"50000\",\"address\":\"50000\"},')")
}

# seconds_row clients what variant
seconds_row() {
    row remind "$1" "$2: from due to the last delivered" \
        "$(awk -v n="$REMINDERS" -v r="$(median_of "$3")" 'BEGIN {printf "%.1f s", n / r}')" '' '' ''
}

many_at_once() {
    local in_flight n

    n=$(commas "$REMINDERS")
    for in_flight in 64 256; do
        alternate "$in_flight" remind_single remind_raw
        row_of remind "$in_flight" "$n due at once, one user a request" remind_single \
            'raw libcurl, as many POSTs of that size' remind_raw
        seconds_row "$in_flight" "$n, one user a request" remind_single
    done
    alternate 64 remind_hundred remind_raw_hundred
    row_of remind 64 "$n due at once, 100 users a request" remind_hundred \
        'raw libcurl, as many POSTs of that size' remind_raw_hundred
    seconds_row 64 "$n, 100 users a request" remind_hundred
    row remind '' 'lost, in all these runs' 0
}

# store_waiting rows: of twenty sales; the last begins within the hour, but its
# reminders are for later.
store_waiting() {
    query "TRUNCATE coupon_notification, coupon_notification_history, coupon_remind"
    query "INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
           SELECT 1000 + n, 'waits', 1000, 10, 'published',
                  now() + CASE WHEN n = 20 THEN interval '55 min' ELSE interval '1 day' + n * interval '1 h' END
           FROM generate_series(1, 20) n"
    say "storing $(commas "$1") reminders"
    query "INSERT INTO coupon_remind (user_id, template_id, bitmap)
           SELECT n, 1001 + n % 20, CASE WHEN n % 3 = 0 THEN '{sms@5,email@20}'::remind_bitmap ELSE '{sms@5}' END
           FROM generate_series(1, $1) n"
    query "VACUUM ANALYZE coupon_remind"
    query CHECKPOINT
}

# tick_time: the median of many ticks, in milliseconds.  Each looks also for what
# is left of every sale that anybody is reminded of; the worker does that when it
# starts and once an hour.
tick_time() {
    local times

    read -r -d '' -a times < <(for _ in {1..21}; do echo 'SELECT * FROM coupon_remind_tick();'; done |
        "$BIN/psql" -Xq -c '\timing on' -f - 2> /dev/null |
        sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' && printf '\0')
    median "${times[@]:1}"
}

tick_beside() {
    local n=$1 few many

    store_waiting 1000
    few=$(tick_time)
    query "DELETE FROM coupon_template WHERE id > 1000"
    store_waiting "$n"
    many=$(tick_time)
    [[ $(query "SELECT count(*) FROM coupon_notification") == 0 ]] || die 'something was due'
    row remind 1 "a tick, $(commas "$n") of 20 sales wait, none is due" "$(milliseconds "$many")" \
        '1,000 wait' "$(milliseconds "$few")" "$(ratio "$many" "$few")"
    row remind '' 'table and indexes of these' "$(query "SELECT pg_size_pretty(pg_total_relation_size('coupon_remind'))")"
}

# One reminder a second, and nothing else to do.
idle_lateness() {
    local n=9 median most

    set_channel sms "$NGINX_PORT" 1 64 '10 s'
    query "INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
           SELECT 2000 + n, 'soon', 1000, 10, 'published', now() + interval '5 min 2 s' + n * interval '1 s'
           FROM generate_series(1, $n) n;"
    query "SELECT coupon_remind_create(2000 + n, 1, 'sms', 5) FROM generate_series(1, $n) n" > /dev/null
    wait_for 30 'nine single reminders' "count(*) = $n FROM coupon_notification_history WHERE state = 'delivered'"
    IFS='|' read -r median most <<< "$(query "
        SELECT 1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM sent_at - due_at)),
               1000 * max(extract(epoch FROM sent_at - due_at)) FROM coupon_notification_history")"
    row remind 1 "late by, idle worker, median of $n" "$(milliseconds "$median")" 'the latest' "$(milliseconds "$most")"
}

# A new worker: nothing is known of the receivers.
restart_worker() {
    query "SELECT pg_terminate_backend(pid, 10000) FROM coupon_stat_worker WHERE kind = 'worker'" > /dev/null
    wait_for 30 'a worker' "EXISTS (SELECT FROM coupon_stat_worker WHERE kind = 'worker' AND pid IS NOT NULL AND state = 'running')"
}

# The other receiver has had its requests when the reminders come due, and says
# nothing until eight seconds later; then the worker leaves it alone for a while.
run_remind_alone() {
    query "SELECT coupon_channel_enable('app', false)" > /dev/null
    restart_worker
    due_at_once 1 64
}

run_remind_hanging() {
    local before

    # What an earlier run has left must be gone before a worker takes it.
    store_reminders
    query "SELECT coupon_channel_enable('app')" > /dev/null
    restart_worker
    requests
    before=$REQUESTS
    query "INSERT INTO coupon_notification (channel, kind, template_id, minutes, user_ids, due_at, next_at)
           SELECT 'app', 'test', 1, 5, ARRAY[n], now(), now() FROM generate_series(1, 1000) n;
           SELECT coupon_worker_wake()" > /dev/null
    wait_for 10 'requests that hang' "count(*) >= 64 FROM coupon_notification WHERE leased_until > now()"
    fire_reminders
    await_delivery "$REMINDERS" "$before"
    check_delivery
}

hanging_receiver() {
    start_silent
    set_channel app "$SILENT_PORT" 1 64 '10 s'
    set_channel sms "$NGINX_PORT" 1 64 '10 s'
    alternate 64 remind_hanging remind_alone
    row_of remind 64 'delivered while another receiver hangs' remind_hanging 'without it' remind_alone
}

part_remind() {
    local waiting=2000000 WARM_UP=0 ROUNDS=$ROUNDS

    ((ROUNDS <= 3)) || ROUNDS=3
    if [[ $QUICK == yes ]]; then
        REMINDERS=20000
    fi
    [[ $FULL == no ]] || waiting=20000000
    fresh_server "coupon.databases = '*'"
    query "INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
           VALUES (1, 'Flash sale', 1000, 10, 'published', now() + '1 day')"
    make_raw_curl
    start_nginx
    measure_body
    many_at_once
    hanging_receiver
    tick_beside "$waiting"
    idle_lateness
    stop_receivers
}
