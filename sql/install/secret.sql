-- Keys and passwords

CREATE TABLE @extschema@.coupon_secret (
    kind  text CHECK (kind IN ('channel_secret', 'channel_password', 'channel_headers')),
    name  text,
    value text NOT NULL,
    PRIMARY KEY (kind, name),
    CHECK (kind <> 'channel_headers' OR COALESCE(jsonb_typeof(value::jsonb), '') = 'object')
);
COMMENT ON TABLE @extschema@.coupon_secret IS
    'keys and passwords: for the owner of the extension alone, and in its dumps in clear text';
COMMENT ON COLUMN @extschema@.coupon_secret.kind IS 'what it is: key of the signature, password or HTTP headers of a channel';
COMMENT ON COLUMN @extschema@.coupon_secret.name IS 'of what: the name of the channel';

-- No policy: who is granted SELECT by mistake still reads nothing.
ALTER TABLE @extschema@.coupon_secret ENABLE ROW LEVEL SECURITY;
