"""A bound query to a prepared statement, and what is kept of one between runs."""
