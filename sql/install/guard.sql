/* The extension coupon: made from the parts in sql/install/ by make. */

\echo Use "CREATE EXTENSION coupon" to load this file. \quit

-- Whoever may create in the schema of the extension can put nothing between us and
-- what we mean: names of ours are written with their schema, all others are found in
-- pg_catalog or nowhere.  Functions pin their own path.
SET LOCAL search_path = pg_catalog, pg_temp;

