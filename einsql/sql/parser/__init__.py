"""Parsing of SQL text to sqlglot trees, and scans of text that need no parser."""
