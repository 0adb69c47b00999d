"""The files of compiled kernels in a private directory: one per kernel."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from einsql.core.file_ownership import read_private
from einsql.kernels.compiler.object_code import ObjectCode

try:
    import fcntl
except ImportError:  # on Windows two processes may compile the same kernel
    fcntl = None  # type: ignore[assignment]  # mypy takes the name for a module

LONGEST = 10.0
"""Seconds after which a process compiles a kernel although another one has begun it; most kernels
take less than a second."""
LOOK = 0.01
"""Seconds between two checks whether another process has finished."""


def read(home: str, key: str) -> ObjectCode | None:
    """Reads a kernel; None if it is absent, damaged, or not this user's alone.

    Args:
        home: The directory.
        key: The kernel's name in it.
    """
    try:
        return ObjectCode.from_bytes(read_private(_path(home, key)))
    except (OSError, ValueError):
        return None


def write(home: str, key: str, code: ObjectCode) -> None:
    """Stores a kernel, atomically for other processes; without effect if the disk is full."""
    with suppress(OSError):
        handle, name = tempfile.mkstemp(dir=home, prefix=".new-")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(code.to_bytes())
            os.replace(name, _path(home, key))
        except BaseException:
            os.unlink(name)
            raise


@contextmanager
def alone(home: str, key: str) -> Iterator[None]:
    """Context in which no other process compiles a kernel, unless one takes `LONGEST` seconds."""
    try:
        lock = os.open(os.path.join(home, f"{key[:2]}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # the directory was removed
        yield
        return
    try:
        _acquire(lock)
        yield
    finally:
        os.close(lock)  # and releases it


def _acquire(lock: int) -> None:
    end = time.monotonic() + LONGEST
    while fcntl is not None and time.monotonic() < end:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK)
        except OSError:  # a file system without locks
            return None


def _path(home: str, key: str) -> str:
    return os.path.join(home, f"k_{key}.kernel")
