"""Runs a plan of the implementation algebra: the same program at every site.

A site sees its own arrays alone; what it needs of others comes through the transport.
Which arrays those are every site knows from the plan, so nothing is asked for or agreed
on. Handing out the result is no part of the plan and is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import EllipsisType

import numpy as np

from einsql.blocks import KeyTuple, matches
from einsql.einsum import EinSum
from einsql.engine.blocks import Blocks, RunKernel, merged, place_of, tiled
from einsql.engine.transport import Arrays, LocalTransport, Routes, Transport
from einsql.implementation import (
    Bcast,
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Repartition,
    Scan,
    Shuffle,
    children,
    walk,
)
from einsql.integrity import assembled, without
from einsql.physical import PhysicalSchema, Tiled, holds, renamed
from einsql.sharding import Held
from einsql.tiles import VALUE
from einsql.transfers import array_transfers, piece_transfers

Part = tuple[KeyTuple, int]
"""An array of a physical relation: its key, and its number among the parts under it."""
AtSite = dict[Part, np.ndarray]
"""What one site holds of a relation."""
Pairs = Iterable[tuple[Part, np.ndarray]]


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run on virtual sites.

    Attributes:
        blocks: The result by key, in the order of keys.
        sent: Bytes that left each site for another one.
        received: Bytes that reached each site from another one.
    """

    blocks: Blocks
    sent: tuple[int, ...]
    received: tuple[int, ...]


def run_on_sites(root: Node, inputs: Mapping[str, np.ndarray], run: RunKernel) -> SiteRun:
    """Runs a plan on virtual sites in this process and gathers the result.

    Args:
        root: The relation that is wanted.
        inputs: The array of every scanned tensor by its name.
        run: Runs kernels.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    transport = LocalTransport(root.schema.sites)
    held = run_sites(root, inputs, run, transport)
    blocks = gathered(root, held, run)
    return SiteRun(blocks, tuple(transport.sent), tuple(transport.received))


def run_sites(
    root: Node, inputs: Mapping[str, np.ndarray], run: RunKernel, transport: Transport
) -> dict[int, AtSite]:
    """Runs a plan at the sites of this process.

    Returns:
        For each of them what it holds of the result.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    nodes = walk(root)
    left = Counter(id(c) for node in nodes for c in children(node))
    fused = _fused(nodes, left)
    held: dict[int, dict[int, AtSite]] = {}
    for node in nodes:
        if id(node) in fused:
            continue
        merges = isinstance(node, LocalAggregate) and id(node.source) in fused
        last = node.source if merges and isinstance(node, LocalAggregate) else node
        maker = last
        while isinstance(maker, LocalFilter) and id(maker.source) in fused:
            maker = maker.source
        sources = children(maker)
        operands = [held[id(c)] for c in sources]
        if isinstance(node, Bcast | Shuffle):
            held[id(node)] = _exchange(node, operands[0], transport)
        elif isinstance(node, Repartition):
            held[id(node)] = _recut(node, operands[0], transport)
        else:
            held[id(node)] = {}
            for site in transport.owned:
                own = [o[site] for o in operands]
                made: Pairs = _local(maker, last.schema.held, site, own, inputs, run)
                if merges and isinstance(node, LocalAggregate):
                    made = _aggregate(node, site, made, run)
                held[id(node)][site] = dict(made)
        for c in sources:
            left[id(c)] -= 1
            if left[id(c)] == 0:
                del held[id(c)]
    return held[id(root)]


def _fused(nodes: Sequence[Node], readers: Mapping[int, int]) -> set[int]:
    """Nodes that are made within their only reader, a local aggregation or filter.

    Their pairs are merged or passed on as they are made, never held; those that a filter
    drops are not made at all, and so cannot fail, as on one site.
    """
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, LocalAggregate | LocalFilter) and readers[id(node.source)] == 1:
            source = node.source
            passes = isinstance(source, LocalFilter) and id(source.source) in found
            if passes or isinstance(source, LocalJoin | LocalMap):
                found.add(id(source))
    return found


