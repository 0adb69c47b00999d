"""Merging the running values that slices of a reduction left."""

from __future__ import annotations

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.graph import Output
from einsql.ir.functions import REDUCTIONS, SCALARS, equal, less
from einsql.kernels.vectorized.scalar import refuse


def merge(o: Output, running: list[np.ndarray]) -> list[np.ndarray]:
    """Merges slices.

    Args:
        o: The output they belong to.
        running: Its running values, the first axis being that of the slices: one array,
            or for pairs the arguments, their values and whether there are any.

    Returns:
        The same without the first axis.

    Raises:
        DataError: A sum or product of integers does not fit BIGINT.
    """
    entry = REDUCTIONS[o.reduction or ""]
    merged = [r[0, ...] for r in running]
    with np.errstate(all="ignore"):
        for n in range(1, len(running[0])):
            new = [r[n, ...] for r in running]
            if entry.better is None:
                merged = [_monoid(entry.monoid or "", merged[0], new[0])]
            else:
                merged = _pair(entry.name == "arg_min", merged, new)
    return merged


def _monoid(function: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    scalar = SCALARS[function]
    if old.dtype == np.int64 and DType.BIGINT in scalar.fails:
        refuse(scalar.fails[DType.BIGINT], None, old, new)
    return np.asarray(scalar.numpy(old, new))


def _pair(lowest: bool, old: list[np.ndarray], new: list[np.ndarray]) -> list[np.ndarray]:
    wins = less(new[1], old[1]) if lowest else less(old[1], new[1])
    ties = equal(new[1], old[1]) & less(new[0], old[0])
    take = new[2] & (~old[2] | wins | ties)
    return [np.where(take, b, a) for a, b in zip(old, new, strict=True)]
