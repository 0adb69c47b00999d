"""Composition: replaces reads of a producer's fields by their definitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from einsql.core.schema import PRESENT, DType, is_flag
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Operand,
    Roots,
    Value,
    cast,
    conj,
    conjuncts,
    exprs,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import hint_over, map_exprs, map_values, relabel, renumber
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.functions import REDUCTIONS
from einsql.optimizer.rewrite.node_properties import (
    derived_are_total,
    distributed,
    factors,
    fresh_names,
    in_order,
    is_cheap,
    is_contraction,
    is_leaf,
    is_pointwise,
    is_total,
    readers,
    size,
)
from einsql.optimizer.rewrite.rules import Rule, rebuild

_LARGEST = 256
"""The maximum of subexpressions of a node: each inlined square doubles its argument."""


def compose(node: EinSum, n: int) -> EinSum | None:
    """The node with operand `n` replaced by its definition, or None if that is unsafe.

    It is safe if the producer's point exists wherever the node reads it, either always or because
    the node's guard tests its presence. It is also safe if reading a point that does not exist
    can neither raise nor drop the reader's point.
    """
    producer = node.operands[n].source
    if not isinstance(producer, EinSum) or producer.grid or not is_pointwise(producer):
        return None
    total = is_total(producer)
    asked = Value(n, PRESENT, DType.BOOLEAN)
    asks = asked in conjuncts(node.guard)
    inner = _Embedding(node, n, producer)
    sure = asks or (derived_are_total(producer) and inner.implies_guard())
    fields = _fields(producer, sure or total)
    if fields is None or not (total or _is_safe(node, n, producer, sure)):
        return None
    values = {name: inner.expr(e) for name, e in fields.items()}

    def composed(e: Expr) -> Expr:
        return map_values(e, lambda v: values[v.field] if v.operand == n else inner.outer(v))

    exists: list[Expr] = []
    if sure:
        exists = [inner.expr(producer.guard), *inner.key_conditions()]
    if asks:
        exists.append(values.get(PRESENT, TRUE))
        values[PRESENT] = TRUE
    over = map_exprs(node, composed)
    outputs = over.outputs
    if asks:  # the larger guard would make unreduced flags arbitrary
        outputs = tuple(
            replace(o, reduction="bool_or") if o.name == PRESENT and o.reduction is None else o
            for o in outputs
        )
    axes = (*inner.derived(), *over.axes)
    hint = hint_over((*node.hint, *inner.hint), {a.label for a in axes})
    guard = conj(*exists, over.guard)
    origins = tuple(dict.fromkeys((*producer.origins, *node.origins)))
    inlined = EinSum(axes, inner.operands, guard, node.keys, outputs, hint, node.grid, origins)
    return in_order(inlined)


def _fields(producer: EinSum, exists: bool) -> dict[str, Expr] | None:
    """Each field as an expression of the producer's point.

    Args:
        producer: A pointwise node.
        exists: Whether the point exists wherever a field is read.
    """
    point = TRUE if exists else producer.guard
    fields: dict[str, Expr] = {}
    for o in producer.outputs:
        if len(o.args) != 1 or o.args[0].dtype is not o.dtype:
            return None
        value = o.args[0]
        if o.reduction is not None:
            reduction = REDUCTIONS[o.reduction]
            if not reduction.idempotent:
                return None
            selected = conj(point, o.where)
            if reduction.monoid == "or":
                value = conj(selected, value)
            elif selected != TRUE:
                identity = reduction.identity(o.dtype)
                value = Call("if", (selected, value, Const(identity, o.dtype)), o.dtype)
        elif o.name == PRESENT:
            value = conj(point, value)
        fields[o.name] = value
    return fields


def _is_safe(node: EinSum, n: int, producer: EinSum, sure: bool) -> bool:
    """Whether a producer whose points may not exist can be composed.

    Args:
        node: The reader.
        n: The operand number.
        producer: The operand's node.
        sure: Whether the point exists wherever the reader's guard holds.
    """
    bounds = bounds_of(producer)
    raises = {
        o.name for o in producer.outputs if any(can_raise(e, bounds) for e in (*o.args, o.where))
    }
    if sure:  # only the axes' definitions are evaluated before the guard
        defines = [a.define for a in node.axes if a.define is not None]
        read = {
            e.field
            for d in defines
            for e in subexpressions(d)
            if isinstance(e, Value) and e.operand == n
        }
        return PRESENT not in read and not (read & raises)
    if any(a.define is not None for a in producer.axes):
        return False
    return not raises and not can_raise(producer.guard, bounds)


class _Embedding:
    """A producer's labels and operands, renamed for use inside its reader."""

    def __init__(self, node: EinSum, n: int, producer: EinSum) -> None:
        self._node = node
        self._producer = producer
        self._names = dict(zip(producer.keys, node.operands[n].labels, strict=True))
        others = [a.label for a in producer.axes if a.label not in self._names]
        self._names |= fresh_names(others, [a.label for a in node.axes])
        operands: list[Operand] = []
        self._outer_numbers: dict[int, int] = {}
        self._inner_numbers: dict[int, int] = {}
        for m, o in enumerate(node.operands):
            if m != n:
                self._outer_numbers[m] = _place(operands, o)
                continue
            for k, x in enumerate(producer.operands):
                moved = Operand(x.source, tuple(self._names[label] for label in x.labels))
                self._inner_numbers[k] = _place(operands, moved)
        self.operands = tuple(operands)

    @property
    def hint(self) -> list[tuple[str, int]]:
        """The producer's hint over the reader's labels."""
        return [(self._names[label], parts) for label, parts in self._producer.hint]

    def implies_guard(self) -> bool:
        """True if the reader's guard contains the producer's, a condition on keys alone."""
        wanted = list(conjuncts(self._producer.guard))
        if any(operands_of(c) for c in wanted):
            return False
        return {self.expr(c) for c in wanted} <= set(conjuncts(self._node.guard))

    def expr(self, e: Expr) -> Expr:
        """An expression of the producer over the reader's labels and operands."""
        return renumber(relabel(e, self._names), self._inner_numbers)

    def outer(self, e: Value) -> Value:
        """A value of another operand of the reader."""
        return replace(e, operand=self._outer_numbers[e.operand])

    def key_conditions(self) -> list[Expr]:
        """The conditions that derived keys of the producer impose on the reader's labels."""
        return [
            Call(
                "eq",
                (Label(self._names[a.label]), cast(self.expr(a.define), DType.BIGINT)),
                DType.BOOLEAN,
            )
            for a in self._producer.axes
            if a.define is not None and a.label in self._producer.keys
        ]

    def derived(self) -> list[Axis]:
        """The producer's derived axes that are not keys."""
        return [
            replace(a, label=self._names[a.label], define=self.expr(a.define))
            for a in self._producer.axes
            if a.define is not None and a.label not in self._producer.keys
        ]


