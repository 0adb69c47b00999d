"""The default directory of temporary files."""

from __future__ import annotations

import os
from functools import cache


def default_directory(database: str | None) -> str:
    """The default of temp_directory: next to the database file, or the system's directory."""
    return _system_directory() if database is None else f"{database}.tmp"


@cache
def _system_directory() -> str:
    """The system's directory for temporary files, on a disk if possible."""
    import tempfile  # its search for the directory writes a file; few statements need it

    temp, other = tempfile.gettempdir(), "/var/tmp"
    chosen = any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP"))
    if not chosen and in_memory(temp) and not in_memory(other) and os.access(other, os.W_OK):
        return other
    return temp


def in_memory(directory: str) -> bool:
    """True if the files of a directory are in memory; False if the system does not report it."""
    path, mounts = os.path.realpath(directory), {}
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, place, kind, *_ = line.split()
                mounts[place] = kind
    except (OSError, ValueError):
        return False
    while path not in mounts and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return mounts.get(path) in ("tmpfs", "ramfs")
