# What has a moment beside what has none: how late a reminder leaves while announcements
# wait for a receiver of 128 answers a second, beside one that shares their lane, as if
# all went in the order of time.  How late beside many distributions that are due at the
# same time.  And mails to a server that takes half a second for
# each, beside the same one after the other.
#
# shellcheck shell=bash disable=SC2034

MAIL_PID=
MAIL_PORT=
MAILS=60
FIRST_USER=0

# store_announcements rows lane
store_announcements() {
    query "TRUNCATE coupon_notification, coupon_notification_history, coupon_remind"
    query "INSERT INTO coupon_notification (channel, kind, template_id, user_ids, due_at, next_at, lane)
           SELECT 'sms', 'coupon', 1, ARRAY[n], now(), now(), $2 FROM generate_series(1, $1) n;
           SELECT coupon_worker_wake()" > /dev/null
    wait_for 30 'announcements that leave' "count(*) > 200 FROM coupon_notification_history"
}

# late_behind announcements lane: sets LATE, seconds
late_behind() {
    store_announcements "$1" "$2"
    query "DELETE FROM coupon_template WHERE id = 2;
           INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
           VALUES (2, 'soon', 1000, 10, 'published', now() + interval '5 min 3 s');
           SELECT coupon_remind_create(2, 1, 'sms', 5)" > /dev/null
    wait_for 120 'the reminder' "count(*) = 1 FROM coupon_notification_history WHERE kind = 'reminder' AND state = 'delivered'"
    LATE=$(query "SELECT extract(epoch FROM sent_at - due_at) FROM coupon_notification_history WHERE kind = 'reminder'")
}

behind_announcements() {
    local late=() order=() many=100000 few=3000

    [[ $QUICK == no ]] || many=20000
    query "INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
           VALUES (1, 'given', 1000, 10, 'published', now())"
    query "SELECT coupon_channel_set('sms', 'http://127.0.0.1:$NGINX_PORT/limited/', user_id_is_address => true)" > /dev/null
    for _ in 1 2 3; do
        late_behind "$many" 64
        late+=("$LATE")
        late_behind "$few" 0
        order+=("$LATE")
        say "late by ${late[-1]} s behind $many announcements, ${order[-1]} s in one lane with $few"
    done
    row in_time 1 "late by, $(commas "$many") announcements wait for 128 answers a second" \
        "$(milliseconds "$(awk -v s="$(median "${late[@]}")" 'BEGIN {print 1000 * s}')")" \
        "in the order of time with $(commas "$few")" \
        "$(milliseconds "$(awk -v s="$(median "${order[@]}")" 'BEGIN {print 1000 * s}')")"
}

# late_beside tasks lines: sets LATE, seconds, of a reminder a second after so many tasks
late_beside() {
    FIRST_USER=$((FIRST_USER + ($1 + 1) * $2))
    query "TRUNCATE coupon_notification, coupon_notification_history, coupon_remind;
           DELETE FROM coupon_template WHERE id = 2;
           INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
           VALUES (2, 'soon', 1000, 10, 'published', now() + interval '1 day');
           SELECT coupon_remind_create(2, 1, 'sms', 5)" > /dev/null
    query "DO \$\$
           DECLARE
               t record;
           BEGIN
               FOR i IN 1..$1 LOOP
                   SELECT * INTO t FROM coupon_task_create('task ' || i, 3);
                   EXECUTE format('INSERT INTO %s (user_id) SELECT ($FIRST_USER + %s::bigint * $2 + g)::text FROM generate_series(1, $2) g', t.stage, i);
                   PERFORM coupon_task_submit(t.task_id, 'infinity');
               END LOOP;
           END \$\$" > /dev/null
    query "BEGIN;
           UPDATE coupon_task SET send_at = now() + interval '2 s' WHERE state = 'pending';
           UPDATE coupon_template SET receive_start = now() + interval '5 min 3 s' WHERE id = 2;
           SELECT coupon_worker_wake();
           COMMIT" > /dev/null
    wait_for 120 'the reminder' "count(*) = 1 FROM coupon_notification_history WHERE kind = 'reminder' AND state = 'delivered'"
    LATE=$(query "SELECT extract(epoch FROM sent_at - due_at) FROM coupon_notification_history WHERE kind = 'reminder'")
    query "SELECT count(*) FROM coupon_task t, coupon_task_cancel(t.id) WHERE t.state IN ('pending', 'in_progress');
           DO \$\$
           DECLARE
               stage regclass;
           BEGIN
               FOR stage IN SELECT oid FROM pg_class WHERE relname ~ '^coupon_stage_[0-9]+\$' AND relkind = 'r' LOOP
                   EXECUTE 'DROP TABLE ' || stage;
               END LOOP;
           END \$\$" > /dev/null
}

