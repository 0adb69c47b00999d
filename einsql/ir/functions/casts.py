"""CAST between types: results on arrays and intervals, and failures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einsql.core.bfloat16 import rounded
from einsql.core.schema import DType
from einsql.ir.functions.functions import SCALARS
from einsql.ir.functions.numeric import Array, Failure, Interval

B, I32, I64 = DType.BOOLEAN, DType.INTEGER, DType.BIGINT
H, BF, F, D = DType.HALF, DType.BFLOAT16, DType.FLOAT, DType.DOUBLE

_LIMITS = {
    DType.TINYINT: (-128.5, 127.5),
    I32: (-2147483648.5, 2147483647.5),
    I64: (-9223372036854775808.0, 9223372036854775808.0),
}

_OVERFLOWS = {
    F: ((D,), 2.0**128 - 2.0**103),
    BF: ((D, F), 2.0**128 - 2.0**119),
    H: ((D, F, BF), 65520.0),
}
"""For a float type the wider types, and the least of their values that rounds to infinity."""


def cast_failure(source: DType, target: DType) -> Failure | None:
    """The failure of CAST, or None if every value fits."""
    what = f"value out of range in CAST({source.value} AS {target.value})"
    if target.is_integer and source.is_float:
        lo, hi = _LIMITS[target]
        # Half rounds to even: -128.5 fits TINYINT, 127.5 does not; BIGINT's -2^63 fits.
        return Failure(
            what,
            lambda a: ~((np.asarray(a, np.float64) >= lo) & (np.asarray(a, np.float64) < hi)),
            f"not ({{0}} >= {lo!r} and {{0}} < {hi!r})",
        )
    if target.is_integer and source.is_integer and source.range[1] > target.range[1]:
        low, high = target.range
        return Failure(
            what,
            lambda a: np.asarray((a < low) | (a > high)),
            f"{{0}} < {low} or {{0}} > {high}",
        )
    wider, edge = _OVERFLOWS.get(target, ((), math.inf))
    if source in wider:
        return Failure(
            what,
            lambda a: np.asarray(np.isfinite(a) & (np.abs(a) >= edge)),
            f"math.isfinite({{0}}) and abs({{0}}) >= {edge!r}",
        )
    if target is H and source in (I32, I64):
        return Failure(
            what,
            lambda a: np.asarray((a >= 65520) | (a <= -65520)),
            "{0} >= 65520 or {0} <= -65520",
        )
    return None


def cast_array(a: Array, target: DType) -> Array:
    """CAST over an array; the caller must check that every value fits.

    The dtypes of argument and result are the carriers of their types. The result of a value that
    does not fit is arbitrary.
    """
    a = np.asarray(a)
    if target is BF:
        return rounded(a)
    if target is B and a.dtype.kind != "b":
        return a != 0
    with np.errstate(over="ignore", invalid="ignore"):  # the limits do not fit HALF either
        if a.dtype.kind == "f" and target.is_integer:
            lo, hi = _LIMITS[target]
            fits = (a >= lo) & (a < hi)
            return np.rint(np.where(fits, a, 0)).astype(target.numpy)
        return a.astype(target.numpy, copy=False)


def failure_of(fn: str, source: DType, target: DType) -> Failure | None:
    """The failure of a scalar function or CAST, by its first argument's and its result's type."""
    return cast_failure(source, target) if fn == "cast" else SCALARS[fn].fails.get(source)


def evaluated(fn: str, args: Sequence[Array], target: DType) -> Array:
    """The typed result of a scalar function or CAST; the caller must check for failures."""
    return cast_array(args[0] if fn == "cast" else SCALARS[fn].numpy(*args), target)


def cast_interval(a: Interval, source: DType, target: DType) -> Interval:
    """The integer interval of a cast between integer types."""
    if source is B and target.is_integer:
        return 0, 1
    return a if target.is_integer and source.is_integer else None