def gathered(root: Node, held: Mapping[int, AtSite], run: RunKernel) -> Blocks:
    """One array for every key of a result: any of its copies, parts merged by ⊕."""
    found: Blocks = {}
    for key, parts in root.schema.held.items():
        arrays = (held[copies[0]][key, n] for n, copies in enumerate(parts))
        found[key] = reduce(lambda a, b: merged(root.schema.merge or "", a, b, run), arrays)
    return dict(sorted(found.items()))


# ---- what crosses sites


def _exchange(
    node: Bcast | Shuffle, held: dict[int, AtSite], transport: Transport
) -> dict[int, AtSite]:
    source, target = node.source.schema, node.schema
    moved = list(array_transfers(source, target))
    shapes = [source.blocks.shape(key) for key, _, _, _ in moved]
    routes = _routes([t[2:] for t in moved], shapes, source, [t[:3] for t in moved])
    made: dict[int, AtSite] = {
        site: {(key, n): a for (key, n), a in own.items() if site in target.held[key][n]}
        for site, own in held.items()
    }

    def whole(n: int) -> Arrays:
        key, part, origin, _ = moved[n]
        return {VALUE: held[origin][key, part]}

    for n, arrays in transport.exchange(routes, whole):
        key, part, _, site = moved[n]
        made[site][key, part] = arrays[VALUE]
    return made


def _recut(node: Repartition, held: dict[int, AtSite], transport: Transport) -> dict[int, AtSite]:
    """Sends every piece of a block to where its new block is put together."""
    source, target = node.source.schema, node.schema
    old = assembled(source.blocks, "Repartition")
    moved = list(piece_transfers(source, target, old, node.cuts))
    shapes = [tuple(hi - lo for lo, hi in piece.box) for piece, _, _ in moved]
    cuts = [(piece.source, piece.box, origin) for piece, origin, _ in moved]
    routes = _routes([t[1:] for t in moved], shapes, source, cuts)
    made: dict[int, AtSite] = {
        site: {
            (key, 0): np.empty(target.blocks.shape(key), target.blocks.dtype.numpy)
            for key, n in target.at(site)
        }
        for site in held
    }

    def part(n: int) -> Arrays:
        piece, origin, _ = moved[n]
        starts = [c[k] for c, k in zip(old, piece.source, strict=True)]
        return {VALUE: held[origin][piece.source, 0][_within(piece.box, starts)]}

    for n, arrays in transport.exchange(routes, part):
        piece, _, site = moved[n]
        starts = [c[k] for c, k in zip(node.cuts, piece.target, strict=True)]
        made[site][piece.target, 0][_within(piece.box, starts)] = arrays[VALUE]
    return made


def _routes(
    ends: Sequence[tuple[int, int]], shapes: Sequence[tuple[int, ...]], schema: PhysicalSchema,
    pieces: Iterable[Hashable],
) -> Routes:  # fmt: skip
    """What moves, in the order in which the transfers are listed; equal pieces are the same."""
    sites = np.array(ends, np.int64).reshape(-1, 2)
    rank = len(shapes[0]) if shapes else 0
    extents = np.array(shapes, np.int64).reshape(len(shapes), rank)
    numbers: dict[Hashable, int] = {}
    same = np.array([numbers.setdefault(p, len(numbers)) for p in pieces], np.int64)
    return Routes(sites[:, 0], sites[:, 1], extents, {VALUE: schema.blocks.dtype.numpy}, same)


def _within(
    box: Iterable[Sequence[int]], starts: Sequence[int]
) -> tuple[slice | EllipsisType, ...]:
    """A box of the tensor inside a block that begins at `starts`."""
    # The dots keep an array of rank 0 an array.
    return (*(slice(lo - s, hi - s) for (lo, hi), s in zip(box, starts, strict=True)), ...)


