"""Settings of a session that are forwarded to DuckDB."""

from __future__ import annotations

import os

from einsql.core.quoting import literal
from einsql.core.settings import Settings

LEAST = 2**25
"""Least memory limit of DuckDB in bytes; with less, few of its queries run."""

SETTINGS = (
    "SET python_enable_replacements = false",
    "SET enable_progress_bar = false",
)
"""Settings of every new connection, in addition to those that the session forwards."""


def forwarded(settings: Settings, limit: int | None, scratch: str, directory: str) -> list[str]:
    """The statements that forward the session's settings to DuckDB.

    Args:
        settings: The session's settings.
        limit: The least memory limit in bytes of the sessions that share the database.
        scratch: A directory for DuckDB alone, in the temporary directory. Statements may write
            to DuckDB's temporary directory even if external access is off.
        directory: The directory of temporary files with which DuckDB has opened the database.
    """
    statements = ["RESET memory_limit", "RESET max_temp_directory_size"]
    if limit is not None:
        statements[0] = f"SET memory_limit = '{max(LEAST, limit // 2)}B'"
    if settings.max_temp_directory_size is not None:
        statements[1] = f"SET max_temp_directory_size = '{settings.max_temp_directory_size}B'"
    if settings.temp_directory is not None:
        directory = settings.temp_directory and os.path.join(settings.temp_directory, scratch)
    statements.append(f"SET temp_directory = {literal(directory)}")
    if not settings.enable_external_access:
        statements.append("SET enable_external_access = false")
    return statements


def opened(directory: str) -> list[str]:
    """The statements that would change nothing in a database that DuckDB has just opened."""
    return forwarded(Settings(memory_limit=None), None, "", directory)
