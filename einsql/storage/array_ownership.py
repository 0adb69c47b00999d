"""Ownership of array memory, and private memory of stored tensors.

Changes write private memory in place. All other stored arrays are immutable: a change
replaces them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from math import prod

import numpy as np

_LINE = 64
"""Alignment of arrays in bytes: a cache line of common processors."""


class Private(np.ndarray):
    """The bytes of a stored array, of which the store has read-only views.

    Attributes:
        since: The store's mark at the allocation. After the next BEGIN the previous state may be
            restored, so the memory is no longer overwritten.
        shown: Whether a view may exist for longer than a statement.
    """

    since: object = None
    shown: bool = False


def allocate(shape: tuple[int, ...], dtype: np.dtype, since: object) -> np.ndarray:
    """An uninitialised array in C order in private memory, aligned to a cache line."""
    nbytes = prod(shape) * dtype.itemsize
    block = Private(nbytes + _LINE, np.uint8)
    block.since = since
    return np.ndarray(shape, dtype, block, -block.ctypes.data % _LINE)


def private_over(memory: mmap.mmap) -> Private:
    """Private memory over a mapping whose changes no file receives."""
    return np.ndarray.__new__(Private, (len(memory),), np.uint8, memory)


def behind(array: np.ndarray) -> Private | None:
    """The private memory that an array is a view of, or None."""
    base: object = array
    while base is not None:
        if type(base) is Private:
            return base
        base = getattr(base, "base", None)
    return None


def show(arrays: Iterable[np.ndarray]) -> None:
    """Marks arrays as visible outside of the store, which no longer overwrites them."""
    for array in arrays:
        private = behind(array)
        if private is not None:
            private.shown = True


def writable(array: np.ndarray, since: object) -> np.ndarray | None:
    """A writable view of the same elements, or None if they may be visible elsewhere.

    Args:
        array: A C-contiguous view of all elements of an array in private memory.
        since: The store's current mark.
    """
    private = behind(array)
    if private is None or private.shown or private.since is not since:
        return None
    start = array.ctypes.data - private.ctypes.data
    return np.ndarray(array.shape, array.dtype, private, start)


# ---- owners


def owner(array: np.ndarray) -> object:
    """The object that owns an array's memory."""
    base: object = array
    while getattr(base, "base", None) is not None:
        base = base.base  # type: ignore[attr-defined]  # checked by the condition
    return base


def owned(array: np.ndarray, foreign: set[int]) -> np.ndarray:
    """A contiguous, read-only array whose memory einsql owns.

    Args:
        array: A result.
        foreign: Ids of the owners, from `owner`, of memory that must be copied.
    """
    shared = id(owner(array)) in foreign or not array.flags.c_contiguous
    private = np.array(array, order="C", copy=True) if shared else array.view()
    private.flags.writeable = False
    return private


def separate(arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Arrays for users, of which none shares memory that may be written with an earlier one.

    Equal results are one array of a plan, or views of one.
    """
    owners = set[int]()
    apart: list[np.ndarray] = []
    for array in arrays:
        known = id(owner(array)) in owners
        apart.append(array.copy() if known and array.flags.writeable else array)
        owners.add(id(owner(array)))
    return apart


def distinct(array: np.ndarray) -> np.ndarray:
    """The stored elements of an array: axes of stride 0 get length 1.

    A constant flag may have 2⁶² keys; its distinct elements are quick to read.
    """
    return array[tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)]
