"""Matrix products of blocks in registers, compiled into the kernels of groups.

A tile of the result stays in vector registers while the inner label runs: `TALL` rows of
the left block, element by element, against `WIDE` vectors of a row of the right block, which
was packed so that these are contiguous. There are no calls and no copies, so blocks of a few
dozen rows are as fast as large products.

Rows may be taken part by part, with their greatest x so far and sums of weights exp(x - it). The
weights of a row whose greatest x is -infinity are computed with 0 in its place, which makes them 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from einsql.kernels.compiler.language import njit
from einsql.kernels.compiler.operations import numbers as np
from einsql.kernels.groups.panels import BYTES, WIDE
from einsql.kernels.runtime.compiled_functions import maximum
from einsql.kernels.runtime.register_tiles import multiply_tile
from einsql.kernels.runtime.vector_math import exp

F = TypeVar("F", bound=Callable[..., Any])
DEPTH = 512
"""Terms that are added to each other before their sum is added to the result."""


_tile: Any = multiply_tile
TALL = 6 if BYTES == 32 else 12
"""Rows of a tile: with two vectors each they fill the registers that AVX2 has, or others."""


part: Callable[[F], F] = njit()
"""Marks functions that kernels alone call."""


@part
def pack(source: Any, down: int, across: int, depth: int, wide: int, into: Any, panel: int) -> None:
    """Lays a right side out as tiles read it: panels of `panel` columns, row after row.

    Args:
        source: The right side, from its first element on.
        down: Elements from one term to the next.
        across: Elements from one column to the next.
        depth: Terms.
        wide: Columns; those missing in the last panel are 0.
        into: Where the panels go.
        panel: Columns of a panel.
    """
    for first in range(0, wide, panel):
        there = min(panel, wide - first)
        for k in range(depth):
            to = np.uintp(first * depth + k * panel)
            start = k * down + first * across
            for n in range(there):
                into[to + np.uintp(n)] = source[np.uintp(start + n * across)]
            for n in range(there, panel):
                into[to + np.uintp(n)] = 0


@part
def copy(source: Any, down: int, across: int, rows: int, wide: int, into: Any, step: int) -> None:
    """Copies a block row by row to contiguous rows; a sum is never -0.0."""
    for r in range(rows):
        for n in range(wide):
            into[np.uintp(r * step + n)] = source[np.uintp(r * down + n * across)]


@part
def copy_numbers(numbers: Any, first: int, count: int, into: Any) -> None:
    """Copies some integers of an array."""
    for n in range(count):
        into[n] = numbers[first + n]


@part
def clear(into: Any, first: int, stop: int) -> None:
    """Sets elements to 0."""
    for n in range(first, stop):
        into[np.uintp(n)] = 0


@part
def not_finite(values: Any, step: int, rows: int, wide: int) -> bool:
    """True if a block has a NaN or an infinity."""
    bad = 0
    for r in range(rows):
        for n in range(wide):
            x = values[np.uintp(r * step + n)]
            bad |= x - x != 0
    return bad != 0


@part
def spoilt(values: Any, step: int, rows: int, wide: int, divisors: Any, between: int) -> bool:
    """True if a row with a finite divisor has a NaN or an infinity."""
    bad = 0
    for r in range(rows):
        divisor = divisors[np.uintp(r * between)]
        if divisor - divisor == 0:
            for n in range(wide):
                x = values[np.uintp(r * step + n)]
                bad |= x - x != 0
    return bad != 0


@part
def any_empty(extremes: Any, step: int, rows: int) -> bool:
    """True if a row's greatest value is that of no values, -infinity."""
    empty = False
    for r in range(rows):
        empty |= extremes[np.uintp(r * step)] == -np.inf
    return empty


