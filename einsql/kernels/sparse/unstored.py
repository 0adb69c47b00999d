"""The points of a node at which operands have no stored element: their common value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType, Key, Schema
from einsql.core.sparse.matrix import Sparse, sparse_of
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Input,
    Operand,
    Output,
    exprs,
    labels_of,
    operands_of,
    where_absent,
)
from einsql.ir.einsum.graph_rewriting import fresh, map_exprs
from einsql.ir.einsum.partial_states import merges, with_state
from einsql.kernels.kernel import Arrays, Runner, no_progress
from einsql.kernels.sparse.optional import WAS
from einsql.kernels.sparse.sides import Compile
from einsql.kernels.vectorized.reductions import starting

SIZES = 4
"""Greatest number of sizes for which nodes are cached."""
EXISTS = ".exists"
"""The field of a value that says whether points with it exist."""
FEW = 8
"""Least number of a node's points for each point at which a value is computed."""

Groups = tuple[tuple[int, ...], ...]
"""Operands over the same keys."""


def same_keys(node: EinSum, numbers: Sequence[int]) -> Groups:
    """The operands grouped by their labels.

    Args:
        node: The node.
        numbers: The operands, each with different labels.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for n in numbers:
        groups.setdefault(frozenset(node.operands[n].labels), []).append(n)
    return tuple(map(tuple, groups.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Unstored:
    """The value of the points at which some group of operands stores no element.

    The value of a map has the fields of the node, and that of a reduction the fields of the state
    of one point. Both have `EXISTS`, whether the node's condition selects the points.

    Attributes:
        node: The node.
        groups: The operands of which every key exists, by their keys.
        axes: The labels that the value may depend on; keys of the node come first.
        compiled: Compiles the node that computes the value where some operands have a fill, and
            others, of a number of elements, have the stored values.
    """

    node: EinSum
    groups: Groups
    axes: tuple[Axis, ...]
    compiled: Callable[[frozenset[int], int | None], Runner]

    @classmethod
    def of(
        cls, node: EinSum, numbers: Sequence[int], interpret: Compile, is_sparse: bool
    ) -> Unstored | None:
        """The value of a node's points; None if it depends on too many of them.

        Args:
            node: The node, without conditional outputs.
            numbers: The operands.
            interpret: Compiles a node.
            is_sparse: Whether the result may be sparse.
        """
        if any(a.define is not None or not a.extent for a in node.axes):
            return None
        groups = same_keys(node, numbers)
        if len(groups) == 1:  # all of its operands have no element
            node = map_exprs(node, lambda e: where_absent(e, numbers, WAS))
            node = _without_unread(node, numbers)
        labels = {x for n, o in enumerate(node.operands) if n not in numbers for x in o.labels}
        labels = labels.union(*map(labels_of, exprs(node)))
        order = dict.fromkeys([*node.keys, *(a.label for a in node.axes)])
        axes = tuple(node.axis(x) for x in order if x in labels)
        if len(groups) > 2 or (axes and (len(groups) > 1 or is_sparse)):
            return None
        if axes and prod(a.extent for a in axes) * FEW > node.points:
            return None

        @lru_cache(SIZES)
        def compiled(at_fill: frozenset[int], stored: int | None) -> Runner:
            return interpret(_at_fills(node, numbers, axes, at_fill, stored))

        return cls(node, groups, axes, compiled)

    def value(
        self, stored: Sequence[Arrays], filled: Mapping[int, Sparse]
    ) -> dict[str, np.ndarray] | None:
        """The common value of the points, which are at least one; None if they differ.

        Args:
            stored: The operands; those in groups have the elements that their group stores.
            filled: The operands of the groups, with their fills.

        Raises:
            DataError: The value cannot be computed, and some point has it.
        """
        every = {n for group in self.groups for n in group}
        if len(self.groups) == 1:
            try:
                computed = self._computed(stored, filled, every, None)
            except DataError:
                if self.axes:
                    return None  # at other values of the labels than those of the points
                raise
            return self._constant(computed)
        parts = []
        for group in self.groups:
            (other,) = (g for g in self.groups if g is not group)
            few = sparse_of(stored[other[0]])
            assert few is not None
            try:
                parts.append(self._computed(stored, filled, {*group}, few.matrix.stored))
            except DataError:
                return None
        try:
            both = self._computed(stored, filled, every, None)
        except DataError:
            return None
        same = all(_equal(o, part[o.name], both[o.name]) for part in parts for o in self._outputs)
        return both if same else None

    @property
    def _outputs(self) -> tuple[Output, ...]:
        return _outputs(self.node)

    def _computed(
        self,
        stored: Sequence[Arrays],
        filled: Mapping[int, Sparse],
        at_fill: set[int],
        elements: int | None,
    ) -> dict[str, np.ndarray]:
        arrays = list(stored)
        for n in filled:
            few = sparse_of(stored[n])
            assert few is not None
            if n in at_fill:
                arrays[n] = {name: np.asarray(filled[n].fill(name)) for name in few.names}
            else:
                arrays[n] = {name: few.taken(name).values for name in few.names}
        return self.compiled(frozenset(at_fill), elements)(arrays, no_progress)

    def _constant(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The value over the keys, with extent 1 along keys of which it is independent."""
        keys = [a.label for a in self.axes if a.label in self.node.keys]
        shape = [self.node.axis(x).extent if x in keys else 1 for x in self.node.keys]
        value = {}
        for o in self._outputs:
            array = found[o.name]
            first = array[(slice(None),) * len(keys) + (slice(0, 1),) * (array.ndim - len(keys))]
            if not _equal(o, array, first):
                return None
            value[o.name] = first.reshape(shape if self.node.reduced else ())
        return value

    def changes_nothing(self, value: Mapping[str, np.ndarray]) -> bool:
        """Whether the state of a point equals that of no point."""
        if not value[EXISTS].any():
            return True
        states = with_state(self.node).outputs
        return merges(self.node) and all(_equal(o, value[o.name], starting(o, ())) for o in states)

    def empty(self) -> dict[str, np.ndarray]:
        """The fields of the node for no points."""
        return {o.name: starting(o, ()) for o in self.node.outputs}


