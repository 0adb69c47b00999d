"""Shifts that cancel: maxima that are subtracted before an exponential, as in a softmax.

A loss that does not change when a number is added to a maximum has derivative 0 by that
maximum: EXP(x - m) / SUM(EXP(x - m)) is the same for every m. Two numbers, power and step,
describe the effect of adding d to a maximum: a value v that depends on it becomes
v · EXP(power · d) + step · d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsql.ir.autodiff.parts import once_each
from einsql.ir.einsum.graph import Call, Const, EinSum, Expr, Node, Value, operands_of


class Change(NamedTuple):
    """The effect of a shift on a value: v · EXP(power · d) + step · d; power or step is 0."""

    power: float = 0.0
    step: float = 0.0


SAME = Change()
_Shift = tuple[Change, tuple[int, ...]]
"""A change, and the node's keys that index the shifts."""


def cancels(nodes: Sequence[Node], start: EinSum, name: str, loss: Node, field: str) -> bool:
    """True if a loss provably does not change when any number is added to a field.

    Args:
        nodes: The graph of the loss, producers first.
        start: The field's node; each element may be shifted by a different number.
        name: The shifted field.
        loss: The node of the loss.
        field: The field of the loss.
    """
    places = tuple(range(len(start.keys)))
    changed: dict[tuple[int, str], _Shift] = {(id(start), name): (Change(step=1.0), places)}
    for node in nodes:
        if isinstance(node, EinSum) and node is not start:
            node_changes = _through(node, changed)
            if node_changes is None:
                return False
            changed |= node_changes
    return (id(loss), field) not in changed


def _through(
    node: EinSum, changed: dict[tuple[int, str], _Shift]
) -> dict[tuple[int, str], _Shift] | None:
    """The changes of a node's fields, or None if one of them is unknown."""
    moved: dict[int, set[str]] = {}
    for n, o in enumerate(node.operands):
        for f in o.source.schema.fields:
            if (id(o.source), f.name) in changed:
                moved.setdefault(n, set()).add(f.name)
    if not moved:
        return {}
    labels: set[tuple[str, ...]] = set()
    leaves: dict[tuple[int, str], Change] = {}
    for n, names in moved.items():
        o = node.operands[n]
        for name in names:
            change, places = changed[id(o.source), name]
            leaves[n, name] = change
            labels.add(tuple(o.labels[p] for p in places))
    defined = (a.define for a in node.axes if a.define is not None)
    if len(labels) > 1 or any(change_of(e, leaves) != SAME for e in (node.guard, *defined)):
        return None
    node_changes: dict[tuple[int, str], _Shift] = {}
    for output in node.outputs:
        if change_of(output.where, leaves) != SAME:
            return None
        changes = [change_of(e, leaves) for e in output.args]
        if all(c == SAME for c in changes):
            continue
        field_change, (shifted,) = changes[0], labels
        if field_change is None or len(changes) > 1:
            return None
        if not set(shifted) <= set(node.keys) or not _keeps(output.reduction, field_change):
            return None
        if any(a.define is not None for a in node.axes if a.label in shifted):
            return None
        node_changes[id(node), output.name] = (
            field_change,
            tuple(node.keys.index(x) for x in shifted),
        )
    return node_changes


def _keeps(reduction: str | None, change: Change) -> bool:
    """True if a reduction of values with one change has the same change."""
    return reduction in (None, "max", "min") or (reduction == "sum" and change.step == 0)


def change_of(root: Expr, leaves: dict[tuple[int, str], Change]) -> Change | None:
    """The change of an expression; None if it is unknown."""
    if not operands_of(root) & {n for n, _ in leaves}:
        return SAME
    changes: dict[int, Change | None] = {}
    for e in once_each(root):
        if isinstance(e, Call):
            args = [changes[id(a)] for a in e.args]
            known = [a for a in args if a is not None]
            changes[id(e)] = _of_call(e, known) if len(known) == len(args) else None
        else:
            known_leaf = leaves.get((e.operand, e.field)) if isinstance(e, Value) else None
            changes[id(e)] = known_leaf or SAME
    return changes[id(root)]


def _of_call(e: Call, args: list[Change]) -> Change | None:
    if all(a == SAME for a in args):
        return SAME
    first, *rest = args
    match e.fn:
        case "add" | "sub":
            sign = 1 if e.fn == "add" else -1
            if first.power == rest[0].power == 0:
                return Change(step=first.step + sign * rest[0].step)
            return first if first == rest[0] else None
        case "mul" | "div":
            return _of_product(e, first, rest[0])
        case "neg":
            return Change(first.power, -first.step)
        case "exp":
            return Change(power=first.step) if first.power == 0 else None
        case "ln":
            return Change(step=first.power) if first.step == 0 else None
        case "cast":
            return first if e.dtype.is_float else None
        case "stop_gradient":
            return SAME
        case "isfinite" | "isnan" | "isinf":
            return SAME
        case "eq" | "ne" | "lt" | "le":
            return SAME if first == rest[0] else None
        case "greatest" | "least":
            return first if first == rest[0] else None
        case "if":
            return _either(e, *rest) if first == SAME else None
    return None


def _either(e: Call, a: Change, b: Change) -> Change | None:
    """The change of a choice: both change equally, or one is 0 and the other has no step."""
    for change, other in ((a, e.args[2]), (b, e.args[1])):
        if change.step == 0 and isinstance(other, Const) and other.value == 0:
            return change
    return a if a == b else None


def _of_product(e: Call, a: Change, b: Change) -> Change | None:
    sign = 1 if e.fn == "mul" else -1
    if a.step == b.step == 0:
        return Change(power=a.power + sign * b.power)
    for part, other, factor in ((a, b, e.args[1]), (b, a, e.args[0])):
        if other == SAME and isinstance(factor, Const) and (sign > 0 or part is a):
            by = float(factor.value)
            return Change(step=part.step * by if sign > 0 else part.step / by) if by else None
    return None
