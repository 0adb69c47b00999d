"""Merging partial results: what each reduction makes of the states of its parts.

A state is one field, or several that only mean something together: an ARG_MIN has its
argument, the extreme value, and whether there is any. What comes out is a state again, so
that parts can be merged in any grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einsql.algebra import REDUCTIONS, SCALARS, less
from einsql.einsum import EinSum, Output
from einsql.errors import DataError
from einsql.supersteps import best_of, some_of

State = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Joint:
    """A reduction whose state has several fields.

    Attributes:
        names: Its fields, for an output; all of them are outputs of the node with state.
        merge: Two states, the earlier one first, to one.
    """

    names: Callable[[str], tuple[str, ...]]
    merge: Callable[[State, State], State]


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
    found: dict[str, np.ndarray] = {}
    for o in node.outputs:
        joint = JOINT.get(o.reduction or "")
        if joint is not None:
            names = joint.names(o.name)
            state: State = tuple(parts[0][k] for k in names)
            for p in parts[1:]:
                state = joint.merge(state, tuple(p[k] for k in names))
            found.update(zip(names, state, strict=True))
    for o in node.outputs:
        if o.name not in found:
            found[o.name] = _merged(o, [p[o.name] for p in parts])
    return {o.name: found[o.name] for o in node.outputs}


def _merged(o: Output, parts: Sequence[np.ndarray]) -> np.ndarray:
    name = o.reduction or "sum"  # a map of partial values is linear
    monoid = REDUCTIONS[name].monoid
    assert monoid is not None, name  # else it is among JOINT
    if name == "sum" and o.dtype.is_float:
        with np.errstate(all="ignore"):  # infinities of both signs make NaN
            total = parts[0].astype(np.float64)
            for p in parts[1:]:
                total += p
            return total.astype(o.dtype.numpy, copy=False)
    function = SCALARS[monoid]
    failure = function.fails.get(o.dtype)
    total = parts[0]
    for p in parts[1:]:
        if failure is not None and np.any(failure.numpy(total, p)):
            raise DataError(failure.reason)
        with np.errstate(all="ignore"):
            total = np.asarray(function.numpy(total, p)).astype(o.dtype.numpy)
    return total


def _pair(name: str) -> tuple[str, ...]:
    return name, best_of(name), some_of(name)


def _arg_min(a: State, b: State) -> State:
    return _better(a, b, less(b[1], a[1]), less(a[1], b[1]))


def _arg_max(a: State, b: State) -> State:
    return _better(a, b, less(a[1], b[1]), less(b[1], a[1]))


def _better(a: State, b: State, ahead: np.ndarray, behind: np.ndarray) -> State:
    """Of two pairs the better one, among equal ones that of the least argument."""
    (arg, best, some), (new_arg, new_best, new_some) = a, b
    wins = new_some & (~some | ahead | (~behind & less(new_arg, arg)))
    return np.where(wins, new_arg, arg), np.where(wins, new_best, best), some | new_some


JOINT = {"arg_min": Joint(_pair, _arg_min), "arg_max": Joint(_pair, _arg_max)}
"""Reductions whose state has several fields, by name."""
