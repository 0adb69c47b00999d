"""Language 3 for plans over blocks: the implementation algebra (TRA §3).

A tensor-relational plan whose arrays have sites. It is an algebra like the one it comes
from: the rules of TRA §4.2 rewrite its plans, and the cheapest is run. EinSum graphs that
EinDecomp has cut take the other way, to the placed programs of `supersteps`, which nothing
rewrites any more.

Two operations move arrays, Bcast and Shuffle; all others work on what lies at a site.
Repartition does both, for no local work can cut a tensor otherwise. Kernels come in
chains, so that a rule may always compose them. A node cannot be made where local work
would be wrong: its schema, which knows the site of every array, is checked when it is
built. `einsql.ir.ia.typing` says what each operation makes of the types it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from einsql.core.dag import producers_first
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Input
from einsql.ir.ia import typing as ia_typing
from einsql.ir.ia.placement import Held, Placement, everywhere, spread
from einsql.ir.ia.transfers import array_transfers, piece_transfers
from einsql.ir.ia.typing import Emit, PhysicalSchema
from einsql.ir.tra import typing as tra_typing
from einsql.ir.tra.block_schema import Cuts, KeyTuple

Kernels = tuple[EinSum, ...]
"""Applied one after another; none of them is the identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A stored tensor whose blocks lie where `placement` says; key i cuts axis i."""

    tensor: Input
    cuts: Cuts
    placement: Placement
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        blocks = tra_typing.scan_schema(self.tensor.schema, self.cuts)
        sites_by_key: Held = {k: (self.placement.at(k),) for k in blocks.each_key()}
        _typed(self, PhysicalSchema(blocks, self.placement, sites_by_key))


@dataclass(frozen=True, slots=True, eq=False)
class Bcast:
    """BCAST: a copy of every array at every site."""

    source: Node
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        _typed(self, ia_typing.moved(source, everywhere(source.sites)))


@dataclass(frozen=True, slots=True, eq=False)
class Shuffle:
    """SHUF: every array to the one site that its `part_dims` say; on none, to site 0."""

    source: Node
    part_dims: tuple[int, ...]
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        placement = spread_over(source.sites, source.blocks.bounds, self.part_dims)
        _typed(self, ia_typing.moved(source, placement))


@dataclass(frozen=True, slots=True, eq=False)
class Repartition:
    """Π: the same tensor in other blocks, each at the one site that `part_dims` say.

    A shuffle of the pieces into which old and new blocks divide each other, and local
    work that puts them together.
    """

    source: Node
    cuts: Cuts
    part_dims: tuple[int, ...]
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        bounds = tuple(len(c) - 1 for c in self.cuts)
        placement = spread_over(source.sites, bounds, self.part_dims)
        _typed(self, ia_typing.recut(source, self.cuts, placement))


@dataclass(frozen=True, slots=True, eq=False)
class LocalFilter:
    """σᴸ: the pairs whose keys satisfy a condition."""

    source: Node
    condition: Expr
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, ia_typing.filtered(self.source.schema, self.condition))


@dataclass(frozen=True, slots=True, eq=False)
class LocalMap:
    """λᴸ: every pair emitted once or several times, its array given to kernels, renamed.

    Attributes:
        keys: The paper's keyMap over `k0`, `k1`, …, of which the last is the number of
            what is emitted several times; None keeps them.
        kernels: The paper's arrayMap.
        emit: How a pair becomes several; None for one.
    """

    source: Node
    keys: tuple[Expr, ...] | None = None
    kernels: Kernels = ()
    emit: Emit | None = None
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        _typed(self, ia_typing.mapped(source, self.emit, self.keys, self.kernels))


@dataclass(frozen=True, slots=True, eq=False)
class LocalJoin:
    """⋈ᴸ: kernels on the matches that share a site.

    Attributes:
        keys: For every key dimension of each operand the match's key dimension it is.
        kernels: The paper's projOp; the first takes all arrays of a match.
        where: The matches that are wanted, by their keys.
        key_map: The result's keys by those of the match; None keeps them.
        is_complete: True if every match that is wanted shares a site.
    """

    sources: tuple[Node, ...]
    keys: tuple[tuple[int, ...], ...]
    kernels: Kernels
    where: Expr = TRUE
    key_map: tuple[Expr, ...] | None = None
    schema: PhysicalSchema = field(init=False, repr=False)
    is_complete: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schemas = tuple(s.schema for s in self.sources)
        schema, complete = ia_typing.joined(
            schemas, self.keys, self.kernels, self.where, self.key_map
        )
        _typed(self, schema)
        object.__setattr__(self, "is_complete", complete)

    @property
    def width(self) -> int:
        """Key dimensions of a match."""
        return 1 + max((p for places in self.keys for p in places), default=-1)

    @property
    def join_keys(self) -> tuple[int, ...]:
        """The match's key dimensions that every operand has."""
        return tuple(k for k in range(self.width) if all(k in places for places in self.keys))


