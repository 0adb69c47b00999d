"""Holistic reductions: functions of all values of a group, which no bounded state replaces.

Each function takes the selected values of one group in ascending order, at least one, with NaN as
the greatest value. Zeros of both signs are equal. NTH_MIN and NTH_MAX take the arguments and the
values of a group in any order. `kernels/vectorized/holistic.py` and `kernels/vectorized/best.py`
compute the same for many groups at once.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.functions.functions import SCALARS
from einsql.ir.functions.numeric import equal


def position(count: int, fraction: float) -> int:
    """The position of a discrete quantile: the least one with that share of values up to it.

    Args:
        count: The number of values, at least 1.
        fraction: Read as the decimal number that its shortest spelling is.
    """
    return max(1, ceil(Fraction(repr(fraction)) * count)) - 1


def between(low: Any, high: Any, share: Any, dtype: DType) -> Any:
    """The values at a share of the way from `low` to `high`, as DuckDB rounds them.

    Args:
        low: Arrays of a type; of DECIMALs in units of the last digit.
        high: Arrays of the same type.
        share: DOUBLE, from 0 to 1.
        dtype: The type.
    """
    if dtype is DType.FLOAT:
        start = np.asarray(low, np.float64)
        return (start + (np.asarray(high, np.float64) - start) * share).astype(np.float32)
    value = low * (1.0 - share) + high * share
    return value if dtype is DType.DOUBLE else np.trunc(value).astype(np.int64)


def quantile_cont(values: np.ndarray, fraction: float) -> Any:
    """The value at a fraction of the way from the first to the last, interpolated linearly."""
    place = (len(values) - 1) * float(fraction)
    low, high = values[floor(place)], values[ceil(place)]
    if floor(place) == ceil(place):
        return low
    dtype = DType.DOUBLE if values.dtype.kind == "f" else DType.BIGINT
    with np.errstate(all="ignore"):
        return between(low, high, place - floor(place), dtype)


def quantile_disc(values: np.ndarray, fraction: float) -> Any:
    """The least value that is not exceeded by that fraction of the values."""
    return values[position(len(values), float(fraction))]


def mode(values: np.ndarray) -> Any:
    """The most frequent value, the least one of several."""
    starts = _starts(values)
    return values[starts[np.diff(starts, append=len(values)).argmax()]]


def count_distinct(values: np.ndarray) -> int:
    """The number of different values."""
    return len(_starts(values))


def sum_distinct(values: np.ndarray) -> Any:
    """The sum of the different values.

    Raises:
        DataError: A sum of integers does not fit BIGINT.
    """
    return _sum(values[_starts(values)])


def high_sum_distinct(values: np.ndarray) -> Any:
    """The sum of x // 2^32 of the different integers x."""
    return _sum(HALVES["high_sum_distinct"](values[_starts(values)]))


def low_sum_distinct(values: np.ndarray) -> Any:
    """The sum of x mod 2^32 of the different integers x."""
    return _sum(HALVES["low_sum_distinct"](values[_starts(values)]))


HALVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum_distinct": lambda x: x,
    "high_sum_distinct": lambda x: x >> 32,
    "low_sum_distinct": lambda x: x & 0xFFFFFFFF,
}
"""The terms of sums of different values; the sum of all integers may exceed BIGINT."""


def _sum(terms: np.ndarray) -> Any:
    if terms.dtype.kind == "f":
        return terms.sum()
    total = sum(map(int, terms))
    lo, hi = DType.BIGINT.range
    if not lo <= total <= hi:
        raise DataError(SCALARS["add"].fails[DType.BIGINT].reason)
    return total


def nth_min(arguments: np.ndarray, values: np.ndarray, place: int) -> Any:
    """The argument at a place in ascending order of the values; 0 if there are fewer."""
    return _nth(arguments, ranks(values), place)


def nth_max(arguments: np.ndarray, values: np.ndarray, place: int) -> Any:
    """The argument at a place in descending order of the values; 0 if there are fewer."""
    return _nth(arguments, -ranks(values), place)


def ranks(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the values, equal for equal values; NaN is the greatest value."""
    return np.unique(values, return_inverse=True)[1]


def _nth(arguments: np.ndarray, order: np.ndarray, place: int) -> Any:
    """The argument at a place; equal values are ordered by their arguments."""
    return arguments[np.lexsort((arguments, order))[place]] if place < len(arguments) else 0


def _starts(values: np.ndarray) -> np.ndarray:
    """The first position of each different value."""
    return np.flatnonzero(np.concatenate([[True], ~equal(values[1:], values[:-1])]))
