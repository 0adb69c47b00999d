"""Language 3 for plans over blocks: the implementation algebra (TRA §3).

A plan is a tensor-relational plan whose arrays have sites. The rules of TRA §4.2 rewrite
plans, and the cheapest one runs. EinSum graphs that EinDecomp has cut become SPMD programs
instead (`einsql.ir.spmd`), which no rule rewrites.

Bcast and Shuffle move arrays between sites; all other operations are local to a site.
Repartition moves and computes, because no local operation can cut a tensor differently.
Operations have chains of kernels, so a rule can always compose two of them. Building a node
checks its schema, which records the sites of every array: a plan whose local operations
would compute wrong results cannot be built. `einsql.ir.ia.typing` has the result types.
"""

from __future__ import annotations

from collections import Counter
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
from einsql.ir.tra.block_schema import Cuts

Kernels = tuple[EinSum, ...]
"""Applied one after another; none of them is the identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A stored tensor whose blocks have the given placement; key i cuts axis i."""

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
    """SHUF: sends every array to the site that its keys `part_dims` give; to site 0 without."""

    source: Node
    part_dims: tuple[int, ...]
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        placement = spread_over(source.sites, source.blocks.bounds, self.part_dims)
        _typed(self, ia_typing.moved(source, placement))


@dataclass(frozen=True, slots=True, eq=False)
class Repartition:
    """Π: the same tensor in other blocks, each at the site that its keys `part_dims` give.

    It shuffles the intersections of old and new blocks, and assembles them locally.
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
    """λᴸ: emits every pair once or several times, applies kernels to its array, renames it.

    Attributes:
        keys: The paper's keyMap over `k0`, `k1`, …; where a pair is emitted several times,
            the last one counts these. None keeps the keys.
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
    """⋈ᴸ: applies kernels to the matches whose arrays share a site.

    Attributes:
        keys: For every key dimension of each operand the key dimension of the match.
        kernels: The paper's projOp; the first takes all arrays of a match.
        where: A condition on the keys of a match; other matches are skipped.
        key_map: The result's keys as expressions over those of the match; None keeps them.
        is_complete: True if the arrays of every selected match share a site.
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
    """Σᴸ: merges the arrays of a group at each site by ⊕.

    A group with arrays at several sites has partial results, a Partial placement. A shuffle
    (or Bcast) and a second local aggregation complete them.

    Attributes:
        group_by: The keys that remain, in that order.
        inner: Kernels applied to every array before the merge.
        finish: Kernels applied to every merged array.
        where: A condition on the keys of a group; other groups are skipped.
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
    """Concatenates arrays that differ only in key `key` along `dim`; they share a site.

    The paper writes Σᴸ(keyDim, arrayStackOp). The order of the arrays matters, so it cannot
    run in two phases.
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
    """The placement after a shuffle on some keys.

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
        sent = Counter(key for key, *_ in array_transfers(source, node.schema))
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
