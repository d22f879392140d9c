-- Templates of the benchmark, by number, and what the other ways need.

INSERT INTO coupon_template (id, name, total_stock, discount_value, status, receive_start)
VALUES (1, 'hot', 2000000000, 10, 'published', now()),
       (2, 'hot, in batches', 2000000000, 10, 'published', now()),
       (3, 'sold out', 1, 10, 'published', now()),
       (4, 'not started', 1000, 10, 'published', now() + '1 day'),
       (5, 'everybody has one', 1000000, 10, 'published', now());

-- The textbook way: the stock is a column of one row.
CREATE TABLE bench_stock (template_id bigint PRIMARY KEY, stock bigint NOT NULL);
INSERT INTO bench_stock VALUES (101, 2000000000);

-- The slotted way: the stock is divided among 256 rows.  A claim looks at a
-- window of 128 from a random start, so that 100 clients always find one free.
CREATE TABLE bench_slot (
    template_id bigint,
    slot        int,
    stock       bigint NOT NULL,
    PRIMARY KEY (template_id, slot)
) WITH (fillfactor = 50);
INSERT INTO bench_slot SELECT 102, n, 8000000 FROM generate_series(0, 255) n;

CREATE SEQUENCE bench_batch;

VACUUM ANALYZE coupon_template, bench_stock, bench_slot;
