"""Recognition of sums of products over pairs of present elements of two operands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Output,
    conj,
    conjuncts,
    labels_of,
    operands_of,
    subexpressions,
)
from einsql.kernels.loops.loop_nest import may_raise
from einsql.kernels.matmul.match import LABELS, Factor, product_of


@dataclass(frozen=True, slots=True)
class Side:
    """One of two operands.

    Attributes:
        operand: Its number.
        labels: Its labels, each once.
        guard: Which of its elements are there; TRUE for all.
    """

    operand: int
    labels: tuple[str, ...]
    guard: Expr


@dataclass(frozen=True, slots=True)
class Term:
    """A sum of products.

    Attributes:
        output: The output.
        factors: Fields that are multiplied, of each side; none is a factor of 1.
        scale: The factor of the sum.
    """

    output: Output
    factors: tuple[tuple[Factor, ...], ...]
    scale: float


@dataclass(frozen=True, slots=True)
class Joined:
    """A node's sums over joined elements.

    Attributes:
        sides: One or two.
        terms: The sums of products.
        counts: Outputs that say how many elements are joined, or whether any is.
    """

    sides: tuple[Side, ...]
    terms: tuple[Term, ...]
    counts: tuple[Output, ...]


def find(node: EinSum) -> Joined | None:
    """The sums of a node, or None if it is anything else."""
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
    """True for an output that tells of the joined elements alone: how many, or whether any."""
    if o.where != TRUE or len(o.args) != 1:
        return False
    if o.reduction == "bool_or":
        return o.args[0] == TRUE
    one = Const(1, DType.BIGINT)
    return o.reduction == "sum" and o.args[0] == one and o.dtype is DType.BIGINT


def counts_pairs(joined: Joined) -> bool:
    """True if an output tells how many elements are joined, and not only whether any is."""
    return any(o.reduction == "sum" for o in joined.counts)


def _sides(node: EinSum, chosen: list[int]) -> tuple[Side, ...] | None:
    """Two operands with their guards, if these hold all labels and all conditions."""
    labels = [tuple(dict.fromkeys(node.operands[n].labels)) for n in chosen]
    if len(chosen) == 2 and set(labels[1]) <= set(labels[0]) and not _read(node, chosen[1]):
        chosen, labels = chosen[:1], labels[:1]  # it only says which elements are there
    labels_held = {x for own in labels for x in own}
    if any(a.label not in labels_held for a in node.axes) or any(
        len(own) > LABELS for own in labels
    ):
        return None
    guards: list[list[Expr]] = [[] for _ in chosen]
    for term in conjuncts(node.guard):
        if any(isinstance(e, Call) and may_raise(e) for e in subexpressions(term)):
            return None
        read = operands_of(term)
        needs = labels_of(term).union(*(node.operands[n].labels for n in read))
        fits = [n for n, own in enumerate(labels) if needs <= set(own)]
        if not fits:
            return None
        fits.sort(key=lambda n: chosen[n] not in read)
        guards[fits[0]].append(term)
    return tuple(
        Side(n, own, conj(*terms)) for n, own, terms in zip(chosen, labels, guards, strict=True)
    )


def _read(node: EinSum, number: int) -> bool:
    """True if a node's outputs read an operand's fields."""
    return any(number in operands_of(e) for o in node.outputs for e in o.args)
