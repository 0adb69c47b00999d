"""Mixed-radix factors: a factor that is read by digits becomes a view keyed by the digits.

The keys of a fused attention projection are `f = h · D + d`. A product that reads it by h and d
becomes a product with plain keys over a view of it. The view costs nothing, because only
strides change. BLAS and fused groups then apply, which do not support computed labels.
"""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.affine import Affine, affine_labels
from einsql.ir.einsum.graph import EinSum, Input, Operand, exprs, labels_of
from einsql.ir.einsum.graph_rewriting import view
from einsql.optimizer.rewrite.node_properties import is_contraction, used_labels
from einsql.optimizer.rewrite.rules import Rule


def show_digits(node: EinSum) -> EinSum:
    """Replaces the first factor with digits by a view keyed by the digits."""
    if not is_contraction(node) or not any(a.define is not None for a in node.axes):
        return node
    derived = affine_labels(node)
    for n, operand in enumerate(node.operands):
        if any(x in derived for x in operand.labels):
            keys = _digits(node, n, derived)
            if keys is not None:
                return _shown(node, n, keys, derived)
    return node


def _digits(node: EinSum, n: int, derived: dict[str, Affine]) -> tuple[str, ...] | None:
    """The free labels that are the digits of a factor's keys; None if there are none."""
    operand = node.operands[n]
    if isinstance(operand.source, Input) and operand.source.sparse:
        return None
    axes = {a.label: a for a in node.axes}
    keys: list[str] = []
    for label in operand.labels:
        define = node.axis(label).define
        if define is None:
            keys.append(label)
        elif label not in derived or _is_read(node, n, label):
            return None
        else:
            form = derived[label]
            fits = form.stays_within(node.axis(label), axes) and form.is_injective(axes)
            if not fits or min(form.steps.values(), default=0) < 0:
                return None
            keys += sorted(form.steps, key=form.steps.__getitem__, reverse=True)
    return tuple(keys) if len(set(keys)) == len(keys) else None


def _is_read(node: EinSum, n: int, label: str) -> bool:
    """True if a label has other uses than one position of a factor."""
    others = [x for m, o in enumerate(node.operands) for x in o.labels if m != n]
    return (
        label in node.keys
        or label in others
        or node.operands[n].labels.count(label) > 1
        or any(label in labels_of(e) for e in exprs(node))
    )


def _shown(node: EinSum, n: int, keys: tuple[str, ...], derived: dict[str, Affine]) -> EinSum:
    operand = node.operands[n]
    gone = [a for a in node.axes if a.define is not None and a.label in operand.labels]
    # Defined by free labels, because the definition may read another derived axis of the node.
    spelled = [replace(a, define=derived[a.label].expr()) for a in gone]
    digits = view(operand, [*(replace(node.axis(x), define=None) for x in keys), *spelled], keys)
    operands = (*node.operands[:n], Operand(digits, keys), *node.operands[n + 1 :])
    rest = tuple(a for a in node.axes if a not in gone)
    new = replace(node, axes=rest, operands=operands)
    bounds = {a.label: a for a in node.axes}
    for a in reversed(rest):  # drops labels that only defined replaced labels
        used = used_labels(new) | set(node.keys)
        form = derived.get(a.label)
        if a.label not in used and form is not None and form.stays_within(a, bounds):
            new = replace(new, axes=tuple(x for x in new.axes if x is not a))
    used = used_labels(new) | set(node.keys)
    alone = {a.label for a in new.axes if a.extent == 1 and a.define is None} - used
    hint = tuple(h for h in node.hint if h[0] not in alone)
    return replace(new, axes=tuple(a for a in new.axes if a.label not in alone), hint=hint)


SHOW_DIGITS = Rule(
    "show-digits",
    "⊕_{h,d} X[h·D + d] ⊗ Y = ⊕_{h,d} X′[h, d] ⊗ Y for the view X′[h, d] = X[h·D + d]",
    node=show_digits,
)
