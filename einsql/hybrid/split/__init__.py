"""Which parts of a statement are tensor work, and the text that is left for DuckDB."""
