"""Reductions by a key found in data where the results are few: rows are added where they belong.

Each thread has running values of its own for consecutive rows, merged in their order at the
end, so that results do not depend on which thread was faster.
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
"""Values that a thread takes before it looks around: some milliseconds."""
PARALLEL = 2**17
"""Values from which waking threads pays."""
NEAR = 2**16
"""Running values of one output that fit into a cache."""
FILLED = 4
"""Running values farther away that there are for each row, at most."""


def pays(rows: int, count: int, width: int) -> bool:
    """True if adding rows where they belong is faster than sorting them first.

    Args:
        rows: How many there are.
        count: Into how many segments they fall.
        width: Values of one row.
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
        source: Text of the kernel.
        outputs: The outputs.
        at: The segment of each row; rows of none there is are left out.
        sizes: How many segments there are, and values of a row.
        arguments: Arguments of the kernel for the operands.
        tick: Told the fraction done.

    Returns:
        The rows of each segment, and the outputs, flat: one row for each segment. None
        where a sum of integers left BIGINT on the way.
    """
    count, width = sizes
    rows = len(at)
    workers = thread_pool.threads() if rows * width >= PARALLEL else 1
    workers = max(1, min(workers, rows // count))  # or merging takes longer than adding
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
    # Sums of DOUBLE have those of the last rows, of all before, and the rounding error of these.
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
    except DataError:  # a part of the sum, not the whole
        return None
    with np.errstate(over="ignore"):
        done = [v.astype(o.dtype.numpy, copy=False) for o, v in zip(outputs, merged, strict=True)]
    return (counts[0] if workers == 1 else counts.sum(axis=0)), done


def _whole(parts: Sequence[np.ndarray]) -> np.ndarray:
    """A running value out of its parts; an infinite sum has lost nothing to rounding."""
    if len(parts) == 1:
        return parts[0]
    last, total, lost = parts
    with np.errstate(all="ignore"):
        total = total + last
        corrected: np.ndarray = np.where(np.isfinite(total), total + lost, total)
        return corrected
