"""What is stored: relations, results, databases, files, DuckDB's tables, spilled arrays."""
