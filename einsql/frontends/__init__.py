"""Interfaces to einsql: console, array tracing, DuckDB, SQLAlchemy and Harlequin."""
