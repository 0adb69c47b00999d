"""Opening regular files, and nothing else: opening a FIFO waits for its writer."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


class IrregularError(OSError):
    """The file is no regular one; `strerror` says what it is."""


def check_regular(mode: int, path: str) -> None:
    """Refuses what is no regular file.

    Args:
        mode: As `os.stat` gives it.
        path: For the error.

    Raises:
        IrregularError: It is something else.
    """
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "special file")
        raise IrregularError(errno.EINVAL, f"it is no regular file but a {kind}", path)


def open_regular(path: str) -> IO[bytes]:
    """Opens a regular file for reading; it never waits.

    Raises:
        IrregularError: It is something else.
        OSError: It cannot be opened.
    """
    # To open a device may move a tape, and a socket has no name in the error.
    check_regular(os.stat(path).st_mode, path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    file = os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb")
    try:
        check_regular(os.fstat(file.fileno()).st_mode, path)  # it may be another one meanwhile
    except BaseException:
        file.close()
        raise
    return file
