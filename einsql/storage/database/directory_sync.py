"""Syncs the directory entries of DuckDB's files where DuckDB itself does not.

DuckDB syncs the content of its files, but not their directory. After a power loss a new log may
have lost its name, and a removed log may be back.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress

from einsql.storage.files.drafts import synchronise
from einsql.storage.memory.spill_files import is_running

_PASSING = (".wal.checkpoint", ".wal.recovery")
"""Suffixes of files that exist only during a checkpoint."""
_PIN = getattr(os, "O_PATH", None)
"""Flag of Linux: closing such a descriptor releases no lock of the process."""


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
        """Inode of the log whose name is durable; 0 if its absence is durable."""
        self._pin: int | None = None
        self._lock = threading.Lock()

    def persist(self) -> None:
        """Syncs the directory if a name was added, removed or replaced since the last call.

        Without a change this takes three system calls of 1 to 2 µs each.

        Raises:
            OSError: The sync fails.
        """
        if self._inode() != self._durable or any(os.access(p, os.F_OK) for p in self._passing):
            with self._lock:
                self._persist()

    def _persist(self) -> None:
        before, self._pin = self._pin, None
        if _PIN is not None:
            with suppress(OSError):
                # While the file is pinned, no other log can reuse its inode.
                self._pin = os.open(self._log, _PIN | os.O_CLOEXEC)
        if before is not None:
            os.close(before)
        # In this order: the next call detects a change made meanwhile.
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
        """Releases the pinned log."""
        with self._lock:
            self._durable = -1
            if self._pin is not None:
                os.close(self._pin)
                self._pin = None


def create(path: str, make: Callable[[str], None]) -> None:
    """Creates a file atomically; an existing file stays.

    Does nothing on a file system without hard links.

    Args:
        path: The file, absolute.
        make: Writes the file under a temporary name.

    Raises:
        OSError: The file cannot be created.
    """
    folder, title = os.path.split(path)
    _remove_left(folder, title)
    part = f"{path}.part-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        make(part)
        with open(part, "r+b") as file:
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process has created it
            os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    finally:
        with suppress(OSError):
            os.unlink(part)
    synchronise(folder)


def _remove_left(folder: str, title: str) -> None:
    """Removes partial files of killed processes of this machine."""
    parts = re.compile(re.escape(title) + r"\.part-(\d+)-[0-9a-f]{8}(\.wal)?")
    with suppress(OSError):
        for name in os.listdir(folder):
            left = parts.fullmatch(name)
            if left is not None and not is_running(int(left[1])):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
