"""Runs a plan of the implementation algebra: the same program at every site.

A site reads only its own arrays, and receives those of others through the transport. Every site
derives the transfers from the plan, so there are no requests and no agreements. The return of the
result is not part of the plan and is not counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from einsql.engine.exchange import slices
from einsql.engine.step import Measure
from einsql.engine.tra.site_ops import (
    AtSite,
    Pairs,
    Read,
    aggregated,
    arrays_at,
    counting,
    held,
    local_pairs,
)
from einsql.engine.transport import Arrays, Routes, Transport
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.plan import (
    Bcast,
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    Node,
    Repartition,
    Shuffle,
    children,
    walk,
)
from einsql.ir.ia.transfers import array_transfers, piece_transfers
from einsql.ir.tra.block_schema import KeyTuple
from einsql.ir.tra.kernels import VALUE, reductions
from einsql.ir.tra.typing import assembled
from einsql.storage.block_relation import Blocks, RunKernel, merged


@dataclass(frozen=True, slots=True)
class SiteRun:
    """The result of a run on sites.

    Attributes:
        blocks: The result by key, in the order of keys.
        measure: The measures of every site.
    """

    blocks: Mapping[KeyTuple, np.ndarray]
    measure: Measure

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that left each site for another one."""
        return tuple(self.measure.sent)

    @property
    def received(self) -> tuple[int, ...]:
        """Bytes that reached each site from another one."""
        return tuple(self.measure.received)

    @property
    def flops(self) -> tuple[int, ...]:
        """Scalar operations of the kernels that each site ran."""
        return tuple(self.measure.flops)


