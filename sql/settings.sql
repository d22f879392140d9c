-- what the other tests need of a server; "make check" starts one that has it
DO $$
BEGIN
    IF NOT (coupon_server_state()).preloaded THEN
        RAISE EXCEPTION 'the library is not preloaded'
            USING HINT = (coupon_server_state()).preload_command || ' and restart the server.';
    END IF;
    IF (coupon_server_state()).worker_wanted THEN
        RAISE EXCEPTION 'a worker would fold in this database when the tests do not expect it'
            USING HINT = 'Set coupon.databases so that it does not name this database, and reload.';
    END IF;
    IF current_setting('max_prepared_transactions')::int = 0 THEN
        RAISE EXCEPTION 'max_prepared_transactions is 0' USING HINT = 'Set it to 5 and restart the server.';
    END IF;
END
$$;
