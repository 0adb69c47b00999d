"""Sums of products over pairs of present elements: recognition and operands.

An operand is read as a stack of matrices, with presence flags of the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Const,
    EinSum,
    Expr,
    Operand,
    Output,
    Value,
    conj,
    conjuncts,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import renumber
from einsql.kernels.kernel import Arrays, Runner, no_progress
from einsql.kernels.matmul.match import LABELS, Factor, product_of
from einsql.kernels.scalars import calls_of, failure_of, labels_read
from einsql.kernels.vectorized.sums import accurate_sum
from einsql.kernels.vectorized.views import reading

Labels = tuple[str, ...]
Compile = Callable[[EinSum], Runner]
Presence = Callable[[Sequence[Arrays]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Groups:
    """The labels of two sides.

    Attributes:
        batch: The keys of both sides.
        rows, columns: The keys of only the left side, and of only the right side.
        terms: The summed labels of both sides.
        gone: The summed labels of only one side, per side.
    """

    batch: Labels
    rows: Labels
    columns: Labels
    terms: Labels
    gone: tuple[Labels, Labels]


def groups_of(node: EinSum, joined: Joined) -> Groups:
    """The labels of a node over two sides."""
    left, right = (s.labels for s in joined.sides)
    keys = node.keys
    return Groups(
        batch=tuple(k for k in keys if k in left and k in right),
        rows=tuple(k for k in keys if k not in right),
        columns=tuple(k for k in keys if k not in left),
        terms=tuple(x for x in left if x in right and x not in keys),
        gone=(
            tuple(x for x in left if x not in right and x not in keys),
            tuple(x for x in right if x not in left and x not in keys),
        ),
    )


@dataclass(frozen=True, slots=True)
class Matrices:
    """An operand as matrices.

    Attributes:
        values: The values `[batch, rows, columns]` for each sum of products.
        present: The presence flags `[batch, rows, columns]`; None if all elements are present.
        columns: The number of columns.
    """

    values: tuple[np.ndarray, ...]
    present: np.ndarray | None
    columns: int

    def filled(self, term: int) -> np.ndarray:
        """The values of a term with 0 for absent elements."""
        values: np.ndarray = self.values[term]
        if self.present is None:
            return values
        return np.where(self.present, values, values.dtype.type(0))

    def is_finite(self) -> bool:
        """True if every present value is finite."""
        return all(np.isfinite(self.filled(n)).all() for n in range(len(self.values)))


class Reader:
    """Reads one side of a node.

    Args:
        node: The node.
        joined: The node's sums.
        number: The number of the side.
        axes: The labels that are merged to each of the three axes.
        gone: The labels that are summed first.
        compile_node: Compiles a node that computes presence.
    """

    def __init__(
        self,
        node: EinSum,
        joined: Joined,
        number: int,
        axes: tuple[Labels, Labels, Labels],
        gone: Labels,
        compile_node: Compile,
    ) -> None:
        side = joined.sides[number]
        extent = {a.label: a.extent for a in node.axes}
        kept = tuple(x for axis in axes for x in axis)
        order = (*kept, *gone)
        self.factors = [t.factors[number] for t in joined.terms]
        self.types = [work_type(t.output) for t in joined.terms]
        self.shape = tuple(prod(extent[x] for x in axis) for axis in axes)
        self.whole = tuple(extent[x] for x in order)
        self.gone = tuple(range(len(kept), len(order)))
        self.view = reading(node, node.operands[side.operand], order)
        self.presence = presence_of(node, side, order, compile_node)

    def read(self, operands: Sequence[Arrays]) -> Matrices:
        """Reads the operand's elements; only present elements are multiplied."""
        present = None if self.presence is None else self.presence(operands)
        values = [
            self._summed(self._values(operands, factors, work), present, work)
            for factors, work in zip(self.factors, self.types, strict=True)
        ]
        if present is not None:
            present = (present.any(axis=self.gone) if self.gone else present).reshape(self.shape)
        return Matrices(tuple(values), present, self.shape[2])

    def _values(
        self, operands: Sequence[Arrays], factors: Sequence[Factor], work: np.dtype
    ) -> np.ndarray:
        if not factors:
            return np.broadcast_to(np.ones((), work), self.whole)
        arrays = [operands[f.operand][f.field] for f in factors]
        first = arrays[0]
        with np.errstate(all="ignore"):
            for other in arrays[1:]:
                first = first.astype(work, copy=False) * other.astype(work, copy=False)
        return first if self.view is None else self.view(first)

    def _summed(self, values: np.ndarray, present: np.ndarray | None, work: np.dtype) -> np.ndarray:
        if self.gone:
            if present is not None:
                values = np.where(present, values, values.dtype.type(0))
            values = accurate_sum(values, self.gone, work)
        return values.reshape(self.shape)