def _without_unread(node: EinSum, numbers: Sequence[int]) -> EinSum:
    """The node with operands without keys in place of those that no expression reads."""
    read = set(numbers).union(*map(operands_of, exprs(node)))
    nothing = Operand(Input("unread", Schema((), ())), ())
    operands = (o if n in read else nothing for n, o in enumerate(node.operands))
    return replace(node, operands=tuple(operands))


def _outputs(node: EinSum) -> tuple[Output, ...]:
    outputs = (with_state(node) if node.reduced else node).outputs
    return (*outputs, Output(EXISTS, (TRUE,), DType.BOOLEAN, "bool_or"))


def _at_fills(
    node: EinSum,
    numbers: Sequence[int],
    axes: tuple[Axis, ...],
    at_fill: frozenset[int],
    stored: int | None,
) -> EinSum:
    """The node of the value.

    Args:
        node: The node.
        numbers: The operands in groups.
        axes: The labels that it depends on.
        at_fill: The operands that have the value of their unstored keys.
        stored: The number of elements of the other ones; None if there are none.
    """
    element = fresh("element", (a.label for a in axes))
    operands = list(node.operands)
    for n in numbers:
        schema = operands[n].source.schema
        keys = () if n in at_fill else (Key(element, 0, stored or 0),)
        source = Input(f"value {n}", Schema(keys, schema.fields))
        operands[n] = Operand(source, () if n in at_fill else (element,))
    if stored is not None:
        axes = (*axes, Axis(element, 0, stored))
    return replace(
        node,
        axes=axes,
        operands=tuple(operands),
        keys=tuple(a.label for a in axes),
        outputs=_outputs(node),
        hint=(),
        grid=(),
    )


def _equal(o: Output, array: np.ndarray, value: np.ndarray) -> bool:
    """Whether all elements are a value; of sums 0 and -0 are equal."""
    if array.dtype.kind != "f":
        return bool((array == value).all())
    same = array == value
    if o.reduction != "sum":
        same &= np.signbit(array) == np.signbit(value)
    return bool((same | (np.isnan(array) & np.isnan(value))).all())
