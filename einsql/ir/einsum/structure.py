"""Keys of nodes that compare equal if the nodes differ in names only."""

from __future__ import annotations

from collections.abc import Hashable

from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.graph_rewriting import relabel
from einsql.ir.remembered import numbered


def structure(node: EinSum) -> Hashable:
    """A key of the domain, the operands and the fields of a node, with labels by position.

    Nodes with equal keys read the same values in equal cells, and their results have equal tiles.
    Expressions of outputs and guards are not part of the key.
    """
    return numbered(node, lambda: _key(node))


def _key(node: EinSum) -> Hashable:
    at = {a.label: str(n) for n, a in enumerate(node.axes)}
    return (
        tuple((a.lo, a.hi, a.define and relabel(a.define, at)) for a in node.axes),
        tuple(at[k] for k in node.keys),
        tuple((o.name, o.dtype) for o in node.outputs),
        tuple(
            (
                tuple(at[x] for x in o.labels),
                tuple((k.lo, k.hi) for k in o.source.schema.keys),
                o.source.schema.fields,
            )
            for o in node.operands
        ),
    )
