"""Translates the tensor-relational to the implementation algebra (TRA §4.1, Table 1).

Each operation gets one implementation, independent of cost; rules find the others. Two entries
differ from the printed table: Tile appends the key that counts tiles, and Stack shuffles on all
keys except the stacked one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einsql.core.dag import bottom_up
from einsql.core.schema import Schema
from einsql.errors import ProgrammingError, suggest
from einsql.ir.einsum.graph import Input, Operand
from einsql.ir.ia import plan as ia
from einsql.ir.ia.placement import everywhere
from einsql.ir.ia.typing import Tiled
from einsql.ir.layout import Layout
from einsql.ir.tra import plan as tra
from einsql.ir.tra.typing import by_axis

Stored = Mapping[str, Sequence[int] | None]
"""The keys by which tensors are sharded, by tensor name; None is a copy at every site."""


def translate(root: tra.Node, sites: int, stored: Stored | None = None) -> ia.Node:
    """Translates a tensor-relational plan by Table 1 (TRA §4.1).

    Args:
        root: The plan.
        sites: The number of sites.
        stored: The placements of stored tensors. An unnamed tensor has the placement
            of its declared cut, or else is distributed over the sites by all of its keys.

    Raises:
        ProgrammingError: A name or a key in `stored` does not occur in the plan.
    """
    placements = stored or {}
    names = [n.tensor.name for n in tra.walk(root) if isinstance(n, tra.Scan)]
    for name in placements:
        if name not in names:
            raise ProgrammingError(
                f"The plan scans no tensor {name}", hint=suggest(name, names, "tensors")
            )

    def implemented(node: tra.Node, sources: list[ia.Node]) -> ia.Node:
        return _implemented(node, sources, sites, placements)

    return bottom_up(root, tra.children, implemented)


def _implemented(node: tra.Node, sources: Sequence[ia.Node], sites: int, stored: Stored) -> ia.Node:
    if isinstance(node, tra.Scan):
        return ia.Scan(node.tensor, node.cuts, _layout(node, sites, stored), sites)
    if isinstance(node, tra.Join):
        return _joined(node, sources, sites)
    (source,) = sources
    match node:
        case tra.Aggregate():
            return ia.LocalAggregate(ia.Shuffle(source, node.group_by), node.group_by, node.merge)
        case tra.ReKey():
            return ia.LocalMap(source, keys=node.keys)
        case tra.Filter():
            return ia.LocalFilter(source, node.condition)
        case tra.Transform():
            return ia.LocalMap(source, kernels=(node.kernel,))
        case tra.Tile():
            return ia.LocalMap(source, emit=Tiled(node.dim, node.size))
        case tra.Stack():
            kept = tuple(k for k in range(len(node.source.schema.bounds)) if k != node.key)
            return ia.LocalStack(ia.Shuffle(source, kept), node.key, node.dim)
        case tra.Repartition():
            return ia.Repartition(source, node.cuts, tuple(range(len(node.schema.bounds))))


def _joined(node: tra.Join, sources: Sequence[ia.Node], sites: int) -> ia.Node:
    """The join of broadcasts of all operands but the last one, which stays."""
    if not sources:  # every site can compute what reads nothing
        nothing = Input("nothing", Schema((), ()))
        kernel = replace(node.kernel, operands=(Operand(nothing, ()),))
        scan = ia.Scan(nothing, (), everywhere(sites), sites)
        return ia.LocalJoin((scan,), ((),), (kernel,), domain=node.domain)
    *others, last = sources
    moved = (*map(ia.Bcast, others), last)
    return ia.LocalJoin(moved, node.keys, (node.kernel,), domain=node.domain)


def _layout(node: tra.Scan, sites: int, stored: Stored) -> Layout:
    bounds = node.schema.bounds
    keys: Sequence[int] | None = range(len(bounds))
    declared = node.tensor.parts
    if node.tensor.name in stored:
        keys = stored[node.tensor.name]
    elif declared is not None:
        cut = [n for n, parts in enumerate(declared) if parts > 1]
        if by_axis(node.cuts) is None:
            cut = [k for n in cut for k in node.schema.dims[n].keys]
        keys = cut or None
    return everywhere(sites) if keys is None else ia.spread_over(sites, bounds, keys)
