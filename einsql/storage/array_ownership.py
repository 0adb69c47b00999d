"""Ownership of array memory, and private memory of stored tensors.

Changes write private memory in place. All other stored arrays are immutable: a change
puts a new array in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

_LINE = 64


class Private(np.ndarray):
    """The bytes of a stored array; the store has read-only views of them.

    Attributes:
        since: The store's mark of the time it was made in; only until the next BEGIN nobody
            may want the former state back.
        shown: Whether somebody may hold a view for longer than a statement.
        start: At which byte the elements begin.
    """

    since: object = None
    shown: bool = False
    start: int = 0


def allocate(shape: tuple[int, ...], dtype: np.dtype, since: object) -> np.ndarray:
    """An uninitialised array in C order in private memory, which begins at a cache line."""
    nbytes = prod(shape) * dtype.itemsize
    block = Private(nbytes + _LINE, np.uint8)
    block.since = since
    block.start = -block.ctypes.data % _LINE
    return np.ndarray(shape, dtype, block, block.start)


def behind(array: np.ndarray) -> Private | None:
    """The private memory that an array shows, if it shows any."""
    base: object = array
    while base is not None:
        if type(base) is Private:
            return base
        base = getattr(base, "base", None)
    return None


def show(arrays: Iterable[np.ndarray]) -> None:
    """Marks arrays as visible outside the store; they are not changed any more."""
    for array in arrays:
        private = behind(array)
        if private is not None:
            private.shown = True


def writable(array: np.ndarray, since: object) -> np.ndarray | None:
    """A writable view of the same elements, or None if they are visible elsewhere.

    Args:
        array: A C-contiguous view of all elements that `allocate` gave.
        since: The store's present mark.
    """
    private = behind(array)
    if private is None or private.shown or private.since is not since:
        return None
    return np.ndarray(array.shape, array.dtype, private, private.start)


# ---- owners


def owner(array: np.ndarray) -> object:
    """The object that owns an array's memory."""
    base: object = array
    while getattr(base, "base", None) is not None:
        base = base.base  # type: ignore[attr-defined]  # asked for in the line above
    return base


def owned(array: np.ndarray, foreign: set[int]) -> np.ndarray:
    """A contiguous, read-only array in memory of its own.

    Args:
        array: A result.
        foreign: Ids of the owners of memory that is not ours, as `owner` finds them.
    """
    shared = id(owner(array)) in foreign or not array.flags.c_contiguous
    kept = np.array(array, order="C", copy=True) if shared else array.view()
    kept.flags.writeable = False
    return kept


def distinct(array: np.ndarray) -> np.ndarray:
    """The elements of an array that are stored: axes it is repeated along have length 1.

    A flag that is the same everywhere may stand for 2⁶² keys; this one is quick to read.
    """
    return array[tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)]
