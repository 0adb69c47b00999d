"""Selection of stored elements by flags."""

from __future__ import annotations

import numpy as np

from einsql.core.buffer_pool import empty

BLOCK = 2**18
"""Elements of which some are selected at a time. Their numbers stay in a core's cache: of 16 M
elements 60 % are selected in 62 ms, and all at a time in 120 to 230 ms."""


def selected(
    kept: np.ndarray, starts: np.ndarray, *arrays: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The elements whose flag is true.

    Args:
        kept: A flag for each element.
        starts: The offset of each row's first element, and the number of elements.
        arrays: Values of each element.

    Returns:
        The offsets of the rows' selected elements, and their values.
    """
    blocks = [slice(at, at + BLOCK) for at in range(0, len(kept), BLOCK)]
    total = sum(int(np.count_nonzero(kept[block])) for block in blocks)
    chosen = [empty((total,), array.dtype) for array in arrays]
    offsets, row, at = empty(starts.shape, starts.dtype), 0, 0
    for block in blocks:
        numbers = np.flatnonzero(kept[block])
        here = slice(at, at + len(numbers))
        for array, part in zip(arrays, chosen, strict=True):
            np.take(array[block], numbers, out=part[here], mode="clip")  # unbuffered
        behind = int(np.searchsorted(starts, block.stop))
        offsets[row:behind] = at + np.searchsorted(numbers, starts[row:behind] - block.start)
        row, at = behind, here.stop
    offsets[row:] = at
    return offsets, chosen
