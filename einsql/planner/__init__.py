"""Planning: from a bound query to a prepared statement, and the cache of prepared statements."""
