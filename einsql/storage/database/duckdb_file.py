"""The DuckDB file of a database: created atomically, opened, its errors translated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from einsql.core import forks
from einsql.errors import OperationalError
from einsql.storage.database.directory import writing
from einsql.storage.database.directory_sync import create
from einsql.storage.duckdb.failures import is_cancelled
from einsql.storage.files.mapped import refusing
from einsql.storage.files.regular_files import check_regular

if TYPE_CHECKING:
    import duckdb


def is_there(path: str) -> bool:
    """True if the file exists and is not empty."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def make_empty(path: str, real: str) -> None:
    """Creates an empty DuckDB file atomically: a killed process leaves no partial file.

    Raises:
        OperationalError: The file cannot be written.
    """
    import duckdb  # as below

    with writing(path), suppress(duckdb.Error):  # opening the file reports the error with its place
        create(real, lambda part: duckdb.connect(part).close())


_BESIDE = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""Suffixes of the files that DuckDB opens."""


def check_kinds(path: str, real: str) -> None:
    """Refuses a FIFO or device under a name that DuckDB opens: opening a FIFO may block for ever.

    Raises:
        OperationalError: One of them is no regular file.
    """
    for end in _BESIDE:
        with suppress(OSError):  # DuckDB says why a file cannot be found
            mode = os.stat(f"{real}{end}").st_mode
            with refusing(f"{path}{end}"):
                check_regular(mode, path)


def open_duckdb(path: str, real: str, read_only: bool) -> duckdb.DuckDBPyConnection:
    """Opens a file with DuckDB.

    Raises:
        OperationalError: Another process has opened it, or DuckDB cannot open it.
    """
    import duckdb  # needed for database files and tables only

    try:
        return duckdb.connect(_spelled(real), read_only=read_only)
    except Exception as error:  # DuckDB's own errors of several kinds
        if is_cancelled(error):
            raise
        text = reason_of(error)
        if forks.depth() and "Unique file handle conflict" in text:
            raise OperationalError(
                f"'{path}' is open in another process (process {forks.parent()}), or was when that "
                "process forked this one",
                hint="Close it before the fork, open it with read_only=True in both, or start "
                "this process by multiprocessing's 'spawn' or 'forkserver'.",
            ) from None
        if "Conflicting lock" in text:
            holder = re.search(r"PID (\d+)", text)
            who = f" (process {holder[1]})" if holder else ""
            raise OperationalError(
                f"'{path}' is open in another process{who}",
                hint="One process may write to a database, or any number may read it: close it "
                "there, or open it with read_only=True in all of them.",
            ) from None
        raise OperationalError(f"'{path}' cannot be opened: {text}") from None


def _spelled(real: str) -> str:
    """The spelling of a path that is passed to DuckDB.

    DuckDB has one instance for each spelling of a path, and a child of a fork inherits those of
    its parent: another spelling gives it one of its own, which needs the lock on the file.
    """
    depth = forks.depth()
    folder, name = os.path.split(real)
    return f"duckdb:{os.path.join(folder, './' * depth)}{name}" if depth else real


@contextmanager
def translating(path: str, what: str) -> Iterator[None]:
    """Translates DuckDB's errors to OperationalError."""
    import duckdb  # it is open

    try:
        yield
    except duckdb.Error as error:
        raise OperationalError(f"'{path}' {what}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """The message of a DuckDB error without its kind."""
    lines = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"^[\w ]+ Error: ", "", lines[0])