@dataclass(frozen=True, slots=True, eq=False)
class LocalAggregate:
    """Σᴸ: what a site holds of a group, merged by ⊕.

    Where sites share a group its keys are left with parts, a Partial placement; a
    shuffle (or Bcast) and a second local aggregation complete them.

    Attributes:
        group_by: The keys that remain, in that order.
        inner: Kernels for every array before it is merged.
        finish: Kernels for every merged array, once.
        where: The groups that are wanted, by their keys.
    """

    source: Node
    group_by: tuple[int, ...]
    reduce: str
    inner: Kernels = ()
    finish: Kernels = ()
    where: Expr = TRUE
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema = ia_typing.aggregated(
            self.source.schema, self.group_by, self.reduce, self.inner, self.finish, self.where
        )
        _typed(self, schema)


@dataclass(frozen=True, slots=True, eq=False)
class LocalStack:
    """Arrays that differ in key `key` alone, side by side along `dim`; they share a site.

    The paper writes it Σᴸ(keyDim, arrayStackOp); its order allows no two phases.
    """

    source: Node
    key: int
    dim: int
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, ia_typing.stacked(self.source.schema, self.key, self.dim))


Unary = Bcast | Shuffle | Repartition | LocalFilter | LocalMap | LocalAggregate | LocalStack
Node = Scan | LocalJoin | Unary


def _typed(node: Node, schema: PhysicalSchema) -> None:
    object.__setattr__(node, "schema", schema)


def spread_over(sites: int, bounds: Sequence[int], part_dims: Sequence[int]) -> Placement:
    """Where a shuffle on some keys brings arrays.

    Raises:
        ProgrammingError: A key is named twice, or there is none such.
    """
    if len(set(part_dims)) < len(part_dims) or any(not 0 <= k < len(bounds) for k in part_dims):
        raise ProgrammingError(
            f"A shuffle is given the keys {tuple(part_dims)}, there are {len(bounds)}",
            hint="Key dimensions are numbered from 0 and named once.",
        )
    return spread(sites, part_dims, [bounds[k] for k in part_dims])


def children(node: Node) -> tuple[Node, ...]:
    """The operands, in order."""
    if isinstance(node, Scan):
        return ()
    return node.sources if isinstance(node, LocalJoin) else (node.source,)


def with_children(node: Node, sources: Sequence[Node]) -> Node:
    """The node over other operands; itself when they are the same objects."""
    if all(a is b for a, b in zip(children(node), sources, strict=True)):
        return node
    if isinstance(node, LocalJoin):
        return replace(node, sources=tuple(sources))
    assert not isinstance(node, Scan)
    return replace(node, source=sources[0])


def walk(*roots: Node) -> list[Node]:
    """Every node of the plan once, producers before consumers."""
    return producers_first(roots, children)


def sends(node: Node) -> int:
    """Bytes that cross sites when a node runs, exactly."""
    if isinstance(node, Bcast | Shuffle):
        source = node.source.schema
        sent: dict[KeyTuple, int] = {}
        for key, *_ in array_transfers(source, node.schema):
            sent[key] = sent.get(key, 0) + 1
        return sum(times * source.nbytes(key) for key, times in sent.items())
    if isinstance(node, Repartition):
        source, item = node.source.schema, node.schema.blocks.dtype.numpy.itemsize
        old = tra_typing.assembled(source.blocks, "Repartition")
        crossing = piece_transfers(source, node.schema, old, node.cuts)
        return sum(p.volume * item for p, origin, target in crossing if origin != target)
    return 0


def bytes_sent(root: Node) -> int:
    """Bytes that cross sites when a plan runs, exactly."""
    return sum(map(sends, walk(root)))
