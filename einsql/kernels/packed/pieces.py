"""A packed kernel's pieces, the buffers of a thread, and operands as the kernel reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, isnan, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einsql.core.schema import DType
from einsql.kernels.packed.functions import ANYTHING, Range
from einsql.kernels.packed.layout import BOTH, COLUMNS, ROWS
from einsql.kernels.packed.source import NUMPY, Program

SPAN = 512
"""Most rows and columns of a piece, so that packed panels stay in the second cache."""
PIECE = 2**31
"""Most points of a piece; some tens of milliseconds."""
SMALL_PIECE = 2**22
"""Points below which pieces are not cut for the sake of more threads."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A result in pieces: in how many parts its batches, rows and columns are cut."""

    extent: tuple[int, int, int]
    parts: tuple[int, int, int]

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return prod(self.parts)

    @property
    def largest(self) -> tuple[int, int]:
        """Most rows and columns of a piece."""
        _, m, n = (ceil(e / p) for e, p in zip(self.extent, self.parts, strict=True))
        return m, n

    def pieces(self) -> Iterator[tuple[int, ...]]:
        """Begin and end of batches, rows and columns of each piece."""
        for at in product(*map(range, self.parts)):
            yield tuple(
                x
                for e, p, i in zip(self.extent, self.parts, at, strict=True)
                for x in (e * i // p, e * (i + 1) // p)
            )


def cut(b: int, m: int, n: int, k: int, threads: int) -> Cut:
    """Pieces that fit the cache, are short and enough for all threads."""
    parts = [1, ceil(m / SPAN), ceil(n / SPAN)]
    extent = (b, m, n)
    share = m * n * k / (parts[1] * parts[2])
    parts[0] = max(1, min(b, ceil(b * share / PIECE)))
    while extent[0] / parts[0] <= 1 and share > PIECE:
        axis = 1 if m / parts[1] > n / parts[2] else 2
        if parts[axis] >= extent[axis]:
            break
        parts[axis] += 1
        share = m * n * k / (parts[1] * parts[2])
    wanted = 2 * threads if threads > 1 else 1
    while prod(parts) < wanted and b * m * n * k / prod(parts) > SMALL_PIECE:
        axis = 0 if parts[0] < b else 1 if m / parts[1] > n / parts[2] else 2
        if parts[axis] >= extent[axis]:
            break
        parts[axis] += 1
    return Cut(extent, (parts[0], parts[1], parts[2]))


class Scratch:
    """Buffers of one thread: packed columns of both sides and running values."""

    def __init__(self, program: Program, cut: Cut) -> None:
        m, n = cut.largest
        left, right = ceil(m / program.rows), ceil(n / program.lanes)
        sizes = [(kind, left * program.rows * program.depth) for kind in program.packed[ROWS]]
        sizes += [(kind, right * program.lanes * program.depth) for kind in program.packed[COLUMNS]]
        spread = (*program.packed[BOTH], *program.state)
        sizes += [(kind, left * program.rows * right * program.lanes) for kind in spread]
        self.arrays = [_aligned(size, kind) for kind, size in sizes]
        self.addresses = [a.ctypes.data for a in self.arrays]


def _aligned(size: int, kind: str) -> np.ndarray:
    """An uninitialised array that begins at a cache line."""
    dtype = np.dtype(NUMPY[kind])
    block = np.empty(size * dtype.itemsize + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + size * dtype.itemsize].view(dtype)


def scan(values: np.ndarray) -> Range:
    """The extremes of an array."""
    lo, hi = values.min(), values.max()
    if values.dtype.kind != "f":
        return Range(int(lo), int(hi))
    return ANYTHING if isnan(lo) else Range(float(lo), float(hi))


def flatten(cube: np.ndarray, dtype: DType) -> tuple[np.ndarray, list[int]]:
    """A cube as a flat array and a step for each axis; a copy only where there is none."""
    carrier = np.dtype(np.float32) if dtype is DType.HALF else dtype.numpy
    cube = np.asarray(cube, carrier)
    size = carrier.itemsize
    pairs = list(zip(cube.strides, cube.shape, strict=True))
    if not cube.flags.aligned or any(n > 1 and (s < 0 or s % size) for s, n in pairs):
        cube = np.ascontiguousarray(cube)
        pairs = list(zip(cube.strides, cube.shape, strict=True))
    steps = [s // size if n > 1 else 0 for s, n in pairs]
    span = 1 + sum((n - 1) * s for n, s in zip(cube.shape, steps, strict=True))
    flat = as_strided(cube, (span,), (size,), writeable=False)
    return flat, steps
