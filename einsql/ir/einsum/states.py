"""States of several fields: reductions that a user defines by INIT and MERGE.

A state has the running values of several fields. MERGE computes each field of a merged state from
an earlier and a later state. An output reduces to one field of the state; its arguments are the
fields of a point's state, which LIFT computes. Outputs `name.field` with the same name belong to
one state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.evaluation import expression_value, same, wide
from einsql.ir.einsum.graph import EinSum, Expr, Label, Output, Scalar, Value, cast
from einsql.ir.einsum.graph_rewriting import map_values
from einsql.ir.einsum.intervals import Bounds, bounds_of
from einsql.ir.einsum.simplification import simplify
from einsql.ir.functions import REDUCTIONS, Reduction
from einsql.ir.functions.casts import cast_array

EARLIER, LATER = 0, 1
"""The operand numbers of the two states in the expressions of MERGE."""


@dataclass(frozen=True, slots=True)
class StateField:
    """A field of a state.

    Attributes:
        start: The value of a state without points.
    """

    name: str
    dtype: DType
    start: Scalar


@dataclass(frozen=True, slots=True)
class State:
    """A state with the law that merges two of them.

    Attributes:
        name: The name of the aggregate.
        merge: For each field its merged value, over the fields of operands EARLIER and LATER.
        ordered: Whether MERGE is not commutative: states are merged in the order of the keys.
    """

    name: str
    fields: tuple[StateField, ...]
    merge: tuple[Expr, ...]
    ordered: bool = False

    def reduction(self, place: int) -> str:
        """The name of the reduction to a field, which is equal for equal states."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:12]
        return f"{self.name}.{self.fields[place].name}@{digest}"


class _ReductionName(str):
    """The name of a reduction to a field of a state; a pickle of it defines the reduction."""

    __slots__ = ("place", "state")
    state: State
    place: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.state, self.place)


def define(state: State) -> tuple[str, ...]:
    """Defines the reductions to the fields of a state.

    Returns:
        The name of the reduction to each field.
    """
    return tuple(_named(state, place) for place in range(len(state.fields)))


def _named(state: State, place: int) -> str:
    name = _ReductionName(state.reduction(place))
    name.state, name.place = state, place
    if name not in REDUCTIONS:
        start = state.fields[place].start
        _STATES[name] = state
        REDUCTIONS[name] = Reduction(
            name,
            lambda dtype: start,
            fields=tuple(f.name for f in state.fields),
            place=place,
            derivative=f"{state.name}() has none",
        )
    return name


_STATES: dict[str, State] = {}
"""The state of each reduction that `define` has defined."""


def state_of(reduction: str) -> State:
    """The state of a reduction to one of its fields.

    Raises:
        KeyError: The reduction has no state.
    """
    return _STATES[reduction]


def state_name(output: Output) -> str | None:
    """The name of an output's state, which outputs of its other fields have too; None without."""
    reduction = REDUCTIONS.get(output.reduction or "")
    if reduction is None or not reduction.fields:
        return None
    return output.name.removesuffix(f".{reduction.fields[reduction.place]}")


def has_states(node: EinSum) -> bool:
    """True if an output of a node is a field of a state."""
    return any(state_name(o) is not None for o in node.outputs)


def has_order(node: EinSum) -> bool:
    """True if a node has a state that is merged in the order of the keys."""
    return any(o.reduction in _STATES and state_of(o.reduction or "").ordered for o in node.outputs)


def owners(outputs: Sequence[Output]) -> list[int]:
    """For each output the number of the first output of an equal state; without a state its own.

    Equal states have the same law and the same points, as two aggregates have that differ only in
    the field that they return.
    """
    first: dict[object, int] = {}
    numbers = []
    for n, o in enumerate(outputs):
        if state_name(o) is None:
            numbers.append(n)
        else:
            law = state_of(o.reduction or "")
            key = (law.fields, law.merge, law.ordered, o.args, o.where)
            numbers.append(first.setdefault(key, n))
    return numbers


def merge_expressions(
    state: State, earlier: Sequence[Expr], later: Sequence[Expr], bounds: Bounds
) -> tuple[Expr, ...]:
    """MERGE over expressions, simplified.

    Args:
        state: The state with its law.
        earlier: The fields of the earlier state.
        later: The fields of the later state, such as the arguments of an output.
        bounds: The bounds of the labels that the expressions read.
    """
    sides = [
        {f.name: cast(e, f.dtype) for f, e in zip(state.fields, side, strict=True)}
        for side in (earlier, later)
    ]
    return tuple(
        simplify(cast(map_values(e, lambda v: sides[v.operand][v.field]), f.dtype), bounds)
        for f, e in zip(state.fields, state.merge, strict=True)
    )


def point_merges(node: EinSum) -> list[Expr]:
    """The expressions that merge a point into each state of a node.

    The fields of earlier states are values of operand -1, which is none of the node's.
    """
    merges: list[Expr] = []
    for n, o in enumerate(node.outputs):
        if state_name(o) is not None and owners(node.outputs)[n] == n:
            state = state_of(o.reduction or "")
            earlier = [Value(-1, f.name, f.dtype) for f in state.fields]
            merges += merge_expressions(state, earlier, o.args, bounds_of(node))
    return merges


def merged_fields(
    state: State,
    earlier: Sequence[np.ndarray],
    later: Sequence[np.ndarray],
    selected: np.ndarray | bool = True,
    widened: bool = False,
) -> tuple[np.ndarray, ...]:
    """Merges two states, element by element.

    Args:
        state: The state with its law.
        earlier: The arrays of the fields of the earlier states.
        later: The arrays of the fields of the later states.
        selected: Where failures are raised.
        widened: Whether floats are computed in DOUBLE.

    Raises:
        DataError: MERGE overflows, divides by zero or cannot cast at a selected element.
    """
    places = {f.name: n for n, f in enumerate(state.fields)}
    computed = wide if widened else same

    def leaf(e: Label | Value) -> np.ndarray:
        assert isinstance(e, Value)
        return (earlier if e.operand == EARLIER else later)[places[e.field]]

    shape = np.broadcast_shapes(*(a.shape for a in (*earlier, *later)))
    mask = np.broadcast_to(np.asarray(selected), shape)
    with np.errstate(all="ignore"):
        return tuple(
            np.broadcast_to(
                cast_array(expression_value(e, leaf, mask, computed), computed(f.dtype)), shape
            )
            for f, e in zip(state.fields, state.merge, strict=True)
        )


def reduced_fields(
    state: State, points: Sequence[np.ndarray], widened: bool = False
) -> tuple[np.ndarray, ...]:
    """Merges states along the first axis, in order: neighbours first, then pairs of them.

    Args:
        state: The state with its law.
        points: The arrays of the fields, with at least one element along the first axis.
        widened: Whether floats are computed in DOUBLE.

    Raises:
        DataError: MERGE overflows, divides by zero or cannot cast.
    """
    arrays = tuple(points)
    while len(arrays[0]) > 1:
        even = len(arrays[0]) // 2 * 2
        pairs = merged_fields(
            state, [a[0:even:2] for a in arrays], [a[1:even:2] for a in arrays], True, widened
        )
        rest = [a[even:] for a in arrays]
        arrays = tuple(
            np.concatenate([p, r]) if len(r) else p for p, r in zip(pairs, rest, strict=True)
        )
    return tuple(a[0] for a in arrays)
