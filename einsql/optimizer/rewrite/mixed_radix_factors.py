"""Mixed-radix factors: a factor read by computed digits becomes a view keyed by the digits.

The keys of a fused attention projection are `f = h · D + d`. A product that reads it by h and d
becomes a product with plain keys over a view of it. The view costs nothing, because only
strides change. BLAS and fused groups then apply, which do not support computed labels.
"""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.affine import Affine, affine_labels
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Input,
    Operand,
    Output,
    Value,
    exprs,
    labels_of,
)
from einsql.optimizer.rewrite.node_properties import is_contraction
from einsql.optimizer.rewrite.rules import Rule


def show_digits(node: EinSum) -> EinSum:
    """Reads the first factor under its digits."""
    if not is_contraction(node) or not any(a.define is not None for a in node.axes):
        return node
    derived = affine_labels(node)
    for n, operand in enumerate(node.operands):
        if any(x in derived for x in operand.labels):
            keys = _digits(node, n, derived)
            if keys is not None:
                return _shown(node, n, keys, derived)
    return node


def _digits(node: EinSum, n: int, derived: dict[str, Affine]) -> list[str] | None:
    """The free labels that a factor is read by; None where they are no digits of its keys."""
    operand = node.operands[n]
    if isinstance(operand.source, Input) and operand.source.sparse:
        return None
    keys: list[str] = []
    for label in operand.labels:
        define = node.axis(label).define
        if define is None:
            keys.append(label)
        elif label not in derived or _is_read(node, n, label):
            return None
        else:
            form, axis = derived[label], node.axis(label)
            digits = sorted(form.steps, key=lambda x: -form.steps[x])
            if not _inside(form, axis, node):
                return None
            if not _apart(node, [(x, form.steps[x]) for x in reversed(digits)]):
                return None
            keys += digits
    return keys if len(set(keys)) == len(keys) else None


def _inside(value: Affine, axis: Axis, node: EinSum) -> bool:
    """Whether a value never leaves the bounds of an axis."""
    axes = {a.label: a for a in node.axes}
    return axis.lo <= value.least(axes) and value.most(axes) < axis.hi


def _apart(node: EinSum, steps: list[tuple[str, int]]) -> bool:
    """Whether different digits give different values; the lowest step comes first."""
    reach = 0
    for label, step in steps:
        if step <= reach:
            return False
        reach += step * (node.axis(label).extent - 1)
    return True


def _is_read(node: EinSum, n: int, label: str) -> bool:
    """Whether a label has other uses than one position of a factor."""
    others = [x for m, o in enumerate(node.operands) for x in o.labels if m != n]
    return (
        label in node.keys
        or label in others
        or node.operands[n].labels.count(label) > 1
        or any(label in labels_of(e) for e in exprs(node))
    )


def _shown(node: EinSum, n: int, keys: list[str], derived: dict[str, Affine]) -> EinSum:
    operand = node.operands[n]
    gone = [a for a in node.axes if a.define is not None and a.label in operand.labels]
    # Spelled by free labels: an axis of the node may lie between.
    spelled = [replace(a, define=derived[a.label].expr()) for a in gone]
    axes = [replace(node.axis(x), define=None) for x in keys]
    fields = operand.source.schema.fields
    view = EinSum(
        (*(Axis(a.label, a.lo, a.hi) for a in axes), *spelled),
        (Operand(operand.source, operand.labels),),
        TRUE,
        tuple(keys),
        tuple(Output(f.name, (Value(0, f.name, f.dtype),), f.dtype) for f in fields),
    )
    operands = (*node.operands[:n], Operand(view, tuple(keys)), *node.operands[n + 1 :])
    rest = tuple(a for a in node.axes if a not in gone)
    new = replace(node, axes=rest, operands=operands)
    used = {x for o in operands for x in o.labels} | set(node.keys)
    for a in reversed(rest):  # what lay between is computed for nobody now
        read = a.label in used or any(a.label in labels_of(e) for e in exprs(new))
        if not read and a.label in derived and _inside(derived[a.label], a, node):
            new = replace(new, axes=tuple(x for x in new.axes if x is not a))
    used |= {x for e in exprs(new) for x in labels_of(e)}
    alone = {a.label for a in new.axes if a.extent == 1 and a.define is None} - used
    hint = tuple(h for h in node.hint if h[0] not in alone)
    return replace(new, axes=tuple(a for a in new.axes if a.label not in alone), hint=hint)


SHOW_DIGITS = Rule(
    "show-digits",
    "⊕_{h,d} X[h·D + d] ⊗ Y = ⊕_{h,d} X′[h, d] ⊗ Y for the view X′[h, d] = X[h·D + d]",
    node=show_digits,
)
