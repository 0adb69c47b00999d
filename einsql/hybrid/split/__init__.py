"""Separates the tensor fragments of a statement from the remaining text for DuckDB."""
