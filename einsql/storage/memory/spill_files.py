"""Temporary files in place of memory: mapped, and unnamed where the system allows.

A file that has lost its name, or never had one, goes with the last array that shows it, and
with its process, however that ends. Its pages belong to the system's file cache: it writes
them to the disk where memory gets scarce, and they are no anonymous memory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from einsql.core import forks
from einsql.core.units import data_size
from einsql.errors import OperationalError

MOST_OF_DISK = 0.9
"""The part of what is free on a disk that files may take unless told."""
_PREFIX, _SUFFIX = "einsql-", ".tmp"
_OPEN_FILES = "/proc/self/fd"
"""The directory in which Linux lists open files; other systems have another one or none."""
_FIXED = 0x10
"""Linux's MAP_FIXED, which the module `mmap` does not have."""
_File = tuple[int, int]
"""A file without a name: its device and its number there."""


class Space:
    """Room for temporary files.

    Attributes:
        find: Says where new ones are; None where there shall be none. The directory is made
            when it is needed, and what was made here goes with the last of them.
        most: Bytes they may take together; None for nearly all that is free.
        used: Bytes they take.
    """

    def __init__(self, find: Callable[[], str | None], most: int | None = None) -> None:
        self.find = find
        self.most = most
        self.used = 0
        self._made: str | None = None
        self._lock = threading.RLock()  # an array may go while one is made
        self._files: dict[int, tuple[weakref.ref[mmap.mmap], _File]] = {}
        forks.register(self)

    def forked(self, _: forks.Refusal) -> None:
        """In a child of its process: arrays become its own, and the directory is left alone."""
        self._made = None
        self._lock = threading.RLock()
        shown = [(mapping, file) for known, file in self._files.values() if (mapping := known())]
        _make_private(shown)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of zeros in C order, in a file of its own.

        Raises:
            OperationalError: There may be no such file, or there is no room for it.
        """
        nbytes = prod(shape) * dtype.itemsize
        return self.block(nbytes)[:nbytes].view(dtype).reshape(shape)

    def block(self, nbytes: int) -> np.ndarray:
        """Bytes in a file of their own, one at least; raises as `empty`."""
        nbytes = max(1, nbytes)
        directory = self.require(nbytes)
        with self._lock:
            self.used += nbytes
        try:
            mapping, file = self._mapped(directory, nbytes)
        except BaseException as error:
            self._freed(nbytes, 0)
            if not isinstance(error, OSError):
                raise
            raise _refused(directory, nbytes, error) from error
        self._files[id(mapping)] = weakref.ref(mapping), file
        weakref.finalize(mapping, self._freed, nbytes, id(mapping)).atexit = False
        return np.frombuffer(mapping, np.uint8)

    def require(self, nbytes: int) -> str:
        """Refuses what there is no room for; says where a file of so many bytes may be.

        Raises:
            OperationalError: There is none, by the setting or on the disk.
        """
        directory = self.find()
        if directory is None:
            raise OperationalError(
                f"There is not enough memory: {data_size(nbytes)} would go to a temporary file, "
                "and temp_directory names no place for it",
                hint="SET temp_directory = '…' names one, SET memory_limit keeps more in memory.",
            )
        if self.most is None:
            free = _free(directory)
            if free is not None and nbytes > free * MOST_OF_DISK:
                raise OperationalError(
                    f"There is not enough memory: {data_size(nbytes)} would go to a temporary "
                    f"file, and {data_size(free)} are free in '{directory}' "
                    "(max_temp_directory_size)",
                    hint="SET temp_directory names another place; narrow keys with WHERE, or "
                    "aggregate.",
                )
        elif self.used + nbytes > self.most:
            more = f" beside {data_size(self.used)} there" if self.used else ""
            raise OperationalError(
                f"There is not enough memory: {data_size(nbytes)} would go to a temporary file"
                f"{more}, and max_temp_directory_size is {data_size(self.most)}",
                hint="SET max_temp_directory_size allows more, SET memory_limit keeps more in "
                "memory.",
            )
        return directory

    def _mapped(self, directory: str, nbytes: int) -> tuple[mmap.mmap, _File]:
        try:
            file = self._opened(directory)
        except FileNotFoundError:  # another session has just removed it
            file = self._opened(directory)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, nbytes)  # a full disk raises now, not SIGBUS later
            else:
                os.ftruncate(file, nbytes)
            status = os.fstat(file)
            return mmap.mmap(file, nbytes), (status.st_dev, status.st_ino)
        finally:
            os.close(file)

    def _opened(self, directory: str) -> int:
        """A new file without a name."""
        if not os.path.isdir(directory):
            os.makedirs(directory, mode=0o700)
            self._made = directory
        if hasattr(os, "O_TMPFILE"):
            try:
                return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
        import tempfile  # a few milliseconds, for few systems

        prefix = f"{_PREFIX}{os.getpid()}-"
        file, path = tempfile.mkstemp(_SUFFIX, prefix, directory)
        with suppress(OSError):  # a system that keeps what is open; `sweep` finds it by its name
            os.unlink(path)
        return file

    def _freed(self, nbytes: int, key: int) -> None:
        self._files.pop(key, None)
        with self._lock:
            self.used -= nbytes
            directory, empty = self._made, self.used == 0
            if empty:
                self._made = None
        if empty and directory is not None:
            _remove(directory)


def _make_private(shown: Sequence[tuple[mmap.mmap, _File]]) -> None:
    """Remaps files privately at the same addresses, so that writes stay in this process.

    A child of a fork shares mapped files with its parent: it would change the parent's results.

    Args:
        shown: Mappings of this process, and their files.
    """
    if not shown or not os.path.isdir(_OPEN_FILES):
        return
    numbers = {}
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError):  # that of the directory itself is closed by now
            status = os.fstat(int(name))
            numbers[status.st_dev, status.st_ino] = int(name)
    remap = ctypes.CDLL(None, use_errno=True).mmap
    remap.restype = ctypes.c_void_p
    remap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _FIXED
    for mapping, file in shown:
        there = np.frombuffer(mapping, np.uint8)
        place = remap(there.ctypes.data, len(there), access, flags, numbers[file], 0)
        if place != there.ctypes.data:
            raise OSError(ctypes.get_errno(), "a temporary file cannot be mapped")


def sweep(directory: str) -> None:
    """Removes what a process that was killed has left in a directory of temporary files.

    The directory goes too if nothing else is in it. Files of processes that run stay.
    """
    try:
        paths = list(Path(directory).glob(f"{_PREFIX}*{_SUFFIX}"))
    except OSError:
        return
    for path in paths:
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if not (owner.isdigit() and _runs(int(owner))):
            with suppress(OSError):  # another user's stays
                path.unlink(missing_ok=True)
    _remove(directory)


def is_mapped(owner: object) -> bool:
    """True for an owner of memory, as `private.owner` finds it, that is a mapped file."""
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, mmap.mmap)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _remove(directory: str) -> None:
    """Removes a directory if nothing is in it."""
    try:
        os.rmdir(directory)
    except OSError:
        return  # in use, or removed already


def _free(directory: str) -> int | None:
    """Bytes that are free where a directory is or will be, if the system tells."""
    import shutil  # a few milliseconds, for few statements

    path = os.path.abspath(directory)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _refused(directory: str, nbytes: int, error: OSError) -> OperationalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OperationalError(
            f"There is not enough memory: the disk of '{directory}' has no room for a temporary "
            f"file of {data_size(nbytes)}",
            hint="SET temp_directory names another place, SET memory_limit keeps more in memory.",
        )
    if error.errno == errno.ENOMEM:
        return OperationalError(f"There is not enough memory to map {data_size(nbytes)}")
    return OperationalError(
        f"No temporary file can be made in '{directory}': {error.strerror or error}",
        hint="SET temp_directory names another place.",
    )
