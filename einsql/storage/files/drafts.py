"""Files that are written atomically, by one process or by several.

A draft is a part file next to its target, created at full size. Processes write disjoint boxes
of it with `pwrite`, so they share no pages on network file systems.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import IO

import numpy as np

from einsql.core import boxes
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import InterfaceError, OperationalError
from einsql.storage.files.tensor import Box, box_of

SLAB = 2**24
"""Bytes that are copied to the file's order of elements at once."""

Begin = Callable[[IO[bytes], Sequence[tuple[str, DType]], tuple[int, ...]], list[int]]
"""Writes a file of arrays of one shape without the elements, and returns their offsets."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A description of an unfinished file for other processes.

    Attributes:
        path: The target, absolute.
        part: The part file, absolute.
        dtype: The type of the elements.
        shape: The shape of the tensor.
        offset: The offset in bytes of the elements, which are in C order.
    """

    path: str
    part: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int


def drafted(
    path: str, arrays: Sequence[tuple[str, DType]], shape: tuple[int, ...], begin: Begin
) -> list[Draft]:
    """Creates the part file of arrays whose elements are zero.

    Returns:
        A draft for each array; `commit` or `abandon` of one of them applies to the file.

    Raises:
        OperationalError: The file cannot be created.
    """
    target, part = _target(path)
    with writing(path, part), open(part, "xb") as file:
        offsets = begin(file, arrays, shape)
    types = [dtype for _, dtype in arrays]
    return [Draft(target, part, t, shape, at) for t, at in zip(types, offsets, strict=True)]


def write_box(draft: Draft, box: Box, array: np.ndarray) -> None:
    """Writes a box of a draft; boxes of several processes must not overlap.

    A box costs one system call for every run of consecutive elements in the file; adjacent
    complete rows are one run.

    Args:
        draft: A draft from `drafted`, in any process.
        box: int64 (axes, 2), or a slice without a step for each axis.
        array: The elements, with the box's shape and the draft's type.

    Raises:
        OperationalError: The part file does not exist, or the disk is full.
        InterfaceError: The box, shape or dtype is wrong.
    """
    where = box_of(draft.shape, box)
    if array.shape != tuple(boxes.extents(where)) or DType.held(array.dtype) is not draft.dtype:
        raise InterfaceError(
            f"An array of shape {array.shape} and dtype {array.dtype} is not the box "
            f"{where.tolist()} of '{draft.path}'"
        )
    itemsize = draft.dtype.numpy.itemsize
    steps = [prod(draft.shape[n + 1 :]) * itemsize for n in range(len(draft.shape))]
    start = draft.offset + sum(int(lo) * step for lo, step in zip(where[:, 0], steps, strict=True))
    with writing(draft.path), open(draft.part, "r+b", buffering=0) as file:
        for at, slab in _slabs(array, start, steps):
            _put(file.fileno(), slab, at, steps)


def _slabs(array: np.ndarray, at: int, steps: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Parts of an array that are copied at once, with the offsets of their first elements.

    Args:
        array: Any array.
        at: The offset of its first element in bytes.
        steps: Bytes in the file from one element to the next along each axis.
    """
    ready = array.flags.c_contiguous and not _leading(array, steps)
    if ready or array.nbytes <= SLAB:
        yield at, array
        return
    axis = next(n for n, extent in enumerate(array.shape) if extent > 1)
    many = max(1, SLAB // (prod(array.shape[axis + 1 :]) * array.itemsize))
    for first in range(0, array.shape[axis], many):
        part = array[(slice(None),) * axis + (slice(first, first + many),)]
        yield from _slabs(part, at + first * steps[axis], steps)


def _leading(array: np.ndarray, steps: list[int]) -> int:
    """The number of leading axes that are not contiguous in the file."""
    size = array.itemsize
    for axis in range(array.ndim, 0, -1):
        if steps[axis - 1] != size and array.shape[axis - 1] != 1:
            return axis
        size *= array.shape[axis - 1]
    return 0


def _put(file: int, slab: np.ndarray, at: int, steps: list[int]) -> None:
    if not slab.size:
        return
    apart = _leading(slab, steps)
    starts = np.array(at)
    for extent, step in zip(slab.shape[:apart], steps, strict=False):
        starts = starts[..., None] + np.arange(extent, dtype=np.int64) * step
    stored = np.ascontiguousarray(slab, slab.dtype.newbyteorder("<"))
    data = stored.reshape(-1).view(np.uint8).data
    size = prod(slab.shape[apart:]) * slab.itemsize
    for n, start in enumerate(np.ravel(starts).tolist()):
        write_all(file, data[n * size : (n + 1) * size], start)


def write_all(file: int, data: memoryview, at: int) -> None:
    """Writes bytes at an offset of an open file; the file's position does not change.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    while data:  # one call may write only a part
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def commit(draft: Draft) -> None:
    """Replaces the target by the draft; called by one process after all have written their boxes.

    Writes of other processes of this machine are synced, too.

    Raises:
        OperationalError: The commit fails; the target is then unchanged.
    """
    with writing(draft.path, draft.part):
        with open(draft.part, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(draft.part, draft.path)
        synchronise(os.path.dirname(draft.path))


def abandon(draft: Draft) -> None:
    """Removes a draft if it exists."""
    with suppress(OSError):
        os.unlink(draft.part)


@contextmanager
def part_file(path: str) -> Iterator[IO[bytes]]:
    """A file to write that replaces the target when the block ends, and is removed if it fails.

    Raises:
        OperationalError: The file cannot be written.
    """
    target, part = _target(path)
    with writing(path, part):
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
        synchronise(os.path.dirname(target))


def synchronise(folder: str) -> None:
    """Syncs the entries of a directory, if the system supports it.

    Raises:
        OSError: The sync fails.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except PermissionError:
        return  # a directory without read permission, or any directory on Windows
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by the file system
            raise
    finally:
        os.close(opened)


def _target(path: str) -> tuple[str, str]:
    """The resolved path of a file, and the path of its part file.

    Raises:
        OperationalError: The path exists and is not a regular file.
    """
    with writing(path):
        target = os.path.realpath(path)
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            raise OSError(0, "it is no regular file")
    return target, part_name(target)


def part_name(target: str) -> str:
    """A name of a part file that is unique over all processes and machines."""
    return f"{target}.part-{os.getpid()}-{os.urandom(4).hex()}"


@contextmanager
def writing(path: str, part: str = "") -> Iterator[None]:
    """Removes the part file after an error, and translates errors of the system.

    Raises:
        OperationalError: The system refuses the write.
    """
    try:
        yield
    except BaseException as error:
        if part:
            with suppress(OSError, ValueError):
                os.unlink(part)
        if isinstance(error, OSError | ValueError):
            why = getattr(error, "strerror", None) or error
            raise OperationalError(f"'{path}' cannot be written: {why}") from error
        raise
