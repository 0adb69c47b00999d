"""Temporary files in place of memory: mapped, and unnamed if the system supports it.

The system removes an unnamed file after the last array that maps it, and at the end of its
process. Its pages belong to the system's file cache, which writes them to the disk when memory
gets scarce; they are not anonymous memory.
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
"""Default fraction of a disk's free space that files may take."""
_PREFIX, _SUFFIX = "einsql-", ".tmp"
_OPEN_FILES = "/proc/self/fd"
"""The directory in which Linux lists a process's open files."""
_FIXED = 0x10
"""Linux's MAP_FIXED, which the module `mmap` lacks."""
_File = tuple[int, int]
"""The device and inode of an unnamed file."""


class Space:
    """The temporary files of a session.

    Attributes:
        find: Returns the directory of new files, None to refuse them. The directory is created
            when it is needed, and a created one is removed with its last file.
        most: Greatest total size in bytes; None for nearly all free space.
        used: Total size in bytes.
    """

    def __init__(self, find: Callable[[], str | None], most: int | None = None) -> None:
        self.find = find
        self.most = most
        self.used = 0
        self._created: str | None = None
        self._lock = threading.RLock()  # an array may be freed while another one is created
        self._files: dict[int, tuple[weakref.ref[mmap.mmap], _File]] = {}
        forks.register(self)

    def forked(self, _: forks.Refusal) -> None:
        """After a fork, in the child: makes the arrays private and leaves the directory alone."""
        self._created = None
        self._lock = threading.RLock()
        arrays = [(mapping, file) for known, file in self._files.values() if (mapping := known())]
        _make_private(arrays)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of zeros in C order, in a file of its own.

        Raises:
            OperationalError: Temporary files are disabled, or there is no space for the file.
        """
        nbytes = prod(shape) * dtype.itemsize
        return self.block(nbytes)[:nbytes].view(dtype).reshape(shape)

    def block(self, nbytes: int) -> np.ndarray:
        """At least one byte in a new file; raises as `empty`."""
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
            raise _refusal(directory, nbytes, error) from error
        self._files[id(mapping)] = weakref.ref(mapping), file
        weakref.finalize(mapping, self._freed, nbytes, id(mapping)).atexit = False
        return np.frombuffer(mapping, np.uint8)

    def require(self, nbytes: int) -> str:
        """Returns the directory for a file of this number of bytes, or refuses the file.

        Raises:
            OperationalError: The setting or the disk has no space for the file.
        """
        directory = self.find()
        if directory is None:
            raise OperationalError(
                f"There is not enough memory: {data_size(nbytes)} would go to a temporary file, "
                "and temp_directory names no directory",
                hint="SET temp_directory = '…' sets one, SET memory_limit allows more memory.",
            )
        if self.most is None:
            free = _free(directory)
            if free is not None and nbytes > free * MOST_OF_DISK:
                raise OperationalError(
                    f"There is not enough memory: {data_size(nbytes)} would go to a temporary "
                    f"file, and {data_size(free)} are free in '{directory}' "
                    "(max_temp_directory_size)",
                    hint="SET temp_directory sets another directory; narrow keys with WHERE, or "
                    "aggregate.",
                )
        elif self.used + nbytes > self.most:
            more = f" beside {data_size(self.used)} there" if self.used else ""
            raise OperationalError(
                f"There is not enough memory: {data_size(nbytes)} would go to a temporary file"
                f"{more}, and max_temp_directory_size is {data_size(self.most)}",
                hint="SET max_temp_directory_size or SET memory_limit allows more.",
            )
        return directory

    def _mapped(self, directory: str, nbytes: int) -> tuple[mmap.mmap, _File]:
        try:
            file = self._opened(directory)
        except FileNotFoundError:  # another session has just removed the directory
            file = self._opened(directory)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, nbytes)  # raises on a full disk, before a SIGBUS
            else:
                os.ftruncate(file, nbytes)
            status = os.fstat(file)
            return mmap.mmap(file, nbytes), (status.st_dev, status.st_ino)
        finally:
            os.close(file)

    def _opened(self, directory: str) -> int:
        if not os.path.isdir(directory):
            os.makedirs(directory, mode=0o700)
            self._created = directory
        if hasattr(os, "O_TMPFILE"):
            try:
                return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
        import tempfile  # takes a few milliseconds, for few systems

        prefix = f"{_PREFIX}{os.getpid()}-"
        file, path = tempfile.mkstemp(_SUFFIX, prefix, directory)
        with suppress(OSError):  # refused for open files on some systems; `sweep` removes it
            os.unlink(path)
        return file

    def _freed(self, nbytes: int, key: int) -> None:
        self._files.pop(key, None)
        with self._lock:
            self.used -= nbytes
            directory, empty = self._created, self.used == 0
            if empty:
                self._created = None
        if empty and directory is not None:
            _remove(directory)


def _make_private(arrays: Sequence[tuple[mmap.mmap, _File]]) -> None:
    """Remaps files privately at the same addresses, so that writes stay in the child.

    A forked child shares mapped files with its parent, so its writes would change the parent's
    results.

    Args:
        arrays: The mappings of this process with their files.
    """
    if not arrays or not os.path.isdir(_OPEN_FILES):
        return
    numbers = {}
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError):  # the directory's own descriptor is closed by now
            status = os.fstat(int(name))
            numbers[status.st_dev, status.st_ino] = int(name)
    remap = ctypes.CDLL(None, use_errno=True).mmap
    remap.restype = ctypes.c_void_p
    remap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _FIXED
    for mapping, file in arrays:
        mapped = np.frombuffer(mapping, np.uint8)
        address = remap(mapped.ctypes.data, len(mapped), access, flags, numbers[file], 0)
        if address != mapped.ctypes.data:
            raise OSError(ctypes.get_errno(), "a temporary file cannot be mapped")


def sweep(directory: str) -> None:
    """Removes the files of killed processes from a directory of temporary files.

    An empty directory is removed, too. Files of running processes stay.
    """
    try:
        paths = list(Path(directory).glob(f"{_PREFIX}*{_SUFFIX}"))
    except OSError:
        return
    for path in paths:
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if not (owner.isdigit() and is_running(int(owner))):
            with suppress(OSError):  # another user's file stays
                path.unlink(missing_ok=True)
    _remove(directory)


def is_mapped(owner: object) -> bool:
    """True if an owner of memory, from `array_ownership.owner`, is a mapped file."""
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, mmap.mmap)


def is_running(process: int) -> bool:
    """True if a process with an id exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


def _remove(directory: str) -> None:
    with suppress(OSError):  # in use, or already removed
        os.rmdir(directory)


def _free(directory: str) -> int | None:
    """Free bytes on the disk of a directory, which may not exist yet; None if they are unknown."""
    import shutil  # takes a few milliseconds, for few statements

    path = os.path.abspath(directory)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _refusal(directory: str, nbytes: int, error: OSError) -> OperationalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OperationalError(
            f"There is not enough memory: the disk of '{directory}' has no room for a temporary "
            f"file of {data_size(nbytes)}",
            hint="SET temp_directory sets another directory, SET memory_limit allows more memory.",
        )
    if error.errno == errno.ENOMEM:
        return OperationalError(f"There is not enough memory to map {data_size(nbytes)}")
    return OperationalError(
        f"No temporary file can be created in '{directory}': {error.strerror or error}",
        hint="SET temp_directory sets another directory.",
    )