def run_sites(
    root: Node, read: Read, run: RunKernel, transport: Transport
) -> tuple[dict[int, AtSite], Measure]:
    """Runs a plan at the sites of this process.

    root: The root relation of the plan.
        read: Returns blocks of scanned tensors.
        read: Gives blocks of scanned tensors.
        run: Runs a kernel.
        transport: Moves arrays between sites.

    Returns:
        The blocks of the result at each site, and the measures of all sites.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    sites = root.schema.sites
    measure = Measure(seconds=[0.0] * sites, flops=[0] * sites)
    nodes = walk(root)
    left = Counter(id(c) for node in nodes for c in children(node))
    fused = _fused(nodes, left)
    blocks_of: dict[int, dict[int, AtSite]] = {}
    for node in nodes:
        if id(node) in fused:
            continue
        merges = isinstance(node, LocalAggregate) and id(node.source) in fused
        last = node.source if merges and isinstance(node, LocalAggregate) else node
        maker = last
        while isinstance(maker, LocalFilter) and id(maker.source) in fused:
            maker = maker.source
        sources = children(maker)
        operands = [blocks_of[id(c)] for c in sources]
        if isinstance(node, Bcast | Shuffle):
            blocks_of[id(node)] = _exchange(node, operands[0], transport)
        elif isinstance(node, Repartition):
            blocks_of[id(node)] = _recut(node, operands[0], transport)
        else:
            blocks_of[id(node)] = {}
            for site in transport.owned:
                start = time.perf_counter()
                own = [o[site] for o in operands]
                kernel = counting(run, measure.flops, site)
                pairs: Pairs = local_pairs(maker, held(last.schema), site, own, read, kernel)
                if merges and isinstance(node, LocalAggregate):
                    pairs = aggregated(node, site, pairs, kernel)
                blocks_of[id(node)][site] = dict(pairs)
                measure.seconds[site] += time.perf_counter() - start
        for c in sources:
            left[id(c)] -= 1
            if left[id(c)] == 0:
                del blocks_of[id(c)]
    measure.sent, measure.received = transport.sent, transport.received
    return blocks_of[id(root)], measure


def _fused(nodes: Sequence[Node], readers: Mapping[int, int]) -> set[int]:
    """Finds the nodes that run inside of their only reader, a local aggregation or filter.

    Their pairs are merged or passed on one by one, without storage. Pairs that a filter drops are
    not computed, so they cannot fail, as on one site.
    """
    inlined: set[int] = set()
    for node in nodes:
        if isinstance(node, LocalAggregate | LocalFilter) and readers[id(node.source)] == 1:
            source = node.source
            passes = isinstance(source, LocalFilter) and id(source.source) in inlined
            if passes or isinstance(source, LocalJoin | LocalMap):
                inlined.add(id(source))
    return inlined


def gathered(root: Node, by_site: Mapping[int, AtSite], run: RunKernel) -> Blocks:
    """Returns one array for each key of a result: any copy, with parts merged by ⊕."""
    blocks: Blocks = {}
    (merge,) = reductions(root.schema.merge or "")
    for key, parts in held(root.schema).items():
        arrays = (by_site[copies[0]][key, n] for n, copies in enumerate(parts))
        blocks[key] = reduce(lambda a, b: merged(merge, a, b, run), arrays)
    return dict(sorted(blocks.items()))


# ---- transfers between sites


def _exchange(
    node: Bcast | Shuffle, by_site: dict[int, AtSite], transport: Transport
) -> dict[int, AtSite]:
    source, target = node.source.schema, node.schema
    keys = list(source.blocks.each_key())
    moved = [(keys[k], *rest) for k, *rest in array_transfers(source, target).tolist()]
    wanted = held(target)
    shapes = [source.blocks.shape(key) for key, _, _, _ in moved]
    routes = _routes([t[2:] for t in moved], shapes, source, [t[:3] for t in moved])
    received: dict[int, AtSite] = {
        site: {(key, n): a for (key, n), a in own.items() if site in wanted[key][n]}
        for site, own in by_site.items()
    }

    def whole(n: int) -> Arrays:
        key, part, origin, _ = moved[n]
        return {VALUE: by_site[origin][key, part]}

    for n, arrays in transport.exchange(routes, whole):
        key, part, _, site = moved[n]
        received[site][key, part] = arrays[VALUE]
    return received


def _recut(
    node: Repartition, by_site: dict[int, AtSite], transport: Transport
) -> dict[int, AtSite]:
    """Sends every piece of a block to the site of its new block, and assembles the new blocks."""
    source, target = node.source.schema, node.schema
    old = assembled(source.blocks, "Repartition")
    moved = piece_transfers(source, target, node.cuts)
    sources, targets = list(source.blocks.each_key()), list(target.blocks.each_key())
    boxes = [tuple((lo, hi) for lo, hi in box) for box in moved.boxes.tolist()]
    shapes = [tuple(hi - lo for lo, hi in box) for box in boxes]
    origins, sites = moved.origin.tolist(), moved.target.tolist()
    cuts = list(zip(moved.old.tolist(), boxes, origins, strict=True))
    routes = _routes(list(zip(origins, sites, strict=True)), shapes, source, cuts)
    received: dict[int, AtSite] = {
        site: {
            (key, 0): np.empty(target.blocks.shape(key), target.blocks.dtype.numpy)
            for key, n in arrays_at(target, site)
        }
        for site in by_site
    }

    def part(n: int) -> Arrays:
        key = sources[moved.old[n]]
        starts = [c[k] for c, k in zip(old, key, strict=True)]
        return {VALUE: by_site[origins[n]][key, 0][slices(boxes[n], starts)]}

    for n, arrays in transport.exchange(routes, part):
        key = targets[moved.new[n]]
        starts = target.blocks.box(key)[:, 0].tolist()
        received[sites[n]][key, 0][slices(boxes[n], starts)] = arrays[VALUE]
    return received


def _routes(
    ends: Sequence[tuple[int, int]],
    shapes: Sequence[tuple[int, ...]],
    schema: PhysicalSchema,
    pieces: Iterable[Hashable],
) -> Routes:
    """Returns the routes in the order of the transfers; equal pieces have the same number."""
    sites = np.array(ends, np.int64).reshape(-1, 2)
    rank = len(shapes[0]) if shapes else 0
    extents = np.array(shapes, np.int64).reshape(len(shapes), rank)
    numbers: dict[Hashable, int] = {}
    same = np.array([numbers.setdefault(p, len(numbers)) for p in pieces], np.int64)
    return Routes(sites[:, 0], sites[:, 1], extents, {VALUE: schema.blocks.dtype.numpy}, same)
