"""Storage: relations, results, databases, files, DuckDB's tables and spilled arrays."""
