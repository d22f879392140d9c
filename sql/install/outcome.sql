-- Outcomes

CREATE FUNCTION @extschema@.coupon_outcomes()
    RETURNS TABLE (code int, outcome text, verbs text, retryable boolean,
                   message_en text, message_zh text)
    LANGUAGE C STABLE PARALLEL SAFE ROWS 31
    AS 'MODULE_PATHNAME', 'coupon_outcomes';
COMMENT ON FUNCTION @extschema@.coupon_outcomes() IS
    'lists the codes that verbs answer, with a message for users';

CREATE FUNCTION @extschema@.coupon_require(code int, outcome text DEFAULT NULL) RETURNS void
    LANGUAGE C STABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'coupon_require';
COMMENT ON FUNCTION @extschema@.coupon_require(int, text) IS
    'raises VC1nn unless the outcome code nn is 0';

