"""Merging partial results: what each reduction makes of the states of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsql.algebra import REDUCTIONS, SCALARS, less
from einsql.einsum import EinSum, Output
from einsql.errors import DataError
from einsql.supersteps import best_of, some_of


def merged(node: EinSum, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Partial results of one tile as one, which may be partial itself.

    Args:
        node: What made the parts, with the state that merging needs.
        parts: Its fields, once for each part.

    Raises:
        DataError: An integer sum overflows.
    """
    if len(parts) == 1:
        return {o.name: parts[0][o.name] for o in node.outputs}
    return {o.name: _merged(o, parts) for o in node.outputs}


def _merged(o: Output, parts: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    name = o.reduction or "sum"  # a map of partial values is linear
    reduction = REDUCTIONS[name]
    if reduction.monoid is None:
        return _merged_pairs(o, parts)
    if name == "sum" and o.dtype.is_float:
        with np.errstate(all="ignore"):  # infinities of both signs make NaN
            total = np.add.reduce([p[o.name] for p in parts], axis=0, dtype=np.float64)
            return np.asarray(total).astype(o.dtype.numpy)
    function = SCALARS[reduction.monoid]
    failure = function.fails.get(o.dtype)
    total = parts[0][o.name]
    for p in parts[1:]:
        if failure is not None and np.any(failure.numpy(total, p[o.name])):
            raise DataError(failure.reason)
        with np.errstate(all="ignore"):
            total = np.asarray(function.numpy(total, p[o.name])).astype(o.dtype.numpy)
    return total


def _merged_pairs(o: Output, parts: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    arg, best, some = (parts[0][k] for k in (o.name, best_of(o.name), some_of(o.name)))
    for p in parts[1:]:
        new_arg, new_best, new_some = (p[k] for k in (o.name, best_of(o.name), some_of(o.name)))
        ahead, behind = less(new_best, best), less(best, new_best)
        if o.reduction == "arg_max":
            ahead, behind = behind, ahead
        wins = new_some & (~some | ahead | (~behind & less(new_arg, arg)))
        arg, best = np.where(wins, new_arg, arg), np.where(wins, new_best, best)
        some = some | new_some
    return np.asarray(arg)
