"""DuckDB over one row per element: the yardstick every query is held to."""
