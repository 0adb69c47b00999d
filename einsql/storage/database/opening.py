"""Opening database files; connections of one process to one file share its database."""

from __future__ import annotations

import os
import threading
from weakref import WeakValueDictionary

from einsql.core import forks
from einsql.errors import OperationalError
from einsql.storage.database.catalog_reader import Define
from einsql.storage.database.file import FileDatabase

__all__ = ["open_database"]

_files: WeakValueDictionary[str, FileDatabase] = WeakValueDictionary()
_lock = threading.RLock()
_opening = forks.Undisturbed("opened a database")


def open_database(path: str, read_only: bool, define: Define) -> tuple[FileDatabase, object]:
    """The database of a file; connections of one process share it.

    Args:
        path: The file; it is created if it does not exist.
        read_only: Whether nothing may be written.
        define: Creates a view or macro from its kind, name and text.

    Returns:
        The database, and a token that keeps it open until a session has joined: another thread
        may close its last session meanwhile.

    Raises:
        OperationalError: As `FileDatabase`, or this process has it open in the other mode.
    """
    try:
        real = os.path.realpath(path)
    except ValueError as error:
        raise OperationalError(f"{path!r} cannot be opened: {error}") from None
    ticket = _Ticket()
    with _opening, _lock:
        known = _files.get(real)
        if known is not None and known.joined(ticket):
            if known.read_only != read_only:
                way = "reading only" if known.read_only else "writing"
                raise OperationalError(
                    f"'{path}' is open for {way} in this process",
                    hint=f"Give read_only={known.read_only}, or close the other connections.",
                )
            return known, ticket
        _files[real] = database = FileDatabase(path, read_only, define)
        database.join(ticket)
        return database, ticket


class _Ticket:
    """Reserves the place of a session that is about to join."""


def _forget() -> None:
    """Forgets the parent's open databases in a forked child."""
    global _lock
    _files.clear()
    _lock = threading.RLock()


forks.at_fork(_forget)
