"""Opens regular files only, as opening a FIFO waits for its writer."""

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
    """The file is not regular; `strerror` names its kind."""


def check_regular(mode: int, path: str) -> None:
    """Refuses a file that is not regular.

    Args:
        mode: The mode from `os.stat`.
        path: The path, for the error.

    Raises:
        IrregularError: The file is not regular.
    """
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "special file")
        raise IrregularError(errno.EINVAL, f"it is no regular file but a {kind}", path)


def open_regular(path: str) -> IO[bytes]:
    """Opens a regular file for reading, without waiting.

    Raises:
        IrregularError: The file is not regular.
        OSError: The file cannot be opened.
    """
    # Checked before opening: opening a device may have effects, and a socket's error has no path.
    check_regular(os.stat(path).st_mode, path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    file = os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb")
    try:
        check_regular(os.fstat(file.fileno()).st_mode, path)  # the path may have been replaced
    except BaseException:
        file.close()
        raise
    return file
