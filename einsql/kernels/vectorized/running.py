"""Running reductions: `label <= key + c` or `label >= key + c` selects the reduced elements.

The running results of all values of the label are computed once, in linear time. Each key reads
the result of the values that it selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.affine import affine, free_labels_as_affine
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    EinSum,
    Expr,
    Output,
    conj,
    conjuncts,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import renumber
from einsql.ir.einsum.intervals import can_raise, fits, interval
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.kernel import Arrays, Runner, Tick, share
from einsql.kernels.scalars import bounds_of, labels_read
from einsql.kernels.vectorized.sums import from_zero

BLOCK = 256
"""Terms that are added one after the other.

A sum of n terms has at most 256 additions for each digit of n to this base, so 2⁴⁸ terms keep the
promised accuracy.
"""

LEAST = 8
"""Least keys of the edge; the running reduction and the gather pass its terms about eight times."""
LARGER = 4
"""Greatest size of the running results, relative to the operands and the result."""

_EXTREMES = {
    "min": np.fmin,  # NaN is greater than all other values
    "max": np.maximum,
    "bool_or": np.logical_or,
    "bool_and": np.logical_and,
}
_SELECTED = "selected"

CompileRunner = Callable[[EinSum], Runner]

_PLAIN = frozenset({DType.FLOAT, DType.DOUBLE, DType.BOOLEAN})


@dataclass(frozen=True, slots=True)
class _Edge:
    """The condition label <= key + shift, or label >= key + shift.

    Attributes:
        label: The reduced axis.
        key: The axis of the result.
        rises: True if the condition is a lower bound of the label.
        shift: The constant.
    """

    label: Axis
    key: Axis
    rises: bool
    shift: int

    def counts(self) -> np.ndarray:
        """The number of the label's values that each key selects, counted from their end."""
        edges = np.arange(self.key.lo, self.key.hi, dtype=np.int64) + self.shift
        selected = self.label.hi - edges if self.rises else edges + 1 - self.label.lo
        return np.clip(selected, 0, self.label.extent)


def compile_running(node: EinSum, compile_node: CompileRunner) -> Runner | None:
    """Matches reductions over one label up to, or from, the value of a key.

    Args:
        node: The node.
        compile_node: Compiles an element-wise node.

    Returns:
        The runner, or None. Sums of floats add at most 256 terms in sequence.
    """
    condition = _edge(node)
    if condition is None or not _pays(node, condition[0]):
        return None
    edge, inner, outer = condition
    bounds = bounds_of(node)
    read = (node.guard, *(e for o in node.outputs for e in (*o.args, o.where)))
    if any(can_raise(e, bounds) for e in read):
        return None
    if not all(_is_supported(node, o, edge) for o in node.outputs):
        return None
    others = tuple(k for k in node.keys if k != edge.key.label)
    fields = {o.name: o.args[0] for o in node.outputs}
    for o in node.outputs:
        if (selected := conj(inner, o.where)) != TRUE:
            fields[_selected(o)] = selected
    values = _part(node, (*others, edge.label.label), fields, compile_node)
    selects = None
    if outer != TRUE:
        selects = _part(node, node.keys, {_SELECTED: outer}, compile_node)
    return _Running(node, edge, values, selects, others).run


def _pays(node: EinSum, edge: _Edge) -> bool:
    """True unless there are few keys, or the running results are larger than all other arrays."""
    results = node.points // edge.key.extent
    result = node.points // edge.label.extent
    known = sum(prod(node.axis(x).extent for x in set(o.labels)) for o in node.operands)
    return edge.key.extent >= LEAST and results <= LARGER * (known + result)


def _edge(node: EinSum) -> tuple[_Edge, Expr, Expr] | None:
    """The condition on the label and a key, and the other conditions without and with the key."""
    if len(node.reduced) != 1 or any(a.define is not None or a.extent == 0 for a in node.axes):
        return None
    label = node.axis(node.reduced[0])
    edges = [
        (term, edge)
        for term in conjuncts(node.guard)
        if (edge := _as_edge(node, term, label)) is not None
    ]
    if len(edges) != 1:
        return None
    term, edge = edges[0]
    inner: list[Expr] = []
    outer: list[Expr] = []
    for other in conjuncts(node.guard):
        if other != term:
            (outer if edge.key.label in labels_read(node, other) else inner).append(other)
    if any(label.label in labels_read(node, e) for e in outer):
        return None
    by_key = (e for o in node.outputs for e in (*o.args, o.where))
    if any(edge.key.label in labels_read(node, e) for e in by_key):
        return None
    return edge, conj(*inner), conj(*outer)


def _as_edge(node: EinSum, term: Expr, label: Axis) -> _Edge | None:
    if not isinstance(term, Call) or term.fn not in ("le", "lt"):
        return None
    known = free_labels_as_affine(node)
    less, greater = (affine(a, known) for a in term.args)
    if less is None or greater is None:
        return None
    rest = greater.plus(less.scaled(-1))  # is at least `strict`
    steps = {x: s for x, s in rest.steps.items() if s}
    strict = term.fn == "lt"
    step = steps.pop(label.label, 0)
    if abs(step) != 1 or list(steps.values()) != [-step]:
        return None
    shift = rest.offset - strict
    return _Edge(label, node.axis(*steps), step > 0, -shift if step > 0 else shift)


