SELECT code, outcome, verbs, retryable, message_en, length(message_zh) > 0 AS zh FROM coupon_outcomes();
SELECT coupon_require(0, 'ok');
SELECT coupon_require(0);

\set SHOW_CONTEXT never
DO $$ BEGIN PERFORM coupon_require(2, 'out_of_stock'); EXCEPTION WHEN SQLSTATE 'VC102' THEN RAISE NOTICE 'VC102: %', SQLERRM; END $$;
DO $$ BEGIN PERFORM coupon_require(10); EXCEPTION WHEN SQLSTATE 'VC110' THEN RAISE NOTICE 'VC110: %', SQLERRM; END $$;
\set VERBOSITY default
SELECT coupon_require(99);
SELECT coupon_require(-1);
SELECT coupon_require(NULL);
