-- Draws a user as the others do: pgbench's share of the work is the same.
\set user random(1, :users)
SELECT 1;
