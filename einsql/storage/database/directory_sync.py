"""Syncs the directory entries of DuckDB's files where DuckDB itself does not.

DuckDB forces what its files hold to the disk, and not the directory that has their names. After
a power loss a log that it has made may be nameless, and one that it has removed may be back.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress

from einsql.storage.files.drafts import synchronise

_PASSING = (".wal.checkpoint", ".wal.recovery")
"""Files that DuckDB has only while it writes its log into its file."""
_PIN = getattr(os, "O_PATH", None)
"""Opens a file so that closing it releases no lock of the process; Linux has it."""


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Names:
    """The names of the files that belong to a database file.

    Args:
        path: The database file, absolute.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path)
        self._log = f"{path}.wal"
        self._passing = tuple(f"{path}{ending}" for ending in _PASSING)
        self._durable = -1
        """Inode of the log whose name is durable; 0 if there is durably none."""
        self._pin: int | None = None
        self._lock = threading.Lock()

    def persist(self) -> None:
        """Forces the names to the disk if one has come, gone or changed since the last time.

        If none has, that is three system calls, of 1 or 2 µs each.

        Raises:
            OSError: The disk fails.
        """
        if self._inode() != self._durable or any(os.access(p, os.F_OK) for p in self._passing):
            with self._lock:
                self._persist()

    def _persist(self) -> None:
        before, self._pin = self._pin, None
        if _PIN is not None:
            with suppress(OSError):
                # While it is pinned, no other log gets its inode.
                self._pin = os.open(self._log, _PIN | os.O_CLOEXEC)
        if before is not None:
            os.close(before)
        # In this order: what changes meanwhile is seen the next time.
        inode = self._inode()
        self._durable = -1
        synchronise(self._folder)
        if self._pin is None or os.fstat(self._pin).st_ino == inode:
            self._durable = inode

    def _inode(self) -> int:
        try:
            return os.stat(self._log).st_ino
        except OSError:
            return 0

    def close(self) -> None:
        """Lets the log go."""
        with self._lock:
            self._durable = -1
            if self._pin is not None:
                os.close(self._pin)
                self._pin = None


def create(path: str, make: Callable[[str], None]) -> None:
    """Makes a file that is there whole or not at all; one that is there already stays.

    Nothing is made where the file system has no hard links.

    Args:
        path: The file, absolute.
        make: Makes it under another name.

    Raises:
        OSError: It cannot be made.
    """
    folder, title = os.path.split(path)
    _remove_left(folder, title)
    part = f"{path}.part-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        make(part)
        with open(part, "r+b") as file:
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first
            os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    finally:
        with suppress(OSError):
            os.unlink(part)
    synchronise(folder)


def _remove_left(folder: str, title: str) -> None:
    """Removes what processes of this machine that were killed have left of a file to be made."""
    parts = re.compile(re.escape(title) + r"\.part-(\d+)-[0-9a-f]{8}(\.wal)?")
    with suppress(OSError):
        for name in os.listdir(folder):
            left = parts.fullmatch(name)
            if left is not None and not _runs(int(left[1])):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
