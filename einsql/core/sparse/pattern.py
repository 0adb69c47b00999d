"""The positions of a sparse tensor's elements, for cuts and costs of plans.

A plan refers to the pattern of an input and may be kept for long. So a pattern refers weakly to the
fields. It counts the elements while these exist, remembers the counts, and estimates others later.
"""

from __future__ import annotations

from math import prod
from weakref import ref

import numpy as np

from einsql.core.boxes import extents, split, volumes
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.matrix import Sparse

ELEMENT = 16
"""The weight of a stored element in a balanced cut, relative to that of a value of the key. It
divides elements evenly, and values without elements where elements do not decide."""


class Pattern:
    """The positions of the elements of a sparse tensor.

    Attributes:
        extents: The number of values of each key.
        stored: The number of stored elements.
    """

    def __init__(self, fields: Sparse) -> None:
        self._fields = ref(fields)
        self.extents = fields.extents
        self.stored = fields.matrix.stored
        self._counts: dict[bytes, np.ndarray] = {}
        self._cuts: dict[tuple[int, int, int, int], np.ndarray] = {}

    @property
    def density(self) -> float:
        """The fraction of keys with a stored element."""
        return self.stored / max(1, prod(self.extents))

    def counts(self, boxes: np.ndarray) -> np.ndarray:
        """The number of stored elements in each box, int64 (boxes,).

        Args:
            boxes: Positions from 0, int64 (boxes, keys, 2).
        """
        key = boxes.tobytes()
        if key not in self._counts:
            matrix = self._matrix()
            if matrix is None:
                return np.rint(volumes(boxes) * self.density).astype(np.int64)
            self._counts[key] = np.array([_count(matrix, box) for box in boxes], np.int64)
        return self._counts[key]

    def balanced(self, axis: int, lo: int, hi: int, parts: int) -> np.ndarray:
        """Cuts the positions `[lo, hi)` of a key into parts with about equally many elements.

        A part has at least one value of the key, if there are enough.

        Returns:
            int64 (parts, 2).
        """
        key = (axis, lo, hi, parts)
        if key not in self._cuts:
            matrix = self._matrix()
            if matrix is None or hi - lo <= parts:
                return split(lo, hi, parts)
            each = matrix.counts_along(axis)[lo:hi]
            weights = np.cumsum(each.astype(np.int64) * ELEMENT + 1)
            marks = weights[-1] * np.arange(1, parts) / parts
            # The boundary behind the value that crosses a mark, or before it if that is closer.
            at = np.searchsorted(weights, marks)
            before = np.where(at > 0, weights[at - 1], 0)
            ends = np.where(marks - before < weights[at] - marks, at, at + 1)
            steps = np.arange(1, parts)
            ends = np.maximum.accumulate(np.maximum(ends, steps) - steps) + steps
            ends = np.minimum(ends, hi - lo - parts + steps)
            bounds = np.concatenate(([0], ends, [hi - lo])) + lo
            self._cuts[key] = np.stack([bounds[:-1], bounds[1:]], axis=1).astype(np.int64)
        return self._cuts[key]

    def occupied(self, axis: int, box: np.ndarray) -> np.ndarray | None:
        """Flags of the values of a key within a box that have elements there; None if unknown.

        Args:
            axis: The number of the key.
            box: Positions from 0, int64 (keys, 2).
        """
        matrix = self._matrix()
        if matrix is None:
            return None
        return matrix.part(*_slices(box)).occupied(axis)

    def _matrix(self) -> Compressed | None:
        """The present elements, by rows of the first key."""
        fields = self._fields()
        if fields is None:
            return None
        matrix = fields.taken()
        if not fields.turned:
            return matrix
        from scipy.sparse import csr_array  # takes 0.2 s, and few statements need it

        ones = np.ones(matrix.stored, np.bool_)
        csc = csr_array((ones, matrix.columns, matrix.starts), shape=matrix.shape).tocsc()
        return Compressed(self.extents, csc.indptr, csc.indices, csc.data)


def mark(flags: np.ndarray, first: int, occupied: np.ndarray, start: int) -> None:
    """Sets the flags of the values that a sparse tile has.

    Args:
        flags: bool, for each value of a key from `first` on.
        first: The first value.
        occupied: bool, for each value of the sparse tile's key from `start` on.
        start: The first value there.
    """
    lo, hi = max(first, start), min(first + len(flags), start + len(occupied))
    if lo < hi:
        flags[lo - first : hi - first] |= occupied[lo - start : hi - start]


def _count(matrix: Compressed, box: np.ndarray) -> int:
    """The number of elements within a box."""
    if not extents(box).all():
        return 0
    return matrix.stored_within(*_slices(box))


def _slices(box: np.ndarray) -> list[slice]:
    return [slice(lo, max(lo, hi)) for lo, hi in box.tolist()]
