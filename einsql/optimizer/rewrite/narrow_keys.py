"""Narrow keys: an output has the keys that its values depend on, and its readers repeat it."""

from __future__ import annotations

from dataclasses import replace

from einsql.core.mappings import grouped
from einsql.ir.einsum.graph import TRUE, EinSum, Operand, Output, Value, exprs, operands_of
from einsql.ir.einsum.graph_rewriting import hint_over, with_operands
from einsql.optimizer.rewrite.node_properties import direct_labels
from einsql.optimizer.rewrite.rules import Rule


def narrow_keys(node: EinSum) -> EinSum:
    """Computes outputs that do not depend on a key once, not for each value of the key.

    The reduced labels stay, because a sum depends on the number of their points. Nodes with
    computed labels or a requested grid are not changed.
    """
    free = all(a.define is None for a in node.axes)
    if not node.reduced or node.grid or not free:
        return node
    if any(o.reduction is None for o in node.outputs):
        return node
    keys_of = {o.name: _keys(node, o) for o in node.outputs}
    active = {name: keys for name, keys in keys_of.items() if keys is not None}
    groups = grouped((keys, name) for name, keys in active.items())
    if not any(_is_narrower(node, keys) for keys in groups):
        return node
    # A flag without reads of its own costs nothing beside another output with as many keys.
    widest = max(groups, key=len)
    groups[widest] += [name for name in keys_of if name not in active]
    operands: list[Operand] = []
    fields: dict[str, Value] = {}
    parts = [
        (keys, tuple(o for o in node.outputs if o.name in names)) for keys, names in groups.items()
    ]
    for keys, outputs in parts:
        part = _part(node, keys, outputs)
        for o in outputs:
            fields[o.name] = Value(len(operands), o.name, o.dtype)
        operands.append(Operand(part, keys))
    axes = tuple(node.axis(k) for k in node.keys)
    outputs = tuple(Output(o.name, (fields[o.name],), o.dtype) for o in node.outputs)
    return EinSum(
        axes, tuple(operands), TRUE, node.keys, outputs, hint_over(node.hint, set(node.keys))
    )


def _keys(node: EinSum, o: Output) -> tuple[str, ...] | None:
    """The keys on which an output depends, in the node's order; None if only conditions read."""
    read = set[str]().union(*(direct_labels(node, e) for e in (*o.args, o.where)))
    if not read:
        return None
    read |= direct_labels(node, node.guard)
    return tuple(k for k in node.keys if k in read)


def _is_narrower(node: EinSum, keys: tuple[str, ...]) -> bool:
    return any(node.axis(k).extent > 1 for k in node.keys if k not in keys)


def _part(node: EinSum, keys: tuple[str, ...], outputs: tuple[Output, ...]) -> EinSum:
    """The node with some of its outputs over some of its keys."""
    axes = tuple(a for a in node.axes if a.label in keys or a.label not in node.keys)
    part = replace(
        node,
        axes=axes,
        keys=keys,
        outputs=outputs,
        hint=hint_over(node.hint, {a.label for a in axes}),
    )
    read = sorted({n for e in exprs(part) for n in operands_of(e)})
    return with_operands(part, read)


NARROW_KEYS = Rule(
    "narrow-keys",
    "⊕ₖ f(i, k) over keys (i, j) = (⊕ₖ f(i, k)) repeated over j",
    node=narrow_keys,
)
