# Refusals by what they cost a processor: machine instructions of the server, as
# valgrind counts them.  On a machine that others use the rates of the part
# "refusals" vary by a fifth from run to run; this comes out the same each time,
# whatever else runs.  It does not see waiting for memory or for the network.
#
# shellcheck shell=bash disable=SC2034

# instructions_of statement: sets COUNT, those of one EXECUTE of it.  Two runs of
# a server for a single user tell apart what is only done at the start.
instructions_of() {
    local calls totals=()

    for calls in 200 1200; do
        {
            echo "PREPARE refusal(bigint) AS $1;"
            for ((i = 1; i <= calls; i++)); do echo "EXECUTE refusal($i);"; done
        } > "$WORK/calls.sql"
        valgrind --tool=callgrind --callgrind-out-file=/dev/null \
            "$BIN/postgres" --single -D "$WORK/data" -c jit=off postgres \
            < "$WORK/calls.sql" > /dev/null 2> "$WORK/valgrind.log" || die "valgrind: $(tail -1 "$WORK/valgrind.log")"
        totals+=("$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$WORK/valgrind.log")")
    done
    COUNT=$(((totals[1] - totals[0]) / 1000))
}

# instructions_row what statement
instructions_row() {
    instructions_of "$2"
    row instructions 1 "$1" "$(commas "$COUNT")" 'a function that looks at nothing' "$(commas "$NOTHING")" \
        "$(ratio "$COUNT" "$NOTHING")"
}

part_instructions() {
    local NOTHING

    command -v valgrind > /dev/null || die "no valgrind"
    prepare_refusals
    end_process INT "$SERVER_PID"
    SERVER_PID=
    instructions_of 'SELECT * FROM bench_nothing(4, $1)'
    NOTHING=$COUNT
    # shellcheck disable=SC2016
    {
        instructions_row 'SELECT 1' 'SELECT 1'
        instructions_row 'not started' 'SELECT * FROM coupon_receive(4, $1)'
        instructions_row 'sold out' 'SELECT * FROM coupon_receive(3, $1)'
        instructions_row 'unknown' 'SELECT * FROM coupon_receive(1000000 + $1, 1)'
        instructions_row 'over limit' 'SELECT * FROM coupon_receive(5, $1)'
    }
}
