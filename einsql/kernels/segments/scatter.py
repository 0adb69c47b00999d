"""Reductions by a data-dependent key with few results: rows are added to them directly.

Each thread has separate running values for consecutive rows, which are merged in row order at
the end, so that results do not depend on the threads' timing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

import numpy as np

from einsql.errors import DataError
from einsql.ir.einsum.graph import Output
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.kernel import Tick, share
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.segments.source import is_compensated, running
from einsql.kernels.vectorized.reductions import merge

ROUND = 2**22
"""Values that a thread adds between checks for cancellation, a few milliseconds."""
PARALLEL = 2**17
"""Values from which several threads pay."""
NEAR = 2**16
"""Greatest number of running values of an output that fit a cache."""
FILLED = 4
"""Greatest ratio of running values to rows if they exceed the cache."""


def pays(rows: int, count: int, width: int) -> bool:
    """True if adding rows to their results is faster than sorting them first.

    Args:
        rows: The number of rows.
        count: The number of segments.
        width: The number of values of a row.
    """
    return count * width <= NEAR or (width == 1 and count <= FILLED * rows)


def scattered(
    source: str,
    outputs: Sequence[Output],
    at: np.ndarray,
    sizes: tuple[int, int],
    arguments: Sequence[object],
    tick: Tick,
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Reduces rows.

    Args:
        source: The text of the kernel.
        outputs: The outputs.
        at: The segment of each row; rows outside all segments are ignored.
        sizes: The number of segments, and the number of values of a row.
        arguments: The arguments of the kernel for the operands.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Returns:
        The row count of each segment, and the flat outputs with one row per segment. None if a
        partial sum of integers exceeded BIGINT.
    """
    count, width = sizes
    rows = len(at)
    workers = thread_pool.threads() if rows * width >= PARALLEL else 1
    workers = max(
        1, min(workers, rows // count)
    )  # otherwise the merge takes longer than the additions
    kernel = compile_cache.load(source, tick)
    counts = np.zeros((workers, count), np.int64)
    tables = [
        np.full(
            (workers, count * width),
            REDUCTIONS[o.reduction or ""].identity(o.dtype),
            running(o).numpy,
        )
        for o in outputs
    ]
    # DOUBLE sums have three parts: the last rows, all rows before, and their rounding error.
    parts = [
        [t, *(np.zeros_like(t) for _ in range(2 * is_compensated(o)))]
        for o, t in zip(outputs, tables, strict=True)
    ]
    edges = [rows * n // workers for n in range(workers + 1)]
    failed = np.zeros(workers, bool)
    rounds = max(1, ceil(rows * width / (workers * ROUND)))

    def pieces(turn: int) -> Iterator[tuple[int, int, int]]:
        for n, (first, last) in enumerate(pairwise(edges)):
            size = last - first
            yield n, first + size * turn // rounds, first + size * (turn + 1) // rounds

    def work(piece: tuple[int, int, int]) -> None:
        n, first, last = piece
        own = [t[n] for of in parts for t in of]
        failed[n] |= kernel(first, last, at, count, width, *arguments, counts[n], *own)

    for turn in range(rounds):
        thread_pool.run(work, pieces(turn), workers, share(tick, turn, rounds))
    if failed.any():
        return None
    try:
        merged = [merge(o, [_whole(of)])[0] for o, of in zip(outputs, parts, strict=True)]
    except DataError:  # a partial sum, not the total
        return None
    with np.errstate(over="ignore"):
        done = [v.astype(o.dtype.numpy, copy=False) for o, v in zip(outputs, merged, strict=True)]
    return (counts[0] if workers == 1 else counts.sum(axis=0)), done


def _whole(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Combines the parts of a running value; an infinite sum needs no correction."""
    if len(parts) == 1:
        return parts[0]
    last, total, lost = parts
    with np.errstate(all="ignore"):
        total = total + last
        corrected: np.ndarray = np.where(np.isfinite(total), total + lost, total)
        return corrected