def presence_of(node: EinSum, side: Side, order: Labels, compile_node: Compile) -> Presence | None:
    """Creates a function that computes the presence of a side's elements; None if all are present.

    Args:
        node: The node.
        side: One of the node's sides.
        order: The side's labels in the order of the flags' axes.
        compile_node: Compiles a node.
    """
    if side.guard == TRUE:
        return None
    numbers = sorted(operands_of(side.guard))
    plain = flag_of(node, side.guard, order)
    if plain is not None:
        operand, field = numbers[0], plain.field
        view = reading(node, node.operands[operand], order)
        if view is None:
            return lambda operands: operands[operand][field]
        return lambda operands: view(operands[operand][field])
    guard = renumber(side.guard, {n: at for at, n in enumerate(numbers)})
    run = compile_node(
        EinSum(
            tuple(node.axis(x) for x in order),
            tuple(Operand(node.operands[n].source, node.operands[n].labels) for n in numbers),
            TRUE,
            order,
            (Output("present", (guard,), DType.BOOLEAN),),
        )
    )
    return lambda operands: run([operands[n] for n in numbers], no_progress)["present"]


def flag_of(node: EinSum, guard: Expr, labels: Labels) -> Value | None:
    """The field that equals a guard, if it has all labels of its side, else None."""
    if isinstance(guard, Value) and set(node.operands[guard.operand].labels) == set(labels):
        return guard
    return None


def work_type(output: Output) -> np.dtype:
    """The type in which a sum is computed: the sum's type, but at least FLOAT."""
    wanted = output.dtype.numpy
    return wanted if wanted.itemsize >= 4 else np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Side:
    """One of two operands.

    Attributes:
        operand: The number of the operand.
        labels: The distinct labels of the operand.
        guard: The condition for the presence of its elements; TRUE for all.
    """

    operand: int
    labels: tuple[str, ...]
    guard: Expr


@dataclass(frozen=True, slots=True)
class Term:
    """A sum of products.

    Attributes:
        output: The output.
        factors: The multiplied fields of each side; empty for a factor of 1.
        scale: The factor of the sum.
    """

    output: Output
    factors: tuple[tuple[Factor, ...], ...]
    scale: float


@dataclass(frozen=True, slots=True)
class Joined:
    """A node's sums over joined elements.

    Attributes:
        sides: One or two sides.
        terms: The sums of products.
        counts: The outputs with the number of joined elements, or their presence.
    """

    sides: tuple[Side, ...]
    terms: tuple[Term, ...]
    counts: tuple[Output, ...]


def find(node: EinSum) -> Joined | None:
    """Matches a node with sums over joined elements; None for other nodes."""
    if any(a.define is not None or a.extent == 0 for a in node.axes):
        return None
    bare = replace(node, guard=TRUE)
    sums: list[tuple[Output, tuple[Factor, ...], float]] = []
    counts: list[Output] = []
    for o in node.outputs:
        if is_count(o):
            counts.append(o)
            continue
        product = product_of(bare, o)
        if product is None or product.scalars:
            return None
        sums.append((o, (*product.left, *product.right), product.scale))
    owners = dict.fromkeys(f.operand for _, factors, _ in sums for f in factors)
    others = sorted(
        (n for n in range(len(node.operands)) if n not in owners),
        key=lambda n: -len(node.operands[n].labels),
    )
    chosen = [*owners, *others][:2]
    if len(owners) > 2 or not chosen:
        return None
    sides = _sides(node, chosen)
    if sides is None:
        return None
    terms = tuple(
        Term(o, tuple(tuple(f for f in factors if f.operand == s.operand) for s in sides), scale)
        for o, factors, scale in sums
    )
    return Joined(sides, terms, tuple(counts))


def is_count(o: Output) -> bool:
    """True for an output with the number or the presence of joined elements."""
    if o.where != TRUE or len(o.args) != 1:
        return False
    if o.reduction == "bool_or":
        return o.args[0] == TRUE
    one = Const(1, DType.BIGINT)
    return o.reduction == "sum" and o.args[0] == one and o.dtype is DType.BIGINT


def counts_pairs(joined: Joined) -> bool:
    """True if an output is the number of joined elements, instead of their presence."""
    return any(o.reduction == "sum" for o in joined.counts)


def _sides(node: EinSum, chosen: list[int]) -> tuple[Side, ...] | None:
    """One or two operands with guards, if they have all labels and all conditions, else None."""
    labels = [tuple(dict.fromkeys(node.operands[n].labels)) for n in chosen]
    if len(chosen) == 2 and set(labels[1]) <= set(labels[0]) and not _read(node, chosen[1]):
        chosen, labels = chosen[:1], labels[:1]  # it only decides presence
    labels_held = {x for own in labels for x in own}
    if any(a.label not in labels_held for a in node.axes) or any(
        len(own) > LABELS for own in labels
    ):
        return None
    guards: list[list[Expr]] = [[] for _ in chosen]
    for term in conjuncts(node.guard):
        if any(map(failure_of, calls_of(term))):
            return None
        read = operands_of(term)
        fits = [n for n, own in enumerate(labels) if labels_read(node, term) <= set(own)]
        if not fits:
            return None
        fits.sort(key=lambda n: chosen[n] not in read)
        guards[fits[0]].append(term)
    return tuple(
        Side(n, own, conj(*terms)) for n, own, terms in zip(chosen, labels, guards, strict=True)
    )


def _read(node: EinSum, number: int) -> bool:
    return any(number in operands_of(e) for o in node.outputs for e in o.args)
