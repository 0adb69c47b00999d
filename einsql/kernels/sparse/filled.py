"""Nodes over sparse operands of which every key exists: a DEFAULT is the value of most keys.

The node runs over the stored elements as if the other keys were absent. The other points of a
group have one value, if the expressions do not depend on them: that of a map is the value of the
keys that the result does not store, and that of a reduction is merged as often as there are such
points (`unstored.py`). A product skips them if that changes no state: 0 times finite numbers is
the 0 of SUM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from einsql.core.free_memory import require
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.matrix import Sparse, sparse_of
from einsql.core.sparse.tiles import empty_tile
from einsql.ir.einsum.conditional_outputs import always
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    EinSum,
    Input,
    Operand,
    Output,
    Value,
    bigint,
    conj,
    filled_operands,
    stored_operands,
)
from einsql.ir.einsum.partial_merge import Total, repeated
from einsql.ir.einsum.partial_states import merges, with_state
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.sparse.optional import as_filled, with_every_key
from einsql.kernels.sparse.sides import Compile, find
from einsql.kernels.sparse.stored import over_stored, spans_of
from einsql.kernels.sparse.union import united
from einsql.kernels.sparse.unstored import EXISTS, Unstored, same_keys

POINTS = ".points"
"""The field with the number of a group's points over stored elements."""


def over_filled(
    node: EinSum, compile_node: Compile, interpret: Compile, otherwise: Callable[[], Runner]
) -> Runner | None:
    """Matches nodes over sparse operands of which every key exists.

    Args:
        node: The node.
        compile_node: Compiles the node over the stored elements.
        interpret: Compiles the node of the other points.
        otherwise: Compiles this node with another kernel, where these points differ.

    Returns:
        The runner, or None. It returns an `Elements` for a node that is sparse.
    """
    if node.guard == FALSE:
        return _without_points(node)
    numbers = filled_operands(node)
    if stored_operands(node) or not numbers or not (node.sparse or node.reduced):
        return None
    filled = with_every_key(always(node), numbers)
    unstored = Unstored.of(filled, numbers, interpret, node.sparse)
    if unstored is None:
        return None
    joined = find(node) if unstored.axes else None
    if joined is not None and over_stored(node, joined, compile_node) is not None:
        return None  # it reads the operand as it is stored
    plan = _Filled(filled, numbers, unstored, compile_node, node.sparse)
    has_flag = [o.source.schema.has(PRESENT) for o in node.operands]
    other = cache(otherwise)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        stored = (sparse_of(operands[n]) for n in numbers)
        pairs = zip(stored, numbers, strict=True)
        if all(few is not None and few.filled != has_flag[n] for few, n in pairs):
            computed = plan.run(operands, tick)
            if computed is not None:
                return computed  # type: ignore[return-value] # announced by `may_be_sparse`
        if node.sparse:  # the executor has not counted its bytes
            require(node.schema.size * sum(f.dtype.numpy.itemsize for f in node.schema.fields))
        return other()(operands, tick)

    return run


def _without_points(node: EinSum) -> Runner | None:
    """The runner of a node whose condition is FALSE; None if every key of its result exists."""
    if not node.sparse or not any(o.name == PRESENT for o in node.outputs):
        return None
    dtypes = {o.name: o.dtype.numpy for o in node.outputs if o.name != PRESENT}
    return lambda operands, tick: empty_tile(node.schema.shape, dtypes)  # type: ignore[return-value] # announced by `may_be_sparse`


