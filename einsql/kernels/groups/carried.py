"""Rows taken part by part: the greatest x so far, and sums of weights exp(x - it).

A row whose greatest x so far is -infinity has seen nothing that weighs: its weights are made
with 0 in its place, which makes them 0. Compiled into the kernels of groups by Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.kernels.groups.tiles import part
from einsql.kernels.runtime.compiled_functions import maximum
from einsql.kernels.runtime.vector_math import exp


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
) -> None:
    """Writes the greatest x and the sums of whole rows."""
    for r in range(rows):
        n = np.uintp(r)
        maxima[np.uintp(r * step)] = extremes[n]
        sums[np.uintp(r * between)] = totals[n]
        if extremes[n] == -np.inf:  # infinity minus infinity
            sums[np.uintp(r * between)] = np.nan
