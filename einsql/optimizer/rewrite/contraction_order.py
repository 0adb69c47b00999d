"""Contraction order: an n-ary join under a reduction becomes a tree of binary joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import reduce

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.core.unknowns import computed
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    cast,
    conj,
    conjuncts,
    exprs,
    labels_of,
    operands_of,
    stored_operands,
)
from einsql.ir.einsum.graph_rewriting import hint_over, renumber
from einsql.ir.einsum.intervals import bounds_of, can_raise, fits, interval
from einsql.ir.functions import REDUCTIONS, Interval
from einsql.optimizer.rewrite.contraction_tree import GENERATED, WRITTEN, Path, improved
from einsql.optimizer.rewrite.node_properties import distributed
from einsql.optimizer.rewrite.rules import Rule


@dataclass(frozen=True, slots=True)
class _Terms:
    """An output's ⊗-chain: its function (None for one factor) and its factors."""

    output: Output
    fn: str | None
    factors: tuple[Expr, ...]


@dataclass(slots=True)
class _Part:
    """Joined operands: one node of partial results, or a join that is not computed yet.

    Attributes:
        members: Numbers of the original operands.
        operands: The operands that replace them, with labels of the original node.
        guard: Conditions already applied, over `operands`.
        partial: For each output, by name, the part's contribution over `operands`.
    """

    members: frozenset[int]
    operands: tuple[Operand, ...]
    guard: Expr = TRUE
    partial: dict[str, Expr] = field(default_factory=dict)

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(x for o in self.operands for x in o.labels)


Choose = Callable[[tuple[frozenset[str], ...], EinSum], Path]
"""Returns the path along which parts with some labels are joined, for a node over all of them."""


def factor_order(node: EinSum, choose: Choose | None = None) -> EinSum:
    """Splits a reduction of a product of three or more operands into binary steps.

    Every output must be ⊕ of a chain of a ⊗ that distributes over it, each factor reading
    one operand. The order is `shortest_path`'s for the label extents, or `choose`'s. A condition is
    applied in the first step that has all labels and values it reads; the result of that step
    then has PRESENT.

    Exactness: partial results are rounded separately. If data contain infinities or NaN, the
    order decides whether inf - inf or 0 · inf occurs. Integers are reordered only if no
    partial result can overflow.
    """
    if _follows_elements(node):
        return node
    if len(node.operands) < 3 or not node.reduced or not _is_eligible(node) or _is_scaled(node):
        return node
    terms = [_terms(node, o) for o in node.outputs]
    known = [t for t in terms if t is not None]
    if len(known) < len(terms) or not _is_exact(node, known):
        return node
    plan = _Plan(node, known, choose or shortest_path)
    if len(plan.parts) < 3:
        return node
    new = plan.run()
    return node if set(new.operands) <= set(node.operands) else new


def _follows_elements(node: EinSum) -> bool:
    """True if the stored elements of an operand decide all labels but one.

    A join has a point for each of them and each value of that label. No step that joins the
    operand has fewer, and steps without it have points where no element is stored.
    """
    labels = {a.label for a in node.axes}
    return any(len(labels.difference(node.operands[n].labels)) < 2 for n in stored_operands(node))


def _is_scaled(node: EinSum) -> bool:
    """True for one or two operands times scalars, which a product kernel includes."""
    keyed = {n for n, o in enumerate(node.operands) if o.labels}
    sparse = any(isinstance(o.source, Input) and o.source.sparse for o in node.operands)
    dense = not sparse and not any(operands_of(t) & keyed for t in conjuncts(node.guard))
    return 1 <= len(keyed) <= 2 and dense


def _is_eligible(node: EinSum) -> bool:
    if any(a.define is not None or a.extent == 0 for a in node.axes):
        return False
    bounds = bounds_of(node)
    if any(can_raise(e, bounds) for e in exprs(node)):
        return False
    read = {n for e in exprs(node) for n in operands_of(e)}
    return len(read) == len(node.operands) and all(
        _is_local(node, c) for c in conjuncts(node.guard)
    )


def _is_local(node: EinSum, expr: Expr) -> bool:
    """True if the operands that an expression reads have all the labels that it reads."""
    read = operands_of(expr)
    return not read or labels_of(expr) <= {x for n in read for x in node.operands[n].labels}


def _terms(node: EinSum, o: Output) -> _Terms | None:
    if o.reduction is None or not REDUCTIONS[o.reduction].over or o.where != TRUE:
        return None
    (arg,) = o.args
    fn, parts = distributed(o) or (None, (arg,))
    if any(len(operands_of(f)) > 1 or not _is_local(node, f) for f in parts):
        return None
    same_kind = arg.dtype is o.dtype or (arg.dtype.is_integer and o.dtype.is_integer)
    return _Terms(o, fn, parts) if same_kind and not o.dtype.is_short else None


