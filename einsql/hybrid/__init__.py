"""Statements that are split between DuckDB and einsql."""
