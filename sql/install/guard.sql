/* The extension coupon: made from the parts in sql/install/ by make. */

\echo Use "CREATE EXTENSION coupon" to load this file. \quit

