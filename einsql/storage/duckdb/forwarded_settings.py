"""Settings of a session that DuckDB follows, too."""

from __future__ import annotations

import os

from einsql.core.quoting import literal
from einsql.core.settings import Settings

LEAST = 2**25
"""Bytes that DuckDB gets of any memory limit; it does little with fewer."""

SETTINGS = (
    "SET python_enable_replacements = false",
    "SET enable_progress_bar = false",
)
"""Settings of every new connection, in addition to those that the session forwards."""


def passed_on(settings: Settings, limit: int | None, scratch: str = "duckdb") -> list[str]:
    """Statements that bring the session's settings to DuckDB.

    Args:
        settings: The session's.
        limit: The least memory limit of the sessions that share its database.
        scratch: The directory in the temporary one that is DuckDB's alone: where it may write
            temporary files, statements may write as well, whatever else they may not.
    """
    statements = []
    if limit is not None:
        statements.append(f"SET memory_limit = '{max(LEAST, limit // 2)}B'")
    if settings.temp_directory is not None:
        where = settings.temp_directory and os.path.join(settings.temp_directory, scratch)
        statements.append(f"SET temp_directory = {literal(where)}")
    if settings.max_temp_directory_size is not None:
        statements.append(f"SET max_temp_directory_size = '{settings.max_temp_directory_size}B'")
    if not settings.enable_external_access:
        statements.append("SET enable_external_access = false")
    return statements
