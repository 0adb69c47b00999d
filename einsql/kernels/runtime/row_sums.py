"""Compiled sums of rows, which read several rows at the same time as separate streams."""

from __future__ import annotations

from functools import cache as cached

import numpy as np

from einsql.kernels.runtime import compile_cache
from einsql.kernels.runtime.cpu_features import machine

ROWS, FEW = 16, 4
"""The number of rows that are added together, and the number for the remainder, a power of two."""
NEAR = 2**14
"""The most bytes of running sums that fit the L1 cache; rows are then added one by one."""

_TEXT = """\
from einsql.kernels.matmul.registers import add_rows


@njit("void(int64, int64[::1], float64[:, ::1])")
def kernel(base, p, out):
    rows, down, further = p[0], p[1], p[2]
    lead, width = out.shape
    for s in range(lead):
        for n in range(width):
            out[s, n] = 0.0
        start, sums, r = base + s * further, out.ctypes.data + s * width * 8, 0
{tiers}
"""

_TIER = """\
        while r + {high} <= rows:
            row, n = start + r * down, 0
            while n + {lanes} <= width:
                add_rows({size}, {lanes}, {high}, row + n * {size}, down, sums + n * 8)
                n += {lanes}
            while n + {few} <= width:
                add_rows({size}, {few}, {high}, row + n * {size}, down, sums + n * 8)
                n += {few}
            while n < width:
                add_rows({size}, 1, {high}, row + n * {size}, down, sums + n * 8)
                n += 1
            r += {high}
"""


_ROWS_TEXT = """\
from einsql.kernels.matmul.registers import add_rows
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back


@njit("void(int64, int64[::1], float64[::1])")
def kernel(base, p, out):
    width, down = p[0], p[1]
    room = borrow(8 * {lanes})
    lanes = at(room, np.float64)
    for r in range(out.shape[0]):
        start, sums, n = base + r * down, room, 0
        for lane in range({lanes}):
            lanes[lane] = 0.0
{tiers}
        while n < width:
            add_rows({size}, 1, 1, start + n * {size}, 0, sums)
            n += 1
        total = 0.0
        for half in range({half}):
            total += lanes[half] + lanes[half + {half}]
        out[r] = total
    give_back(room)
"""

_ROW_TIER = """\
        while n + {high} * {lanes} <= width:
            add_rows({size}, {lanes}, {high}, start + n * {size}, {lanes} * {size}, sums)
            n += {high} * {lanes}
"""


def row_sums(matrix: np.ndarray) -> np.ndarray | None:
    """Returns the sum of each row.

    Args:
        matrix: The values `[rows, width]`, FLOAT or DOUBLE; the last axis is contiguous.

    Returns:
        The sums `[rows]` in float64: sums of lanes, which are added sequentially. None while the
        kernel is being compiled.
    """
    out: np.ndarray = np.empty(len(matrix))
    numbers = np.array([matrix.shape[1], matrix.strides[0]], np.int64)
    kernel = compile_cache.at_hand(_rows_source(matrix.itemsize))
    if kernel is None:
        return None
    kernel(matrix.ctypes.data, numbers, out)
    return out


@cached
def _rows_source(size: int) -> str:
    lanes = machine().width // size
    tiers = [_ROW_TIER.format(high=h, lanes=lanes, size=size) for h in (ROWS, FEW, 1)]
    return _ROWS_TEXT.format(tiers="".join(tiers), lanes=lanes, half=lanes // 2, size=size)


def plane_sums(stacks: np.ndarray) -> np.ndarray | None:
    """Returns the sums along the middle axis.

    Args:
        stacks: The values `[lead, rows, width]`, FLOAT or DOUBLE; the last axis is contiguous.

    Returns:
        The sums `[lead, width]` in float64; None while the kernel is being compiled.
    """
    lead, rows, width = stacks.shape
    out: np.ndarray = np.empty((lead, width))
    further, down, _ = stacks.strides
    numbers = np.array([rows, down, further], np.int64)
    source = _source(stacks.itemsize, width * out.itemsize > NEAR)
    kernel = compile_cache.at_hand(source)
    if kernel is None:
        return None
    kernel(stacks.ctypes.data, numbers, out)
    return out


@cached
def _source(size: int, far: bool) -> str:
    lanes = machine().width // size
    few = min(lanes, FEW)
    tiers = [
        _TIER.format(high=h, lanes=lanes, few=few, size=size)
        for h in ((ROWS, FEW, 1) if far else (1,))
    ]
    return _TEXT.format(tiers="".join(tiers))
