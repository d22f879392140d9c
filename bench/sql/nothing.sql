\set user random(1, :users)
SELECT * FROM bench_nothing(:template, :user);