def _is_exact(node: EinSum, terms: list[_Terms]) -> bool:
    """True if no integer step can overflow in any order."""
    bounds = bounds_of(node)
    points = node.points
    for t in terms:
        if not t.output.dtype.is_integer:
            continue
        most = 1
        for f in t.factors:
            span: Interval = interval(f, bounds)
            if span is None:
                return False
            size = max(abs(span[0]), abs(span[1]), 1)
            most = most + size if t.fn == "add" else most * size
        if not fits((-most * points, most * points), *t.output.dtype.range):
            return False
    return True


class _Plan:
    """Parts, with the conditions and factors that are not applied yet."""

    def __init__(self, node: EinSum, terms: list[_Terms], choose: Choose) -> None:
        self.node, self.choose = node, choose
        self.terms = terms
        self.waiting = list(conjuncts(node.guard))
        self.loose = {t.output.name: [f for f in t.factors if not operands_of(f)] for t in terms}
        self.parts = [self._raw(group) for group in self._groups()]

    def run(self) -> EinSum:
        """Joins the parts along a path.

        A join that reduces nothing becomes a node only if the next step has further labels;
        otherwise the next step does it at no cost.
        """
        parts = [self._reduced(p, [q for q in self.parts if q is not p]) for p in self.parts]
        for step in self.choose(tuple(p.labels for p in parts), self.node)[:-1]:
            chosen = [parts[n] for n in step]
            parts = [p for n, p in enumerate(parts) if n not in step]
            parts.append(self._reduced(self._merged(chosen, parts), parts))
        return self._finish(parts)

    def _groups(self) -> list[frozenset[int]]:
        """Groups of operands; the operands that one condition reads are in one group."""
        groups = [frozenset({n}) for n in range(len(self.node.operands))]
        for condition in self.waiting:
            read = operands_of(condition)
            together = frozenset().union(*(g for g in groups if g & read))
            if together:
                groups = [g for g in groups if not g & read] + [together]
        return sorted(groups, key=min)

    def _raw(self, members: frozenset[int]) -> _Part:
        numbers = {old: new for new, old in enumerate(sorted(members))}
        part = _Part(members, tuple(self.node.operands[n] for n in sorted(members)))
        part.guard = self._decide(part, numbers)
        for t in self.terms:
            own = [renumber(f, numbers) for f in t.factors if operands_of(f) & members]
            if own:
                part.partial[t.output.name] = _chain(t, own)
        return part

    def _decide(self, part: _Part, numbers: dict[int, int]) -> Expr:
        """Removes and returns the pending conditions that the part can evaluate."""
        decided = [
            c
            for c in self.waiting
            if operands_of(c) <= part.members and labels_of(c) <= part.labels
        ]
        self.waiting = [c for c in self.waiting if c not in decided]
        return conj(*(renumber(c, numbers) for c in decided))

    def _wanted(self, part: _Part, others: Iterable[_Part]) -> frozenset[str]:
        """Labels of a part that other parts, keys or pending expressions read."""
        conditions = (*self.waiting, *(f for loose in self.loose.values() for f in loose))
        read = (*(o.labels for o in others), *map(labels_of, conditions))
        outside = set(self.node.keys).union(*read)
        # A partial result counts repeated points, unless repetition changes nothing.
        counted = all(
            t.output.name in part.partial or REDUCTIONS[t.output.reduction or ""].idempotent
            for t in self.terms
        )
        return part.labels & outside if counted else part.labels

    def _reduced(self, part: _Part, others: list[_Part]) -> _Part:
        """The part reduced over the labels without other readers; itself if there are none."""
        return part if self._wanted(part, others) == part.labels else self._stored(part, others)

    def _merged(self, chosen: list[_Part], others: list[_Part]) -> _Part:
        """Several parts as one part that is not computed yet."""
        labels = frozenset().union(*(p.labels for p in chosen))
        if not others:
            labels |= self._unread()
        chosen = [
            p
            if len(p.operands) == 1 or p.labels == labels
            else self._stored(p, [*others, *(q for q in chosen if q is not p)])
            for p in chosen
        ]
        operands: list[Operand] = []
        guards: list[Expr] = []
        partial: dict[str, list[Expr]] = {}
        for p in chosen:
            numbers = {n: n + len(operands) for n in range(len(p.operands))}
            operands += p.operands
            guards.append(renumber(p.guard, numbers))
            for name, e in p.partial.items():
                partial.setdefault(name, []).append(renumber(e, numbers))
        members = frozenset().union(*(p.members for p in chosen))
        part = _Part(members, tuple(operands), conj(*guards))
        decided = self._decide(part, {})
        part.guard = conj(part.guard, decided)
        part.partial = {
            t.output.name: _chain(t, partial[t.output.name])
            for t in self.terms
            if t.output.name in partial
        }
        return part

    def _stored(self, part: _Part, others: Iterable[_Part]) -> _Part:
        """The part as a separate node, reduced to the labels with other readers."""
        wanted = self._wanted(part, others)
        keys = tuple(a.label for a in self.node.axes if a.label in wanted)
        reduces = len(keys) < len(part.labels)
        if not reduces:  # labels that the next step sums go last; sums choose their own layout
            kept = tuple(k for k in self.node.keys if k in wanted)
            keys = (*kept, *(x for x in keys if x not in kept))
        outputs = [
            Output(
                _stored_name(t),
                (part.partial[t.output.name],),
                t.output.dtype,
                t.output.reduction if reduces else None,
            )
            for t in self.terms
            if t.output.name in part.partial
        ]
        if part.guard != TRUE:
            outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
        node = self._over(part.labels, part.operands, part.guard, keys, outputs)
        guard = TRUE if part.guard == TRUE else Value(0, PRESENT, DType.BOOLEAN)
        partial: dict[str, Expr] = {
            t.output.name: Value(0, _stored_name(t), t.output.dtype)
            for t in self.terms
            if t.output.name in part.partial
        }
        return _Part(part.members, (Operand(node, keys),), guard, partial)

    def _finish(self, parts: list[_Part]) -> EinSum:
        last = self._merged(parts, [])
        outputs = []
        for t in self.terms:
            rest, name = self.loose[t.output.name], t.output.name
            arg = _chain(t, [*rest, last.partial[name]] if name in last.partial else rest)
            outputs.append(replace(t.output, args=(arg,)))
        guard = conj(last.guard, *self.waiting)
        labels = last.labels | self._unread()
        return self._over(labels, last.operands, guard, self.node.keys, outputs)

    def _unread(self) -> frozenset[str]:
        """Labels without an operand: keys to broadcast over, or points to repeat."""
        read = {x for o in self.node.operands for x in o.labels}
        return frozenset(a.label for a in self.node.axes if a.label not in read)

    def _over(
        self,
        labels: frozenset[str],
        operands: tuple[Operand, ...],
        guard: Expr,
        keys: tuple[str, ...],
        outputs: list[Output],
    ) -> EinSum:
        """A node over some of the labels."""
        axes = tuple(a for a in self.node.axes if a.label in labels)
        hint = hint_over(self.node.hint, labels)
        return EinSum(axes, operands, guard, keys, tuple(outputs), hint, self.node.grid)


