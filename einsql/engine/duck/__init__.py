"""DuckDB beneath a session."""
