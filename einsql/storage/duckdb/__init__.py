"""DuckDB beneath a session: its connection, relations as streams of rows, its results."""
