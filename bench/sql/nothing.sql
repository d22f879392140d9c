\set user random(1, :users)
SELECT * FROM bench_nothing(4, :user);