# ---- what a site does by itself


def _local(
    node: Node, wanted: Held, site: int, operands: Sequence[AtSite],
    inputs: Mapping[str, np.ndarray], run: RunKernel,
) -> Iterator[tuple[Part, np.ndarray]]:  # fmt: skip
    """What a site makes of its own arrays; of a join or map only the wanted keys."""
    if isinstance(node, Scan):
        array = np.asarray(inputs[node.tensor.name]).view()
        array.flags.writeable = False
        for key, n in node.schema.at(site):
            yield (key, n), array[place_of(key, node.cuts)]
    elif isinstance(node, LocalFilter):
        keys = [key for key, _ in operands[0]]
        kept = holds(node.condition, keys)
        yield from (pair for pair, on in zip(operands[0].items(), kept, strict=True) if on)
    elif isinstance(node, LocalMap):
        yield from _map(node, wanted, operands[0], run)
    elif isinstance(node, LocalJoin):
        yield from _join(node, wanted, operands, run)
    elif isinstance(node, LocalAggregate):
        yield from _aggregate(node, site, operands[0].items(), run)
    else:
        assert isinstance(node, LocalStack)
        yield from _stack(node, site, operands[0])


def _map(
    node: LocalMap, wanted: Held, held: AtSite, run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    made = [(part, a) for part, array in held.items() for part, a in _emitted(node, part, array)]
    new = renamed([key for (key, _), _ in made], node.keys)
    for key, ((_, n), array) in zip(new, made, strict=True):
        if key in wanted:
            yield (key, n), _chain(node.kernels, [array], run)


def _emitted(node: LocalMap, part: Part, array: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
    key, n = part
    if node.emit is None:
        yield part, array
    elif isinstance(node.emit, Tiled):
        for m, tile in enumerate(tiled(array, node.emit.dim, node.emit.size)):
            yield ((*key, m), n), tile
    else:
        for m in range(node.emit.count):
            yield ((*key, m), n), array


def _join(
    node: LocalJoin, wanted: Held, operands: Sequence[AtSite], run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    found = matches([[key for key, _ in o] for o in operands], node.keys)
    kept = holds(node.where, [key for key, _ in found])
    found = [match for match, on in zip(found, kept, strict=True) if on]
    new = renamed([key for key, _ in found], node.key_map)
    for key, (_, own) in zip(new, found, strict=True):
        if key in wanted:
            arrays = [o[k, 0] for o, k in zip(operands, own, strict=True)]
            yield (key, 0), _chain(node.kernels, arrays, run)


def _aggregate(
    node: LocalAggregate, site: int, pairs: Pairs, run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    groups: dict[KeyTuple, np.ndarray] = {}
    for (key, _), array in pairs:
        group = tuple(key[g] for g in node.group_by)
        if group not in node.schema.held:
            continue  # not among those that are wanted
        new = _chain(node.inner, [array], run)
        known = groups.get(group)
        groups[group] = new if known is None else merged(node.reduce, known, new, run)
    for group, total in groups.items():
        parts = node.schema.held[group]
        n = next(n for n, copies in enumerate(parts) if site in copies)
        yield (group, n), _chain(node.finish, [total], run)


def _stack(node: LocalStack, site: int, held: AtSite) -> Iterator[tuple[Part, np.ndarray]]:
    groups: dict[KeyTuple, list[np.ndarray]] = {}
    for (key, _), array in sorted(held.items(), key=lambda pair: pair[0]):
        groups.setdefault(without(key, node.key), []).append(array)
    for group, arrays in groups.items():
        if site in node.schema.held[group][0]:  # other sites hold some of the group only
            yield (group, 0), np.concatenate(arrays, axis=node.dim)


def _chain(kernels: Sequence[EinSum], arrays: Sequence[np.ndarray], run: RunKernel) -> np.ndarray:
    for kernel in kernels:
        arrays = [run(kernel, arrays)]
    return arrays[0]
