"""Prunes unread outputs, operands and derived axes."""

from __future__ import annotations

from dataclasses import replace

from einsql.core.mappings import grouped
from einsql.core.schema import PRESENT
from einsql.ir.einsum.graph import EinSum, Roots, Value, exprs, subexpressions, walk
from einsql.ir.einsum.graph_rewriting import hint_over, with_operands, with_sources
from einsql.ir.einsum.intervals import bounds_of, fits, interval
from einsql.optimizer.rewrite.node_properties import unguarded, used_labels
from einsql.optimizer.rewrite.rules import Rule, rebuild


def prune_outputs(roots: Roots) -> tuple[Roots, int]:
    """Drops unread outputs and the nodes that only they need; a root keeps all outputs.

    Axes alone determine which points exist, and operands only provide values. So an
    unread operand can be dropped.
    """
    needed: dict[int, set[str]] = {}
    pruned: dict[int, EinSum] = {}
    shown = {id(r) for r in roots}
    for node in reversed(walk(*roots)):
        if not isinstance(node, EinSum):
            continue
        wanted = needed.get(id(node))
        if wanted is None and id(node) not in shown:
            continue  # its readers were dropped
        new = node
        if wanted is not None and len(wanted) < len(node.outputs):
            new = replace(node, outputs=tuple(o for o in node.outputs if o.name in wanted))
            if PRESENT not in wanted and any(o.name == PRESENT for o in node.outputs):
                new = unguarded(new)  # no reader tests which keys exist
        new = _drop_axes(new)
        read = _reads(new)
        for n, fields in read.items():
            needed.setdefault(id(new.operands[n].source), set()).update(fields)
        if len(read) < len(new.operands):
            new = with_operands(new, sorted(read))
        if new is not node:
            pruned[id(node)] = new
    if not pruned:
        return roots, 0
    result, _ = rebuild(roots, lambda old, over: _resource(old, over, pruned.get(id(old))))
    return result, len(pruned)


def _reads(node: EinSum) -> dict[int, set[str]]:
    """The read fields of each operand, by operand number."""
    values = (e for top in exprs(node) for e in subexpressions(top) if isinstance(e, Value))
    return {n: set(fields) for n, fields in grouped((e.operand, e.field) for e in values).items()}


def _resource(old: EinSum, over: EinSum, new: EinSum | None) -> EinSum:
    """The pruned form of a node over the rebuilt sources of its old form."""
    if new is None:
        return over
    sources = {id(a.source): b.source for a, b in zip(old.operands, over.operands, strict=True)}
    return with_sources(new, (sources[id(o.source)] for o in new.operands))


def _drop_axes(node: EinSum) -> EinSum:
    """The node without derived labels that are unread and always within their bounds."""
    while any(a.define is not None for a in node.axes):
        used, bounds = used_labels(node), bounds_of(node)
        kept = tuple(
            a
            for a in node.axes
            if a.define is None
            or a.label in used
            or a.label in node.keys
            or not fits(interval(a.define, bounds), a.lo, a.hi - 1)
        )
        if len(kept) == len(node.axes):
            break
        hint = hint_over(node.hint, {a.label for a in kept})
        node = replace(node, axes=kept, hint=hint)
    return node


PRUNE_OUTPUTS = Rule(
    "prune-outputs",
    "π_A(X with fields A ∪ B) = X with fields A",
    graph=prune_outputs,
)
