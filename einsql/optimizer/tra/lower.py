"""Lowers a graph and its cuts to the tensor-relational algebra (EinDecomp §4.3).

Every EinSum becomes a join, whose kernel is the EinSum itself. The keys of a relation are the
labels that are cut. An aggregation over the reduced ones among them merges the partial results:
Z = Σ_⊕ ∘ ⋈_K (Π X, Π Y, …).

* A relation has all fields of its node: values, presence, validity.
* An operand is repartitioned into the intervals that the cells read. A slice leaves out parts,
  a window overlaps, an axis that is gathered by values is complete in every tile.
* ARG_MIN is merged with its state, which the last operation drops.
* A derived label is not cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from einsql.core.mappings import memoized
from einsql.ir.einsum.cells import values_read
from einsql.ir.einsum.graph import EinSum, Input, Node, Operand, labels_of, walk
from einsql.ir.einsum.graph_rewriting import passed_on
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.structure import structure
from einsql.ir.remembered import recalled
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import Dim, Dims, Domain, boundaries, cut_dims
from einsql.ir.tra.kernel_typing import placed_domain

Parts = Mapping[str, int | tuple[int, ...]]
"""For free labels the number of parts, or the boundaries as positions from the least value."""


def lower(roots: Sequence[Node], cuts: Mapping[EinSum, Parts]) -> tuple[ra.Node, ...]:
    """The plan of each root; nodes that the graph shares are shared in the plans.

    Args:
        roots: The roots of the graph.
        cuts: The parts of the free labels of each node; other labels and nodes are not cut.

    Returns:
        For each root the relation with its fields. Its keys are the labels of the result that
        are cut, in order.

    Raises:
        ProgrammingError: A label has more parts than values.
    """
    lowering = _lowered(roots, cuts)
    return tuple(lowering.relation(root) for root in roots)


def lowered_nodes(roots: Sequence[Node], cuts: Mapping[EinSum, Parts]) -> Mapping[int, ra.Node]:
    """The plan of each EinSum of a graph, by its identity; arguments and errors as of `lower`."""
    return _lowered(roots, cuts).nodes


def _lowered(roots: Sequence[Node], cuts: Mapping[EinSum, Parts]) -> _Lowering:
    lowering = _Lowering(cuts)
    for node in walk(*roots):
        if isinstance(node, EinSum):
            lowering.add(node)
    return lowering


class _Lowering:
    """The relations of a graph's nodes."""

    def __init__(self, cuts: Mapping[EinSum, Parts]) -> None:
        self._cuts = cuts
        self.nodes: dict[int, ra.Node] = {}
        self._repartitions: dict[tuple[int, Dims], ra.Node] = {}

    def relation(self, node: Node) -> ra.Node:
        """The relation of a node; a stored tensor has the tiles in which it is stored."""
        if isinstance(node, Input):
            return self._scan(node, _stored_dims(node))
        return self.nodes[id(node)]

    def add(self, node: EinSum) -> None:
        """Lowers an EinSum after its operands."""
        domain = _domain(node, self._cuts.get(node, {}))
        kept = tuple(n for n, (label, _) in enumerate(domain) if label in node.keys)
        partial = len(kept) < len(domain)
        kernel = with_state(node) if partial else node
        operands = [self._operand(node, o, domain) for o in node.operands]
        sources, keys = tuple(s for s, _ in operands), tuple(k for _, k in operands)
        plan: ra.Node = ra.Join(sources, keys, kernel, domain)
        if partial:
            # Without a reduction every free label is a key of the result.
            merge = tuple(o.reduction for o in kernel.outputs if o.reduction is not None)
            plan = ra.Aggregate(plan, kept, merge if len(merge) > 1 else merge[0])
        if len(kernel.outputs) > len(node.outputs):
            plan = ra.Transform(plan, passed_on(node))
        self.nodes[id(node)] = plan

    def _operand(
        self, node: EinSum, operand: Operand, domain: Domain
    ) -> tuple[ra.Node, tuple[int, ...]]:
        """An operand in the tiles that the cells read, and the result's key of each of its keys."""
        axes = _axes_read(node, operand, domain)
        if not isinstance(operand.source, Input) or operand.source.settled:
            source = self.relation(operand.source)
            keys = _same_tiles(source, axes)
            if keys is not None:
                return source, keys
        keys = tuple(sorted({k for d in axes for k in d.keys}))
        to = {k: n for n, k in enumerate(keys)}
        dims = tuple(d.renumbered([to.get(k, 0) for k in range(len(domain))]) for d in axes)
        if isinstance(operand.source, Input) and not operand.source.settled:
            return self._scan(operand.source, dims), keys
        known = self._repartitions
        return memoized(known, (id(source), dims), lambda: ra.Repartition(source, dims)), keys

    def _scan(self, tensor: Input, dims: Dims) -> ra.Node:
        return memoized(self._repartitions, (id(tensor), dims), lambda: ra.Scan(tensor, dims))


