"""The cost of a plan of the implementation algebra (TRA §4.3): C = α·Cn + β·Cc.

Cardinalities are exact, because a relation's type has its keys and the law of their sites. Arrays
of equal shapes are counted together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from einsql.core.boxes import volumes
from einsql.core.machine import Machine
from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.ir.einsum.cells import sized
from einsql.ir.einsum.flops import flops, flops_at_point
from einsql.ir.einsum.graph import TRUE, EinSum
from einsql.ir.ia.join_typing import joined
from einsql.ir.ia.physical_schema import PhysicalSchema
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
    operation,
    sends,
    walk,
)
from einsql.ir.ia.typing import aggregated, filtered, mapped, over_groups
from einsql.ir.tra.block_schema import BlockSchema, Domain
from einsql.ir.tra.kernel_typing import domain_cells

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

    @classmethod
    def of_bytes(cls) -> Weights:
        """The weights of `SET cost = 'bytes'`: computation only decides between equal plans."""
        return cls(1.0, 1e-12)

    @classmethod
    def in_seconds(cls, machine: Machine) -> Weights:
        """The weights by a machine's rates for DOUBLE: the measure of `SET cost = 'seconds'`."""
        return cls(8 / machine.network, 1 / machine.flops_double)


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
    """Costs of plans; a shared node counts once per plan.

    Equal operations on equal types are costed once for all plans.
    """

    def __init__(self) -> None:
        self._of_nodes: dict[Node, Cost] = {}
        self._of_types: dict[Hashable, Cost] = {}

    def plan(self, *roots: Node) -> Cost:
        """The cost of a plan with one or more roots: the sum over its nodes."""
        total = Cost(0, 0, 0, 0, 0, roots[0].schema.sites)
        for node in walk(*roots):
            total += memoized(self._of_nodes, node, partial(self._node, node))
        return total

    def _node(self, node: Node) -> Cost:
        types = (operation(node), *(c.schema for c in children(node)))
        return memoized(self._of_types, types, partial(node_cost, node))


def node_cost(node: Node) -> Cost:
    """The cost of one operation, without its operands."""
    sites = node.schema.sites
    if isinstance(node, Bcast | Shuffle | Repartition):
        times = sites if isinstance(node, Bcast) else 1
        source = node.source.schema
        volumes = source.volumes
        size, parts = int(volumes.sum()), int(volumes @ source.parts_of_keys)
        return Cost(times * size, times * parts, 0, 0, sends(node), sites)
    total, at = 0, np.zeros(sites, np.int64)
    for work in _work(node):
        own, by_site = work.counted(sites)
        total, at = total + own, at + by_site
    return Cost(0, 0, total, int(at.max()), 0, sites)


@dataclass(frozen=True, slots=True)
class _Work:
    """The scalar operations of a step on arrays.

    Attributes:
        operations: The scalar operations on one array of each class.
        classes: int64 (arrays,), the class of each array.
        holders: int64 (arrays, parts, copies), the sites that work on it; -1 for none.
    """

    operations: Sequence[int]
    classes: np.ndarray
    holders: np.ndarray

    def counted(self, sites: int) -> tuple[int, np.ndarray]:
        """The operations of all arrays, each copy counted once, and those of each site."""
        per = np.array(self.operations, np.int64)
        parts = (self.holders[:, :, 0] >= 0).sum(axis=1)
        total = int(per[self.classes] @ parts)
        by_class = np.broadcast_to(self.classes[:, None, None], self.holders.shape)
        there = self.holders >= 0
        number = by_class[there] * sites + self.holders[there]
        arrays = np.bincount(number, minlength=len(per) * sites).reshape(len(per), sites)
        return total, np.asarray(per @ arrays)


def _work(node: Node) -> Iterator[_Work]:
    """The operations of a local operation; scans, filters and stacks compute nothing."""
    match node:
        case LocalMap() if node.kernels:
            read = mapped(node.source.schema, node.emit, None, ())
            classes, shapes = _shapes([(read.blocks, None)], read.blocks.key_array())
            operations = [chain_flops(node.kernels, s) for s in shapes]
            yield _Work(operations, classes, read.holders)
        case LocalJoin():
            schemas = tuple(s.schema for s in node.sources)
            match = joined(schemas, node.keys, node.kernels, node.where, None, node.domain)
            if node.domain is not None:
                yield _cell_work(node.kernels[0], node.domain, match)
                return
            operands = [(s.blocks, p) for s, p in zip(schemas, node.keys, strict=True)]
            classes, shapes = _shapes(operands, match.blocks.key_array())
            operations = [chain_flops(node.kernels, s) for s in shapes]
            yield _Work(operations, classes, match.holders)
        case LocalAggregate():
            yield from _aggregate_work(node)


def _cell_work(kernel: EinSum, domain: Domain, match: PhysicalSchema) -> _Work:
    """The operations of a complete EinSum, whose matches are cells of its domain."""
    cut = [label for label, _ in domain]
    other = prod(a.extent for a in kernel.axes if a.define is None and a.label not in cut)
    points = volumes(domain_cells(kernel, domain, match.blocks)) * other
    each, classes = np.unique(points * flops_at_point(kernel), return_inverse=True)
    return _Work(each.tolist(), classes.reshape(-1), match.holders)


def _aggregate_work(node: LocalAggregate) -> Iterator[_Work]:
    read = node.source.schema
    if node.where != TRUE:
        read = filtered(read, over_groups(node.where, node.group_by))
    classes, shapes = _shapes([(read.blocks, None)], read.blocks.key_array())
    operations = [chain_flops(node.inner, s) + prod(_after(node.inner, s)) for s in shapes]
    yield _Work(operations, classes, read.holders)
    if node.finish:
        inner = aggregated(read, node.group_by, node.merge, node.inner, (), TRUE)
        classes, shapes = _shapes([(inner.blocks, None)], inner.blocks.key_array())
        yield _Work([chain_flops(node.finish, s) for s in shapes], classes, inner.holders)


def _shapes(
    operands: Sequence[tuple[BlockSchema, tuple[int, ...] | None]], keys: np.ndarray
) -> tuple[np.ndarray, list[tuple[Shape, ...]]]:
    """The classes of keys whose arrays have equal shapes.

    Args:
        operands: Each operand with its key dimensions among those of `keys`; None for the same.
        keys: int64 (keys, key dimensions).

    Returns:
        The class of each key, int64 (keys,), and the shapes of the operands in each class.
    """
    classes, count = np.zeros(len(keys), np.int64), 1
    for blocks, places in operands:
        for dim in blocks.dims:
            if dim.relative.keys:
                extents = dim.over(keys if places is None else keys[:, list(places)])
                number = np.unique(extents, return_inverse=True)[1].reshape(-1)
                of_dim = int(number.max(initial=0)) + 1
                classes = classes * of_dim + number
                count *= of_dim
    if count > 1:
        _, first, classes = np.unique(classes, return_index=True, return_inverse=True)
    else:
        first = np.zeros(min(1, len(keys)), np.int64)
    shapes = []
    for key in keys[first].tolist():
        own = [(b, key if p is None else [key[k] for k in p]) for b, p in operands]
        shapes.append(tuple(b.shape(tuple(k)) for b, k in own))
    return classes.reshape(-1), shapes


def _after(kernels: Kernels, shapes: tuple[Shape, ...]) -> Shape:
    for kernel in kernels:
        shapes = (_applied(kernel, shapes)[1],)
    return shapes[0]


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
    node = sized(kernel, shapes)
    return flops(node), node.schema.shape
