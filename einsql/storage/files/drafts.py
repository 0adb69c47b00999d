"""Files that are written whole or not at all, by one process or by several.

A draft is a part file beside its target, at full size from the beginning. Processes write
disjoint boxes of it with `pwrite`, so not even a page is shared on network file systems.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import IO

import numpy as np

from einsql.core import boxes
from einsql.core.schema import DType
from einsql.errors import InterfaceError, OperationalError
from einsql.storage.files.tensor import Box, box_of

SLAB = 2**24
"""Bytes that are brought into the file's order at once."""

Begin = Callable[[IO[bytes], Sequence[tuple[str, DType]], tuple[int, ...]], list[int]]
"""Writes everything but the elements of arrays of one shape, and says where each one's begin."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A description of an unfinished file for other processes.

    Attributes:
        path: The target, absolute.
        part: The part file, absolute.
        dtype: Type of the elements.
        shape: Extents of the whole tensor.
        offset: Where the elements begin, in bytes; they lie in C order.
    """

    path: str
    part: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int


def drafted(
    path: str, arrays: Sequence[tuple[str, DType]], shape: tuple[int, ...], begin: Begin
) -> list[Draft]:
    """Makes the part file of some arrays, their elements still zero.

    Returns:
        A draft for each array; to commit or to abandon one of them is enough.

    Raises:
        OperationalError: It cannot be made.
    """
    target, part = _target(path)
    with writing(path, part), open(part, "xb") as file:
        offsets = begin(file, arrays, shape)
    types = [dtype for _, dtype in arrays]
    return [Draft(target, part, t, shape, at) for t, at in zip(types, offsets, strict=True)]


def write_box(draft: Draft, box: Box, array: np.ndarray) -> None:
    """Writes a box of a draft; boxes of several processes do not overlap.

    A box costs one system call for every run of elements that follow each other in the file:
    whole rows are one run.

    Args:
        draft: As `create` made it, in any process.
        box: int64 (axes, 2), or a slice without a step for each axis.
        array: The elements, of the box's shape and the draft's type.

    Raises:
        OperationalError: The part file is gone, or the disk is full.
        InterfaceError: Box, shape or dtype are wrong.
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
    """Parts of an array that are copied at once, and where their first elements belong.

    Args:
        array: Any array.
        at: Where its first element belongs, in bytes.
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
    """How many axes lie apart in the file; elements along the others follow each other."""
    size = array.itemsize
    for axis in range(array.ndim, 0, -1):
        if steps[axis - 1] != size and array.shape[axis - 1] != 1:
            return axis
        size *= array.shape[axis - 1]
    return 0


def _put(file: int, slab: np.ndarray, at: int, steps: list[int]) -> None:
    """Writes a slab, run by run."""
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
    """Writes bytes at a place of an open file, which stands where it stood.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    while data:  # the system may write less than it is asked to
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def commit(draft: Draft) -> None:
    """Makes a draft the file; once every process has written its boxes, in one of them.

    What other processes of this machine wrote is forced to the disk, too.

    Raises:
        OperationalError: It cannot be done; the target is then what it was.
    """
    with writing(draft.path, draft.part):
        with open(draft.part, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(draft.part, draft.path)
        synchronise(os.path.dirname(draft.path))


def abandon(draft: Draft) -> None:
    """Removes a draft; nothing if it is gone already."""
    with suppress(OSError):
        os.unlink(draft.part)


@contextmanager
def part_file(path: str) -> Iterator[IO[bytes]]:
    """A file to write that takes its place when the block ends, and is gone if it fails.

    Raises:
        OperationalError: It cannot be written.
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
    """Forces the names of a folder's files to the disk, where the system can.

    Raises:
        OSError: The disk fails.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except PermissionError:
        return  # one that may be written and not read; Windows opens none
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing
            raise
    finally:
        os.close(opened)


def _target(path: str) -> tuple[str, str]:
    """The file that a path means, links followed, and the part file beside it.

    Raises:
        OperationalError: What is there is no file.
    """
    with writing(path):
        target = os.path.realpath(path)
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            raise OSError(0, "it is no regular file")
    return target, part_name(target)


def part_name(target: str) -> str:
    """A name that no other process chooses, on whatever machine."""
    return f"{target}.part-{os.getpid()}-{os.urandom(4).hex()}"


@contextmanager
def writing(path: str, part: str = "") -> Iterator[None]:
    """Makes OperationalErrors of what goes wrong, and then removes the part file.

    Raises:
        OperationalError: What the system refuses.
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