def _domain(node: EinSum, parts: Parts) -> Domain:
    """The cut labels: those of the result in its order, then the reduced ones."""
    free = [a for a in node.axes if a.define is None and parts.get(a.label, 1) not in (1, 0)]
    order = {k: n for n, k in enumerate(node.keys)}
    free.sort(key=lambda a: order.get(a.label, len(order)))
    cuts = ((a, parts[a.label]) for a in free)
    return tuple(
        (a.label, cut if isinstance(cut, tuple) else boundaries(a.extent, cut)) for a, cut in cuts
    )


def _axes_read(node: EinSum, operand: Operand, domain: Domain) -> Dims:
    """The intervals of an operand's axes that the cells read, over the keys of the result."""
    number = next(n for n, o in enumerate(node.operands) if o is operand)
    key = ("axes read", structure(node), number, placed_domain(node, domain))
    return recalled(
        key, lambda: tuple(_read(node, operand, n, domain) for n in range(len(operand.labels)))
    )


def _read(node: EinSum, operand: Operand, number: int, domain: Domain) -> Dim:
    """The intervals of an operand's axis that the cells read, over the keys of the result."""
    label, key = operand.labels[number], operand.source.schema.keys[number]
    define = node.axis(label).define
    needed = {label} if define is None else labels_of(define)
    numbers = [n for n, (x, _) in enumerate(domain) if x in needed]
    labels = tuple(domain[n][0] for n in numbers)
    cuts = [domain[n][1] for n in numbers]
    bounds = [len(cut) - 1 for cut in cuts]
    cells = np.empty((int(np.prod(bounds)), len(labels), 2), np.int64)
    for cell, at in zip(cells, product(*map(range, bounds)), strict=True):
        for n, (cut, k) in enumerate(zip(cuts, at, strict=True)):
            cell[n] = np.array(cut[k : k + 2]) + node.axis(labels[n]).lo
    # An axis without values may be beyond the bounds of the key.
    values = np.clip(values_read(node, label, labels, cells) - key.lo, 0, key.extent)
    return Dim.of(values.reshape(*bounds, 2), numbers)


def _same_tiles(source: ra.Node, axes: Sequence[Dim]) -> tuple[int, ...] | None:
    """The result's key of each key of a source whose tiles are those that the cells read."""
    keys: dict[int, int] = {}
    for own, read in zip(source.schema.dims, axes, strict=True):
        if (own.extents, own.bounds, own.starts) != (read.extents, read.bounds, read.starts):
            return None
        for k, to in zip(own.keys, read.keys, strict=True):
            if keys.setdefault(k, to) != to:
                return None
    return tuple(keys[k] for k in sorted(keys))


def _stored_dims(tensor: Input) -> Dims:
    """The tiles of a stored tensor: those of its declared cut or placement, or one tile."""
    shape = tensor.schema.shape
    cuts: list[tuple[int, ...]] = [(0, extent) for extent in shape]
    if tensor.lies is not None:
        boxes = tensor.lies.boxes[tensor.lies.volumes > 0]
        lows = [k.lo for k in tensor.schema.keys]
        edges = [np.unique(boxes[:, n]) - lo for n, lo in enumerate(lows)]
        cuts = [tuple(e.tolist()) if len(e) else c for e, c in zip(edges, cuts, strict=True)]
    elif tensor.parts is not None:
        cuts = [boundaries(n, p) for n, p in zip(shape, tensor.parts, strict=True)]
    return _numbered(cut_dims(tuple(cuts)))


def _numbered(dims: Dims) -> Dims:
    """The axes with consecutive numbers of the keys that cut them."""
    to = {k: n for n, k in enumerate(sorted(k for d in dims for k in d.keys))}
    return tuple(d.renumbered([to.get(k, 0) for k in range(len(dims))]) for d in dims)
