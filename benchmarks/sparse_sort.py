"""Two ways to sort the rows of a sparse product: `python -m benchmarks.sparse_sort`.

Milliseconds to sort each row's elements by columns with SciPy, and by two transpositions, for the
elements of a piece by column. The medians are of nine runs on one thread.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from einsql.kernels.sparse import products

SHAPES = ((125, 20_000), (1_000, 20_000), (200, 100_000), (1_000, 1_000_000))
"""Rows and columns."""
FILLED = (1 / 8, 1 / 2, 1, 2, 8)
"""Elements for each column."""


def seconds(rows: int, columns: int, filled: float, least: float) -> float:
    """The median time to sort random elements with `products.TRANSPOSED` of `least`."""
    chance = np.random.default_rng(0)
    counts = np.full(rows, max(1, int(columns * filled) // rows))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    places = [chance.choice(columns, n, replace=False) for n in counts]
    shuffled, values = np.concatenate(places).astype(np.int32), chance.random(int(starts[-1]))
    taken = []
    for _ in range(9):
        own, numbers = shuffled.copy(), values.copy()
        products.TRANSPOSED = least
        start = time.perf_counter()
        products.sort_rows(starts, own, numbers, columns)
        taken.append(time.perf_counter() - start)
    return median(taken)


if __name__ == "__main__":
    print("    rows   columns  elements/column  SciPy ms  transposed ms")
    for rows, columns in SHAPES:
        for filled in FILLED:
            if rows * columns * filled <= 4e9:
                both = [1e3 * seconds(rows, columns, filled, least) for least in (np.inf, 0)]
                print(f"{rows:8,} {columns:9,} {filled:16.3f}  {both[0]:8.3f}  {both[1]:13.3f}")
