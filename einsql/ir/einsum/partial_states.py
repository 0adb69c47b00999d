"""States of partial results: the fields that a part of a reduction stores, and their merge.

A state is one field, or several related fields: ARG_MIN has its argument, the extreme value, and
a flag for its existence. A merged state is a state again, so parts can be merged in any grouping.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.conditional_outputs import always
from einsql.ir.einsum.graph import TRUE, EinSum, Output
from einsql.ir.einsum.states import define, has_order, merged_fields, state_of
from einsql.ir.functions import REDUCTIONS, SCALARS, less

State = tuple[np.ndarray, ...]


def is_holistic(o: Output) -> bool:
    """True for a reduction without states that merge, which needs all values of a group at once."""
    return o.reduction is not None and REDUCTIONS[o.reduction].holistic is not None


def has_holistic(node: EinSum) -> bool:
    """True if an output is a holistic reduction."""
    return any(map(is_holistic, node.outputs))


def merges(node: EinSum) -> bool:
    """True if the results of parts of the reduced labels can be merged, for every output.

    States that are merged in the order of keys are not: sites complete parts in any order.
    """
    return not has_holistic(node) and not has_order(node)


def best_of(name: str) -> str:
    """The field that holds the extreme value of an ARG_MIN or ARG_MAX."""
    return f"{name}.best"


def some_of(name: str) -> str:
    """The field that is true if the group of an ARG_MIN or ARG_MAX has a value."""
    return f"{name}.some"


def with_state(node: EinSum) -> EinSum:
    """The node with the additional outputs for merging: all fields of each state.

    A part does not have the sums of other parts, so every conditional output is computed.
    """
    node = always(node)
    extra: list[Output] = []
    names = {o.name for o in node.outputs}
    for o in node.outputs:
        if o.reduction is not None and REDUCTIONS[o.reduction].fields:
            state = state_of(o.reduction)
            every = zip(state_fields(o.name, o.reduction), state.fields, define(state), strict=True)
            for name, f, reduction in every:
                if name not in names:
                    names.add(name)
                    extra.append(replace(o, name=name, dtype=f.dtype, reduction=reduction))
        if o.reduction is not None and REDUCTIONS[o.reduction].better is not None:
            value = o.args[1]
            extreme = "min" if o.reduction == "arg_min" else "max"
            extra.append(Output(best_of(o.name), (value,), value.dtype, extreme, o.where))
            extra.append(Output(some_of(o.name), (TRUE,), DType.BOOLEAN, "bool_or", o.where))
    return replace(node, outputs=(*node.outputs, *extra)) if extra else node


def state_fields(name: str, reduction: str) -> tuple[str, ...]:
    """The fields that are merged together with a field: a pair's own first, a state's in order."""
    if reduction in _PAIRS:
        return name, best_of(name), some_of(name)
    if fields := REDUCTIONS[reduction].fields:
        state = name.removesuffix(f".{fields[REDUCTIONS[reduction].place]}")
        return tuple(f"{state}.{f}" for f in fields)
    return (name,)


def merged_state(reduction: str, dtype: DType, old: State, new: State) -> State:
    """Merges two states of a reduction, the earlier one first.

    Args:
        reduction: The name of the reduction.
        dtype: The type in which the first field of the state is merged.
        old: The arrays of the earlier state; BFLOAT16 as float32.
        new: The arrays of the later state.

    Raises:
        DataError: An integer overflows.
    """
    if reduction in _PAIRS:
        return _PAIRS[reduction](old, new)
    if REDUCTIONS[reduction].fields:
        return merged_fields(state_of(reduction), old, new)
    monoid = REDUCTIONS[reduction].monoid
    assert monoid is not None  # all others have several fields
    function = SCALARS[monoid]
    failure = function.fails.get(dtype)
    if failure is not None and np.any(failure.numpy(old[0], new[0])):
        raise DataError(failure.reason)
    return (np.asarray(function.numpy(old[0], new[0])).astype(dtype.carrier),)


def _arg_min(a: State, b: State) -> State:
    return _better(a, b, less(b[1], a[1]), less(a[1], b[1]))


def _arg_max(a: State, b: State) -> State:
    return _better(a, b, less(a[1], b[1]), less(b[1], a[1]))


def _better(a: State, b: State, ahead: np.ndarray, behind: np.ndarray) -> State:
    """Returns the better one of two pairs; of equal ones the one with the least argument."""
    (arg, best, some), (new_arg, new_best, new_some) = a, b
    wins = new_some & (~some | ahead | (~behind & less(new_arg, arg)))
    return np.where(wins, new_arg, arg), np.where(wins, new_best, best), some | new_some


_PAIRS = {"arg_min": _arg_min, "arg_max": _arg_max}
"""Functions that merge the states of reductions with several fields, by name."""