beside_tasks() {
    local late=() alone=() tasks=200 lines=30000

    [[ $QUICK == no ]] || tasks=40 lines=5000
    query "INSERT INTO coupon_template (id, name, discount_value, status) VALUES (3, 'for all', 10, 'published')"
    for _ in 1 2 3; do
        late_beside "$tasks" "$lines"
        late+=("$LATE")
        late_beside 0 1
        alone+=("$LATE")
        say "late by ${late[-1]} s beside $tasks tasks, ${alone[-1]} s without"
    done
    row in_time 1 "late by, $tasks tasks of $(commas "$lines") lines due a second before" \
        "$(milliseconds "$(awk -v s="$(median "${late[@]}")" 'BEGIN {print 1000 * s}')")" \
        'without' \
        "$(milliseconds "$(awk -v s="$(median "${alone[@]}")" 'BEGIN {print 1000 * s}')")"
}

start_mail_server() {
    python3 -c '
import asyncio
from aiosmtpd.smtp import SMTP

class Handler:
    async def handle_DATA(self, server, session, envelope):
        await asyncio.sleep(0.5)
        return "250 OK"

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(Handler(), hostname="relay.test"), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(1e9)

asyncio.run(main())' > "$WORK/mail.port" &
    MAIL_PID=$!
    until [[ -s $WORK/mail.port ]]; do sleep 0.05; done
    MAIL_PORT=$(< "$WORK/mail.port")
}

# send_mails max_in_flight: sets RATE and COUNT
send_mails() {
    query "TRUNCATE coupon_notification, coupon_notification_history"
    query "SELECT coupon_channel_set('email', 'smtp://127.0.0.1:$MAIL_PORT', mail_from => 'shop@example.test', max_in_flight => $1)" > /dev/null
    wait_for 30 'a mailer' "EXISTS (SELECT FROM coupon_stat_worker WHERE kind = 'mailer' AND state = 'running')"
    query "SELECT count(*) FROM generate_series(1, $MAILS) n, coupon_channel_test('email', 'user' || n || '@example.test')" > /dev/null
    wait_for 120 'all mails' "count(*) = $MAILS FROM coupon_notification_history WHERE state = 'delivered' AND attempts = 1"
    RATE=$(query "SELECT $MAILS / extract(epoch FROM max(ended_at) - min(due_at)) FROM coupon_notification_history")
    COUNT=$MAILS
}

run_mails_at_once() {
    send_mails "$MAILS"
}

run_mails_one_by_one() {
    send_mails 1
}

mails() {
    start_mail_server
    alternate 1 mails_at_once mails_one_by_one
    row_of in_time 1 "$MAILS mails, 500 ms each at the server" mails_at_once 'one after the other' mails_one_by_one
    end_process TERM "$MAIL_PID"
    MAIL_PID=
}

part_in_time() {
    local WARM_UP=0 ROUNDS=$ROUNDS

    ((ROUNDS <= 3)) || ROUNDS=3
    fresh_server "coupon.databases = '*'"
    start_nginx
    behind_announcements
    beside_tasks
    mails
    stop_receivers
}
