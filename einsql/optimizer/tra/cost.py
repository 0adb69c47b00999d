"""The cost of a plan of the implementation algebra (TRA §4.3): C = α·Cn + β·Cc.

Cardinalities are exact, because a relation's type has its keys and the sites of each array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod

from einsql.core.mappings import memoized
from einsql.ir.einsum.flops import flops
from einsql.ir.einsum.graph import TRUE, EinSum
from einsql.ir.ia.placement import Sites
from einsql.ir.ia.plan import (
    Bcast,
    Kernels,
    LocalAggregate,
    LocalJoin,
    LocalMap,
    Node,
    Repartition,
    Shuffle,
    children,
    sends,
    walk,
)
from einsql.ir.ia.typing import PhysicalSchema, emitted, holds, over_groups
from einsql.ir.tra.block_schema import BlockSchema, KeyTuple, matches
from einsql.ir.tra.kernels import instantiate

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of communication and computation.

    Attributes:
        alpha: Cost of a float that crosses sites.
        beta: Cost of a scalar operation. A core does about a thousand operations while its
            share of a network card sends a float.
    """

    alpha: float = 1.0
    beta: float = 0.001


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a plan.

    Attributes:
        tra_cost: Cn in floats by the paper's formulas: s·Size for a Bcast, Size for a
            Shuffle, independent of the previous placement.
        floats: Cn with every part counted, where the paper's Size counts keys: after
            a local aggregation several sites may send parts of one key.
        flops: Cc: scalar operations of all kernels, every array counted once.
        busiest: The sum over nodes of the operations of the busiest site. It is flops / s
            if work is balanced, more if sites wait or repeat work.
        bytes_sent: The exact number of bytes that cross sites.
        sites: s, the number of sites.
    """

    tra_cost: int
    floats: int
    flops: int
    busiest: int
    bytes_sent: int
    sites: int

    def total(self, weights: Weights) -> float:
        """C, with s·busiest for Cc; this is the paper's count if work is balanced."""
        return weights.alpha * self.floats + weights.beta * self.sites * self.busiest

    def __str__(self) -> str:
        return (
            f"TRA cost {self.tra_cost:,}, {self.floats:,} floats moved, "
            f"{self.bytes_sent:,} bytes sent, {self.flops:,} flops"
        )

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.tra_cost + other.tra_cost,
            self.floats + other.floats,
            self.flops + other.flops,
            self.busiest + other.busiest,
            self.bytes_sent + other.bytes_sent,
            self.sites,
        )


class Costs:
    """Costs of plans; a shared node counts once per plan and is costed once for all plans."""

    def __init__(self) -> None:
        self._known: dict[tuple[PhysicalSchema, ...], Cost] = {}

    def plan(self, *roots: Node) -> Cost:
        """The cost of a plan with one or more roots: the sum over its nodes."""
        total = Cost(0, 0, 0, 0, 0, roots[0].schema.sites)
        for node in walk(*roots):
            # Equal operations on the same relations share one type object.
            types = (node.schema, *(c.schema for c in children(node)))
            total += memoized(self._known, types, partial(node_cost, node))
        return total


def node_cost(node: Node) -> Cost:
    """The cost of one operation, without its operands."""
    sites = node.schema.sites
    if isinstance(node, Bcast | Shuffle | Repartition):
        times = sites if isinstance(node, Bcast) else 1
        size, parts = _size(node.source)
        return Cost(times * size, times * parts, 0, 0, sends(node), sites)
    total, at = 0, [0] * sites
    for operations, copies in _work(node):
        total += operations
        for site in copies:
            at[site] += operations
    return Cost(0, 0, total, max(at), 0, sites)


def _size(node: Node) -> tuple[int, int]:
    """Size(R): the floats of one array for each key; and the floats of all parts."""
    shape = _shapes(node.schema.blocks)
    volumes = [(prod(shape(k)), len(parts)) for k, parts in node.schema.held.items()]
    return sum(v for v, _ in volumes), sum(v * n for v, n in volumes)


def _shapes(blocks: BlockSchema) -> Callable[[KeyTuple], Shape]:
    """The shape of the array under a key, computed once if all shapes are equal."""
    if any(d.relative.keys for d in blocks.dims):
        return blocks.shape
    one = tuple(d.extents[0] for d in blocks.dims)
    return lambda key: one


def _work(node: Node) -> Iterator[tuple[int, Sites]]:
    """The scalar operations for every array a local operation reads, and the sites doing them."""
    match node:
        case LocalMap():
            return _map_work(node)
        case LocalJoin():
            return _join_work(node)
        case LocalAggregate():
            return _aggregate_work(node)
    return iter(())  # scans, filters and stacks compute nothing


def _map_work(node: LocalMap) -> Iterator[tuple[int, Sites]]:
    if not node.kernels:
        return
    source = node.source.schema
    every = emitted(source.blocks, node.emit)
    shape = _shapes(every)
    for key in every.each_key():
        operations = chain_flops(node.kernels, (shape(key),))
        for copies in source.held[key[: len(source.blocks.bounds)]]:
            yield operations, copies


def _join_work(node: LocalJoin) -> Iterator[tuple[int, Sites]]:
    schemas = [s.schema for s in node.sources]
    matched = matches([s.held for s in schemas], node.keys)
    wanted = holds(node.where, [key for key, _ in matched])
    shapes = [_shapes(s.blocks) for s in schemas]
    for (_, own), on in zip(matched, wanted, strict=True):
        if on:
            first, *rest = (s.held[k][0] for s, k in zip(schemas, own, strict=True))
            copies = tuple(s for s in first if all(s in c for c in rest))
            read = tuple(shape(k) for shape, k in zip(shapes, own, strict=True))
            if copies:
                yield chain_flops(node.kernels, read), copies


def _aggregate_work(node: LocalAggregate) -> Iterator[tuple[int, Sites]]:
    source = node.source.schema
    keys = list(source.blocks.each_key())
    wanted = keys
    if node.where != TRUE:
        kept = holds(over_groups(node.where, node.group_by), keys)
        wanted = [k for k, on in zip(keys, kept, strict=True) if on]
    shape = _shapes(source.blocks)
    for key in wanted:
        operations = chain_flops(node.inner, (shape(key),)) + prod(_after(node.inner, shape(key)))
        for copies in source.held[key]:
            yield operations, copies
    if node.finish:
        before = {tuple(k[g] for g in node.group_by): _after(node.inner, shape(k)) for k in wanted}
        for group, parts in node.schema.held.items():
            for copies in parts:
                yield chain_flops(node.finish, (before[group],)), copies


def _after(kernels: Kernels, shape: Shape) -> Shape:
    for kernel in kernels:
        shape = _applied(kernel, (shape,))[1]
    return shape


def chain_flops(kernels: Kernels, shapes: tuple[Shape, ...]) -> int:
    """Scalar operations of a chain of kernels on arrays of given shapes."""
    total = 0
    for kernel in kernels:
        operations, shape = _applied(kernel, shapes)
        total, shapes = total + operations, (shape,)
    return total


@lru_cache(maxsize=4096)
def _applied(kernel: EinSum, shapes: tuple[Shape, ...]) -> tuple[int, Shape]:
    """Scalar operations of a kernel, and the shape of its result."""
    node = instantiate(kernel, shapes)
    return flops(node), node.schema.shape
