-- A table like user_coupon with its two unique indexes, without its triggers
-- and without an index for the watermark.  Variable: name.
CREATE TABLE :name (LIKE user_coupon INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
                    PRIMARY KEY (user_id, id),
                    UNIQUE (template_id, user_id, receive_seq)) PARTITION BY HASH (user_id);
SELECT format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS 32, REMAINDER %s)',
              :'name' || '_' || n, :'name', n)
FROM generate_series(0, 31) n \gexec
