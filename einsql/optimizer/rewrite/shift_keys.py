"""Shifted keys: a sparse tensor that is read at keys plus constants becomes a shifted tensor.

A join such as `a.day = b.day + 1` reads b at a label that another one defines. Kernels over stored
elements take their labels from the elements, so they support free labels only. The shift is a node
of its own, which costs at most a copy of the elements' positions.
"""

from __future__ import annotations

from dataclasses import replace

from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.affine import affine_labels
from einsql.ir.einsum.graph import (
    TRUE,
    EinSum,
    Expr,
    Label,
    Operand,
    Output,
    Value,
    bigint,
    call,
    conjuncts,
    exprs,
    is_shift,
    subexpressions,
)
from einsql.optimizer.rewrite.node_properties import without_unread
from einsql.optimizer.rewrite.rules import Rule


def shift_keys(node: EinSum) -> EinSum:
    """Replaces the first sparse operand with shifted keys by a shifted tensor."""
    if not any(o.source.sparse for o in node.operands) or is_shift(node):
        return node
    asked = set(conjuncts(node.guard))
    for n, operand in enumerate(node.operands):
        if operand.source.sparse and Value(n, PRESENT, DType.BOOLEAN) in asked:
            shifts = _shifts(node, operand)
            if shifts is not None:
                return _over_shifted(node, n, shifts)
    return node


def _shifts(node: EinSum, operand: Operand) -> dict[str, tuple[str, int]] | None:
    """For each label of an operand a free label and the distance from it.

    Returns:
        None without a shifted label, or if a label is neither free nor shifted.
    """
    if all(node.axis(x).define is None for x in operand.labels):
        return None
    forms = affine_labels(node)
    shifts: dict[str, tuple[str, int]] = {}
    for x in operand.labels:
        if node.axis(x).define is None:
            shifts[x] = x, 0
            continue
        form = forms.get(x)
        if form is None or list(form.steps.values()) != [1]:
            return None
        (base,) = form.steps
        shifts[x] = base, form.offset
    bases = {base for base, _ in shifts.values()}
    return shifts if len(bases) == len(operand.labels) else None


def _over_shifted(node: EinSum, number: int, shifts: dict[str, tuple[str, int]]) -> EinSum:
    """The node over the shifted operand, or over the operand with other names of its labels."""
    operand = node.operands[number]
    keys = tuple(shifts[x][0] for x in operand.labels)
    moved = {x for x, (base, by) in shifts.items() if by or not _contains(node, x, base)}
    source = _shifted(node, number, shifts, moved) if moved else operand.source
    operands = (*node.operands[:number], Operand(source, keys), *node.operands[number + 1 :])
    derived = {x for x, (base, _) in shifts.items() if x != base}
    # The shifted tensor has no element where such a label is outside of its bounds.
    return without_unread(replace(node, operands=operands), derived)


def _contains(node: EinSum, label: str, other: str) -> bool:
    """Whether every value of another label is within the bounds of a label."""
    wide, narrow = node.axis(label), node.axis(other)
    return wide.lo <= narrow.lo and narrow.hi <= wide.hi


def _shifted(
    node: EinSum, number: int, shifts: dict[str, tuple[str, int]], moved: set[str]
) -> EinSum:
    """The map that shifts an operand.

    Args:
        node: The node.
        number: The number of the operand.
        shifts: See `_shifts`.
        moved: The labels that another one defines in the map; the others have the other one's name.
    """
    operand = node.operands[number]
    read = {
        e.field
        for root in exprs(node)
        for e in subexpressions(root)
        if isinstance(e, Value) and e.operand == number and e.field != PRESENT
    }
    free = [replace(node.axis(base), define=None) for base, _ in shifts.values()]
    derived = [
        replace(node.axis(x), define=_plus(base, by))
        for x, (base, by) in shifts.items()
        if x in moved
    ]
    fields = [f for f in operand.source.schema.fields if f.name in read]
    labels = tuple(x if x in moved else shifts[x][0] for x in operand.labels)
    values = (Output(f.name, (Value(0, f.name, f.dtype),), f.dtype) for f in fields)
    return EinSum(
        (*free, *derived),
        (Operand(operand.source, labels),),
        Value(0, PRESENT, DType.BOOLEAN),
        tuple(a.label for a in free),
        (*values, Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or")),
    )


def _plus(label: str, number: int) -> Expr:
    return call("sub" if number < 0 else "add", DType.BIGINT, Label(label), bigint(abs(number)))


SHIFT_KEYS = Rule(
    "shift-keys",
    "⊕_i f(X[i + c], i) = ⊕_i f(X′[i], i) for the sparse tensor X′[i] = X[i + c]",
    node=shift_keys,
)