def _is_supported(node: EinSum, o: Output, edge: _Edge) -> bool:
    """True for reductions that the kernel computes exactly or with the promised accuracy."""
    if len(o.args) != 1 or o.reduction is None:
        return False
    (arg,) = o.args
    if not all(t in _PLAIN or t.is_integer for t in (arg.dtype, o.dtype)):
        return False
    if o.reduction in _EXTREMES:
        return arg.dtype is o.dtype
    if o.reduction != "sum":
        return False
    if o.dtype.is_float:
        return arg.dtype.is_float
    terms = interval(arg, bounds_of(node)) if arg.dtype.is_integer else None
    if terms is None:
        return False
    most = edge.label.extent * max(map(abs, terms))
    return fits((-most, most), *o.dtype.range) and fits((-most, most), *DType.BIGINT.range)


def _selected(o: Output) -> str:
    """The field that says which elements an output reduces."""
    return f"{o.name} selected"


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Expressions of a node over some of its labels.

    Attributes:
        run: Computes them.
        numbers: The operands that they read.
    """

    run: Runner
    numbers: tuple[int, ...]

    def fields(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """The arrays of the expressions."""
        return self.run([operands[n] for n in self.numbers], tick)


def _part(
    node: EinSum, keys: tuple[str, ...], fields: Mapping[str, Expr], compile_node: CompileRunner
) -> _Part:
    numbers = tuple(sorted({n for e in fields.values() for n in operands_of(e)}))
    at = {n: k for k, n in enumerate(numbers)}
    outputs = tuple(Output(name, (renumber(e, at),), e.dtype) for name, e in fields.items())
    operands = tuple(node.operands[n] for n in numbers)
    axes = tuple(node.axis(k) for k in keys)
    return _Part(compile_node(EinSum(axes, operands, TRUE, keys, outputs)), numbers)


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A node that is run by running reductions.

    Attributes:
        node: The node.
        edge: The condition that selects values of the label.
        values: The reduced values, and which of them are selected, with the label as last axis.
        selects: Which keys select anything; None for all.
        others: The keys except that of the edge.
    """

    node: EinSum
    edge: _Edge
    values: _Part
    selects: _Part | None
    others: tuple[str, ...]

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Computes the fields of the result."""
        outputs = self.node.outputs
        steps = len(outputs) + 1
        order = (*self.others, self.edge.key.label)
        turn = tuple(order.index(k) for k in self.node.keys)
        counts = self.edge.counts()
        fields: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"):
            values = self.values.fields(operands, share(tick, 0, steps))
            selects = None
            if self.selects is not None:
                selects = self.selects.fields(operands, tick)[_SELECTED]
            for n, o in enumerate(outputs):
                identity = REDUCTIONS[o.reduction or ""].identity(o.dtype)
                terms = values[o.name]
                selected = values.get(_selected(o))
                if selected is not None:
                    terms = np.where(selected, terms, terms.dtype.type(identity))
                by_key = _running(o, terms, self.edge.rises)[..., counts].transpose(turn)
                if selects is not None:
                    by_key = np.where(selects, by_key, by_key.dtype.type(identity))
                fields[o.name] = np.ascontiguousarray(by_key)
                share(tick, n + 1, steps)(1.0)
        return fields


def _running(output: Output, terms: np.ndarray, from_end: bool) -> np.ndarray:
    """The reductions of the first 0, 1, 2, … terms along the last axis, or of the last ones."""
    terms = terms[..., ::-1] if from_end else terms
    dtype = output.dtype.numpy
    reduction = REDUCTIONS[output.reduction or ""]
    results = np.empty((*terms.shape[:-1], terms.shape[-1] + 1), dtype)
    results[..., 0] = reduction.identity(output.dtype)
    if reduction.name in _EXTREMES:
        _EXTREMES[reduction.name].accumulate(terms, axis=-1, out=results[..., 1:])
    else:
        work = np.dtype(np.float64 if output.dtype.is_float else np.int64)
        results[..., 1:] = running_sums(terms.astype(work, copy=False))
        if output.dtype.is_float:
            from_zero(results, results)
    return results


def running_sums(terms: np.ndarray) -> np.ndarray:
    """The sums of the first 1, 2, 3, … terms along the last axis, in the type of the terms."""
    blocks = terms.shape[-1] // BLOCK
    if blocks <= 1:
        return np.asarray(np.add.accumulate(terms, axis=-1))
    lead, blocked = terms.shape[:-1], blocks * BLOCK
    sums = np.empty(terms.shape, terms.dtype)
    inside = terms[..., :blocked].reshape(*lead, blocks, BLOCK)
    tiles = sums[..., :blocked].reshape(*lead, blocks, BLOCK)
    np.add.accumulate(inside, axis=-1, out=tiles)
    before = running_sums(np.ascontiguousarray(tiles[..., -1]))
    tiles[..., 1:, :] += before[..., :-1, None]
    np.add.accumulate(terms[..., blocked:], axis=-1, out=sums[..., blocked:])
    sums[..., blocked:] += before[..., -1:]
    return sums