def _stored_name(t: _Terms) -> str:
    """The field of a partial result; the PRESENT field marks the partial results that exist."""
    return f"partial{PRESENT}" if t.output.name == PRESENT else t.output.name


def _chain(t: _Terms, found: list[Expr]) -> Expr:
    """A product of factors in the output's type."""
    parts = [cast(f, t.output.dtype) for f in found]
    return reduce(lambda a, b: Call(t.fn or "", (a, b), t.output.dtype), parts)


def shortest_path(parts: Sequence[frozenset[str]], node: EinSum) -> Path:
    """The parts to join in each step: opt_einsum's path with few operations, improved."""
    labels, keys = [a.label for a in node.axes], node.keys
    orders = {frozenset(o.labels): o.labels for o in node.operands}
    ordered = [orders.get(part, part) for part in parts]
    written = WRITTEN if _is_by_blas(node) else GENERATED

    def search(*extents: int) -> Path:
        from opt_einsum import paths  # 60 ms, and few statements join three operands

        sizes = {x: max(1, extent) for x, extent in zip(labels, extents, strict=True)}
        path = list(paths.auto(list(parts), frozenset(keys), sizes, None))
        return improved(path, ordered, keys, sizes, written)

    return computed(search, *(a.extent for a in node.axes))


def _is_by_blas(node: EinSum) -> bool:
    """True if BLAS computes the steps: float sums of products."""
    return all(
        o.name == PRESENT or (o.dtype.is_float and o.reduction == "sum") for o in node.outputs
    )


FACTOR_ORDER = Rule(
    "factor-order",
    "⊕_{i,j} x_i ⊗ y_{ij} ⊗ z_j = ⊕_j (⊕_i x_i ⊗ y_{ij}) ⊗ z_j for ⊗ distributing over ⊕ "
    "(finite floats)",
    node=factor_order,
)
