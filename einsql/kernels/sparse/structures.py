"""The elements of a product of two sparse matrices, without their values.

A row of the product is a bitmap of its columns, with a second bitmap of the words that are not 0.
Both stay in a cache, and give the columns in order.
"""

from __future__ import annotations

import numpy as np

from einsql.core.free_memory import require
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.numbering import index_type
from einsql.kernels.kernel import Tick, share
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.sparse.visits import Visit, work_by_row

PIECE = 2**22
"""Pairs of elements of a piece, about 10 ms."""
_KINDS = {4: "int32", 8: "int64"}

_TEXT = """\
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back, lowest_bit


@njit("int64(int64[::1])")
def kernel(p):
    '''Counts the columns of each row of a product, or writes them if their place is known.'''
    first, last, writes = p[0], p[1], p[2]
    starts, columns = at(p[3], np.{0}), at(p[4], np.{1})
    starts_b, columns_b = at(p[5], np.{2}), at(p[6], np.{3})
    counts, result = at(p[7], np.int64), at(p[8], np.{4})
    words = (p[9] >> 6) + 1
    upper = (words >> 6) + 1
    room = borrow(8 * (words + upper))
    bits = at(room, np.int64)
    marks = at(room + 8 * words, np.int64)
    for n in range(words + upper):
        bits[n] = 0
    for i in range(first, last):
        for x in range(np.int64(starts[i]), np.int64(starts[i + 1])):
            j = np.int64(columns[x])
            for y in range(np.int64(starts_b[j]), np.int64(starts_b[j + 1])):
                k = np.int64(columns_b[y])
                word = k >> 6
                bits[word] = bits[word] | (1 << (k & 63))
                marks[word >> 6] = marks[word >> 6] | (1 << (word & 63))
        place = counts[i] if writes else 0
        for u in range(upper):
            while marks[u] != 0:
                w = lowest_bit(marks[u])
                marks[u] = marks[u] & (marks[u] - 1)
                word = 64 * u + w
                while bits[word] != 0:
                    if writes:
                        result[place] = np.{4}(64 * word + lowest_bit(bits[word]))
                    bits[word] = bits[word] & (bits[word] - 1)
                    place += 1
        if not writes:
            counts[i + 1] = place
    give_back(room)
    return 0
"""


def product_structure(left: Compressed, right: Compressed, width: int, tick: Tick) -> Compressed:
    """The elements of a product, with increasing columns; their values are empty.

    Args:
        left: The left matrix.
        right: The right matrix, with as many rows as the left one has columns.
        width: Bytes of the values of an element, for which memory is checked.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Raises:
        OperationalError: The product does not fit into memory.
    """
    shape = left.shape[0], right.shape[1]
    visits = Visit(0, "i", ("j",), False), Visit(1, "j", ("k",), False)
    work = np.cumsum(work_by_row(visits, {0: left, 1: right}))
    total = int(work[-1]) if len(work) else 0
    wanted = max(total // PIECE, 4 * thread_pool.threads()) if total > PIECE // 16 else 1
    marks = total * np.arange(1, wanted) // wanted
    ends = np.unique(np.concatenate(([0], np.searchsorted(work, marks) + 1, [shape[0]])))
    ends = ends[ends <= shape[0]].tolist()
    kind = index_type(*shape)
    text = _TEXT.format(
        *(_KINDS[a.dtype.itemsize] for a in (left.starts, left.columns)),
        *(_KINDS[a.dtype.itemsize] for a in (right.starts, right.columns)),
        _KINDS[kind.itemsize],
    )
    kernel = compile_cache.load(text, tick)
    starts = np.zeros(shape[0] + 1, np.int64)
    columns = np.empty(0, kind)
    arrays = [left.starts, left.columns, right.starts, right.columns]
    for writes in (0, 1):
        if writes:
            np.cumsum(starts, out=starts)
            stored = int(starts[-1])
            require(stored * (kind.itemsize + width))
            columns = np.empty(stored, kind)
        addresses = [a.ctypes.data for a in (*arrays, starts, columns)]

        def run(n: int, writes: int = writes, addresses: list[int] = addresses) -> None:
            kernel(np.array([ends[n], ends[n + 1], writes, *addresses, shape[1]], np.int64))

        pieces = len(ends) - 1
        thread_pool.run(run, range(pieces), pieces, share(tick, writes, 2))
    least = index_type(len(columns), *shape)
    return Compressed(shape, starts.astype(least), columns, columns)
