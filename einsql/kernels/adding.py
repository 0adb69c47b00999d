"""Compiled sums of rows, and of rows to rows, at the speed of memory."""

from __future__ import annotations

import numpy as np

from einsql.kernels import cache
from einsql.kernels.packed.machine import machine

RUN = 128
"""Terms added in the array's own type, several lanes side by side."""
CHUNK = 16 * RUN
"""Terms whose sums are added one after another in DOUBLE."""
LEAST = 2**14
"""Elements from which a compiled sum is faster than NumPy's."""
PLANES = 16
"""Rows added to each other in their own type."""

_ROWS = """\
import numpy as np
from numba import njit
from einsql.kernels.runtime import at, plus


@njit("void({dtype}[:, ::1], float64[::1])", cache=True, nogil=True)
def kernel(x, out):
    length = x.shape[1]
    for r in range(x.shape[0]):
        total = 0.0
        for first in range(0, length, {run}):
            terms = at(x.ctypes.data + (r * length + first) * {size}, x)
            part = np.{dtype}(0)
            for n in range(min({run}, length - first)):
                part = plus(part, terms[n])
            total += part
        out[r] = total
"""

_PLANES = """\
from numba import njit
from einsql.kernels.products.registers import add_rows


@njit("void(int64, int64[::1], float64[:, ::1])", cache=True, nogil=True)
def kernel(base, p, out):
    rows, down, further = p
    width = out.shape[1]
    even, whole = rows // {planes} * {planes}, width // {lanes} * {lanes}
    out[:] = 0.0
    for s in range(out.shape[0]):
        start, sums = base + s * further, out.ctypes.data + s * width * 8
        for r in range(0, even, {planes}):
            row = start + r * down
            for n in range(0, whole, {lanes}):
                add_rows({size}, {lanes}, {planes}, row + n * {size}, down, sums + n * 8)
            for n in range(whole, width):
                add_rows({size}, 1, {planes}, row + n * {size}, down, sums + n * 8)
        for r in range(even, rows):
            row = start + r * down
            for n in range(0, whole, {lanes}):
                add_rows({size}, {lanes}, 1, row + n * {size}, down, sums + n * 8)
            for n in range(whole, width):
                add_rows({size}, 1, 1, row + n * {size}, down, sums + n * 8)
"""


def row_sums(matrix: np.ndarray) -> np.ndarray:
    """Sums along the rows.

    Args:
        matrix: FLOAT or DOUBLE, in C order.

    Returns:
        The sums in float64.
    """
    rows, length = matrix.shape
    even = length // CHUNK * CHUNK
    if even > CHUNK and even == length:
        return np.asarray(row_sums(matrix.reshape(-1, CHUNK)).reshape(rows, -1).sum(axis=1))
    if even > CHUNK and rows == 1:
        first = row_sums(matrix[:, :even])
        return first + row_sums(matrix[:, even:])
    out = np.empty(rows)
    size = matrix.itemsize
    text = _ROWS.format(dtype=matrix.dtype.name, size=size, run=RUN)
    cache.load(text)(matrix, out)
    return out


def plane_sums(stacks: np.ndarray) -> np.ndarray:
    """Sums along the middle axis.

    Args:
        stacks: `[lead, rows, width]`, FLOAT or DOUBLE; the last axis steps by one element.

    Returns:
        The sums `[lead, width]` in float64.
    """
    lead, rows, width = stacks.shape
    out = np.empty((lead, width))
    text = _PLANES.format(
        size=stacks.itemsize, planes=PLANES, lanes=machine().width // stacks.itemsize
    )
    further, down, _ = stacks.strides
    cache.load(text)(stacks.ctypes.data, np.array([rows, down, further], np.int64), out)
    return out