class _Filled:
    """A node over operands of which every key exists.

    Args:
        node: The node, without conditional outputs.
        numbers: The operands.
        unstored: The value of the points that are not stored.
        compile_node: Compiles a node over stored elements.
        is_sparse: Whether the result may be sparse.
    """

    def __init__(
        self,
        node: EinSum,
        numbers: Sequence[int],
        unstored: Unstored,
        compile_node: Compile,
        is_sparse: bool,
    ) -> None:
        self.node = node
        self.is_sparse = is_sparse
        self.numbers = numbers
        self.groups = same_keys(node, numbers)
        self.unstored = unstored
        self.is_flagged = any(o.name == PRESENT for o in node.outputs)
        self.total = prod(node.axis(x).extent for x in node.reduced)
        self.stored_only = cache(lambda: compile_node(self._over_stored(node)))
        self.counted = cache(lambda: compile_node(self._counting(with_state(node))))

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Arrays | None:
        """The node's result; None if the points without stored elements differ in value."""
        filled = {n: self._narrowed(n, operands) for n in self.numbers}
        stored, full = list(operands), True
        for group in self.groups:
            elements = united([(filled[n], self.node.operands[n].labels) for n in group])
            for n, fields in zip(group, elements, strict=True):
                stored[n] = fields
            full = full and elements[0].structure.stored == elements[0].structure.size
        value = None if full else self.unstored.value(stored, filled)
        if not full and value is None:
            return None
        if not self.node.reduced:
            return self._mapped(stored, value, tick)
        if value is None or self.unstored.changes_nothing(value):
            part = self.stored_only()(stored, tick)
            return self._shown(part, None if full else self.unstored.empty())
        return self._merged(stored, value, tick) if merges(self.node) else None

    def _narrowed(self, number: int, operands: Sequence[Arrays]) -> Sparse:
        fields = sparse_of(operands[number])
        assert fields is not None
        part = sparse_of(fields.narrowed(spans_of(self.node, self.node.operands[number])))
        assert part is not None
        values = {name: part.taken(name).values for name in part.names}
        # The part may share the arrays of a caller, who may change them later.
        elements = Elements(part.taken(), values, part.fills, part.turned, fields.is_constant)
        return elements if part.filled else as_filled(elements)

    # ---- results

    def _mapped(
        self, stored: Sequence[Arrays], value: Mapping[str, np.ndarray] | None, tick: Tick
    ) -> Arrays | None:
        """The result of a map, or of groups of one point."""
        exists = value is not None and bool(value[EXISTS])
        if exists and (self.is_flagged or self.node.guard != TRUE):
            return None  # a condition excludes few keys, or stored elements that would have a fill
        return self._shown(self.stored_only()(stored, tick), value)

    def _shown(self, part: Arrays, value: Mapping[str, np.ndarray] | None) -> Arrays:
        """The fields of the result.

        Args:
            part: The fields over the stored elements.
            value: The fields of the other keys; None if there are none.
        """
        names = [o.name for o in self.node.outputs]
        few = sparse_of(part)
        if few is None:
            return {name: part[name] for name in names}
        values = {name: few.taken(name).values for name in names if name != PRESENT}
        zeros = {name: np.zeros((), array.dtype) for name, array in values.items()}
        fills = zeros if value is None else {name: value[name] for name in values}
        return Elements(few.taken(), values, None if self.is_flagged else fills)

    def _merged(
        self, stored: Sequence[Arrays], value: Mapping[str, np.ndarray], tick: Tick
    ) -> Arrays | None:
        """The result of a reduction: the stored points of each group merged with the other ones."""
        node = with_state(self.node)
        part = self.counted()(stored, tick)
        few = sparse_of(part)
        fields = part
        if few is not None:  # the other points of all groups have one value
            fields = {n: few.taken(n).values for n in few.names}
            value = {n: a.reshape(()) for n, a in value.items()}
        known = {o.name: fields[EXISTS if o.name == PRESENT else o.name] for o in node.outputs}
        total = Total(node)
        total.add(known)
        total.add(repeated(node, value, self.total - fields[POINTS]))
        merged = total.result()
        if few is None:
            return {o.name: merged[o.name] for o in self.node.outputs}
        every = Total(node)
        every.add(repeated(node, value, np.asarray(self.total)))
        fills = every.result()
        if self.is_flagged and bool(fills[PRESENT]):
            return None  # a condition excludes few groups
        structure = few.taken()
        values = {o.name: merged[o.name] for o in self.node.outputs if o.name != PRESENT}
        if self.is_flagged:
            kept = merged[PRESENT]
            return Elements(structure.only(kept), {n: a[kept] for n, a in values.items()})
        return Elements(structure, values, {n: np.asarray(fills[n]) for n in values})

    # ---- nodes over stored elements

    def _over_stored(self, node: EinSum) -> EinSum:
        """The node with operands of which only the stored keys exist."""
        flags = [Value(n, PRESENT, DType.BOOLEAN) for n in self.numbers]
        operands = tuple(
            self._flagged(n) if n in self.numbers else o for n, o in enumerate(node.operands)
        )
        outputs = node.outputs
        if self.is_sparse and not any(o.name == PRESENT for o in outputs):
            outputs = (*outputs, _presence())
        return replace(node, operands=operands, guard=conj(*flags, node.guard), outputs=outputs)

    def _flagged(self, number: int) -> Operand:
        operand = self.node.operands[number]
        (group,) = (g for g in self.groups if number in g)
        labels = self.node.operands[group[0]].labels
        keys = tuple(Key(x, (a := self.node.axis(x)).lo, max(a.lo, a.hi)) for x in labels)
        fields = (*operand.source.schema.fields, Field(PRESENT, DType.BOOLEAN))
        source = Input(f"stored elements {number}", Schema(keys, fields), sparse=True)
        return Operand(source, labels)

    def _counting(self, node: EinSum) -> EinSum:
        """The node over stored elements with the number of each group's points.

        Conditions move to the outputs, as points that they exclude are counted, too.
        """
        renamed = {PRESENT: EXISTS}
        outputs = [
            replace(o, name=renamed.get(o.name, o.name), where=conj(o.where, node.guard))
            for o in node.outputs
        ]
        points = Output(POINTS, (bigint(1),), DType.BIGINT, "sum")
        return self._over_stored(replace(node, guard=TRUE, outputs=(*outputs, points)))


def _presence() -> Output:
    return Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or")