def _place(operands: list[Operand], wanted: Operand) -> int:
    if wanted not in operands:  # nodes compare by identity
        operands.append(wanted)
    return operands.index(wanted)


def _is_view(producer: EinSum) -> bool:
    """True if every value is read without computation and flags are cheap."""
    flags = [e for o in producer.outputs if is_flag(o.name) for e in (*o.args, o.where)]
    return (
        is_pointwise(producer)
        and all(is_leaf(o.args[0]) for o in producer.outputs if not is_flag(o.name))
        and all(o.where == TRUE for o in producer.outputs if not is_flag(o.name))
        and all(is_cheap(e) for e in (producer.guard, *flags))
    )


def _keeps_contraction(producer: EinSum) -> bool:
    """True if a contraction over the producer stays a contraction after composition."""
    reads_data = any(a.define is not None and operands_of(a.define) for a in producer.axes)
    return not reads_data and len(operands_of(producer.guard)) <= 1


def inline_views(roots: Roots) -> tuple[Roots, int]:
    """Composes renames, transposes, slices, diagonals and broadcasts with all readers."""

    def inlines(node: EinSum, _: int, source: EinSum) -> bool:
        return _is_view(source) and (not is_contraction(node) or _keeps_contraction(source))

    return rebuild(roots, lambda _, node: _compose_where(node, inlines))


def _compose_where(node: EinSum, wanted: Callable[[EinSum, int, EinSum], bool]) -> EinSum:
    """Composes a node with the producers for which a condition holds, unless it gets too large.

    Args:
        node: The reader.
        wanted: Predicate of the reader, the number of an operand, and the operand's node.
    """
    n = 0
    while n < len(node.operands):
        source, new = node.operands[n].source, None
        if isinstance(source, EinSum) and wanted(node, n, source):
            new = compose(node, n)
        if new is None or sum(size(e) for e in exprs(new)) > _LARGEST:
            n += 1
        else:
            node = new
    return node


def fuse_maps(roots: Roots) -> tuple[Roots, int]:
    """Composes element-wise arithmetic with its reader, if that repeats no work."""
    readers_of = readers(*roots)

    def visit(old: EinSum, node: EinSum) -> EinSum:
        before = {id(o.source): p.source for o, p in zip(node.operands, old.operands, strict=True)}
        return _compose_where(
            node,
            lambda reader, n, source: (
                id(source) in before
                and _all_fuse(source, readers_of[id(before[id(source)])])
                and _fuses(reader, n, source)
            ),
        )

    return rebuild(roots, visit)


def _all_fuse(source: EinSum, reading: list[tuple[EinSum, int]]) -> bool:
    """True if all readers fuse, so that the producer need not be computed."""
    if len(reading) == 1:
        return True
    few = len(source.operands) <= 2 and _is_cheap_map(source)
    return few and all(_fuses(node, n, source) for node, n in reading)


def _fuses(node: EinSum, n: int, source: EinSum) -> bool:
    """True if composing takes at most the work of computing and reading the producer."""
    if not is_pointwise(source):
        return False
    if is_contraction(node):
        return _extends_chain(node, n, source)
    return node.points <= source.points or _is_cheap_map(source)


def _is_cheap_map(source: EinSum) -> bool:
    return all(is_cheap(e) for e in exprs(source))


def _extends_chain(node: EinSum, n: int, source: EinSum) -> bool:
    """True if a contraction's factor is a product of plain values, which gives one n-ary ⊗."""
    if source.guard != TRUE or len(source.outputs) != 1 or len(node.outputs) != 1:
        return False
    if any(a.define is not None for a in (*node.axes, *source.axes)):
        return False
    (output,) = node.outputs
    chain = distributed(output)
    value = source.outputs[0].args[0]
    return (
        chain is not None
        and source.is_elementwise
        and len(source.operands) > 1
        and Value(n, source.outputs[0].name, source.outputs[0].dtype) in chain[1]
        and isinstance(value, Call)
        and value.fn == chain[0]
        and all(isinstance(e, Value) for e in factors(value, value.fn))
        and not can_raise(value, bounds_of(source))
    )


INLINE_VIEWS = Rule(
    "inline-views",
    "f(π(X)) = (f∘π)(X) for a renaming, slice, diagonal or broadcast π",
    graph=inline_views,
)
FUSE_MAPS = Rule(
    "fuse-maps",
    "⊕ f(λ_g(X)) = ⊕ (f∘g)(X) for an element-wise g no element of which is computed twice",
    graph=fuse_maps,
)