def _multiplier(tall: int, wide: int) -> Any:
    """Multiplies blocks by tiles of `tall` rows and `wide` vectors."""

    def multiply(
        left: int,
        step: int,
        rows: int,
        right: int,
        depth: int,
        terms: Any,
        columns: Any,
        into: int,
        stride: int,
        scale: Any,
        panel: int,
        size: int,
        adds: int,
    ) -> None:
        """Sets a block to scale · left · right, or adds that, for some terms and panels of columns.

        Args:
            left: Address of the left block's first row.
            step: Bytes from one of its rows to the next; its elements are contiguous.
            rows: Its rows.
            right: Address of the panels.
            depth: Terms that a panel has.
            terms: First and last of those that count.
            columns: First and last column wanted; whole panels are computed.
            into: Address of the result's first row.
            stride: Bytes from one of its rows to the next.
            scale: The factor.
            panel: Columns of a panel.
            size: Bytes of an element.
            adds: 1 if the product is added to the result, 0 if it replaces it.
        """
        first = columns[0] // panel * panel
        for start in range(terms[0], max(terms[1], terms[0] + 1), DEPTH):
            count = min(DEPTH, terms[1] - start)
            for n in range(first, columns[1], panel):
                beside = right + (n * depth + start * panel) * size
                if (columns[1] - n) * size <= BYTES and panel * size > BYTES:
                    # A second register would have no columns: 3 % of the time for 100 columns.
                    for r in range(0, rows, WIDE * TALL):
                        _tile(
                            WIDE * TALL,
                            BYTES,
                            1,
                            count,
                            (
                                left + r * step + start * size,
                                step,
                                size,
                                min(WIDE * TALL, rows - r),
                            ),
                            (beside, panel * size, 0, panel * size),
                            (into + r * stride + n * size, stride),
                            scale,
                            adds != 0 or start > terms[0],
                        )
                    continue
                for r in range(0, rows, tall):
                    _tile(
                        tall,
                        BYTES,
                        wide,
                        count,
                        (left + r * step + start * size, step, size, min(tall, rows - r)),
                        (beside, panel * size, 0, panel * size),
                        (into + r * stride + n * size, stride),
                        scale,
                        adds != 0 or start > terms[0],
                    )

    # Machine code finds it by its name, also in kernels that another process compiled.
    multiply.__qualname__ = f"multiply_{tall}_{wide}"
    return part(multiply)


multiply = _multiplier(TALL, WIDE)
multiply_narrow = _multiplier(WIDE * TALL, 1)
"""For right sides whose rows one vector holds."""


@part
def begin(extremes: Any, factors: Any, totals: Any, rows: int) -> None:
    """Rows of which nothing was seen."""
    for r in range(rows):
        n = np.uintp(r)
        extremes[n] = -np.inf
        factors[n] = 1
        totals[n] = 0


@part
def clear_rows(values: Any, step: int, rows: int, wide: int) -> None:
    """Sets sums to 0."""
    for r in range(rows):
        for n in range(wide):
            values[np.uintp(r * step + n)] = 0


@part
def carry(
    extremes: Any, factors: Any, totals: Any, part_extremes: Any, step: int, rows: int
) -> None:
    """Merges the greatest values of a part into those of all parts before it, in place."""
    for r in range(rows):
        n, at = np.uintp(r), np.uintp(r * step)
        old = extremes[n]
        new = maximum(old, part_extremes[at])
        extremes[n] = new
        part_extremes[at] = new
        if new == -np.inf:
            part_extremes[at] = 0
        factors[n] = 1
        if old != new:
            factors[n] = exp(old - new)


@part
def fold(extremes: Any, factors: Any, totals: Any, part_sums: Any, step: int, rows: int) -> None:
    """Takes the sums of a part's weights."""
    for r in range(rows):
        n = np.uintp(r)
        totals[n] = totals[n] * factors[n] + part_sums[np.uintp(r * step)]


@part
def rescale(values: Any, step: int, rows: int, wide: int, factors: Any) -> None:
    """Multiplies the sums so far by their rows' factors."""
    for r in range(rows):
        factor = factors[np.uintp(r)]
        if factor != 1:
            for n in range(wide):
                values[np.uintp(r * step + n)] *= factor


@part
def finish(
    extremes: Any,
    factors: Any,
    totals: Any,
    maxima: Any,
    step: int,
    sums: Any,
    between: int,
    rows: int,
    safe: int,
) -> None:
    """Writes the greatest x and the sums of whole rows; safe weights of -infinity are 0."""
    for r in range(rows):
        n = np.uintp(r)
        maxima[np.uintp(r * step)] = extremes[n]
        sums[np.uintp(r * between)] = totals[n]
        if safe == 0 and extremes[n] == -np.inf:  # infinity minus infinity
            sums[np.uintp(r * between)] = np.nan
