-- A row such as coupon_receive answers with, of constants.
\set user random(1, :users)
SELECT 5 AS code, 'not_started'::text AS outcome, NULL::bigint AS user_coupon_id,
       NULL::int AS receive_seq, NULL::timestamptz AS use_end, false AS repeated;
