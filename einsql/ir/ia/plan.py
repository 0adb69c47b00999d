"""Language 3: the implementation algebra (TRA §3).

A plan is a tensor-relational plan whose arrays are placed at sites. Plans over blocks come from
Table 1 (TRA §4.1); the rules of TRA §4.2 rewrite them, and the cheapest one runs. Plans over
elements come from the cuts of EinDecomp and from placement; their joins have domains, and product
rules act on their cuts (`einsql.optimizer.site_optimizer`).

Bcast and Shuffle move arrays between sites; all other operations are local to a site.
Repartition both moves and computes, because local operations cannot recut a tensor.
Operations have chains of kernels, so a rule can always compose two of them. Building a node
checks its schema, which has the law of the sites of its arrays: a plan whose local operations
would compute wrong results cannot be built. `einsql.ir.ia.typing` computes the result types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields, replace
from typing import get_args

from einsql.core.dag import producers_first
from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Input
from einsql.ir.ia import typing as ia_typing
from einsql.ir.ia.join_typing import cells_joined, joined
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.placement import everywhere, spread
from einsql.ir.ia.tiles import missing
from einsql.ir.ia.transfers import moved_elements, transferred_bytes
from einsql.ir.ia.typing import Emit
from einsql.ir.layout import Layout
from einsql.ir.tra import typing as tra_typing
from einsql.ir.tra.block_schema import Cuts, Dims, Domain
from einsql.ir.tra.kernels import Merge, reductions

Kernels = tuple[EinSum, ...]
"""A chain of kernels, applied in order; no kernel is the identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A stored tensor with the layout of its blocks over sites; `cuts` as in TRA."""

    tensor: Input
    cuts: Cuts | Dims
    layout: Layout
    sites: int
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        blocks = tra_typing.scan_schema(self.tensor.schema, self.cuts)
        _typed(self, ia_typing.stored(blocks, self.layout, self.sites))


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
    """SHUF: sends every array to the site of its keys `part_dims`; without keys, to site 0."""

    source: Node
    part_dims: tuple[int, ...]
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        layout = spread_over(source.sites, source.blocks.bounds, self.part_dims)
        _typed(self, ia_typing.moved(source, layout))


@dataclass(frozen=True, slots=True, eq=False)
class Repartition:
    """Π: the same tensor in other blocks, each at the site of its keys `part_dims`.

    It shuffles the intersections of old and new blocks, and assembles them locally. Parts are cut
    like merged arrays, and stay unmerged.

    Attributes:
        part_dims: The keys that determine the sites as in a shuffle, or the layout of the result.
        also: Other relations with parts of the same tensor. A site takes a block from one of
            them if that has all of the block at the site.
        nbytes: The bytes that it sends, if they follow from stored elements; None for arrays.
    """

    source: Node
    cuts: Cuts | Dims
    part_dims: tuple[int, ...] | Layout
    also: tuple[Node, ...] = ()
    nbytes: int | None = None
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        layout = self.part_dims
        if not isinstance(layout, Layout):
            layout = spread_over(source.sites, tra_typing.cut_bounds(self.cuts), layout)
        _typed(self, ia_typing.recut(source, self.cuts, layout))


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """SHUF by data: a relation whose blocks stay, because the rows of its reader come to them.

    The reader is a local join whose rows read one block each, which they choose by a value. The
    rows are sent to the site of the block, and their results come back. So the type is that of a
    copy of all blocks at every site. The bytes follow from data; an SPMD program expects them.
    """

    source: Node
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, ia_typing.whole(self.source.schema))


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
    """λᴸ: emits every pair once or more, applies kernels to its array, and renames its key.

    Attributes:
        keys: The paper's keyMap over `k0`, `k1`, …. If a pair is emitted several times,
            the last label is the number of the emission. None keeps the keys.
        kernels: The paper's arrayMap.
        emit: The emission of several pairs per pair; None for one pair.
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
    """⋈ᴸ: applies kernels to the matches; the arrays of every match share a site.

    Attributes:
        keys: For every key dimension of each operand the key dimension of the match.
        kernels: The paper's projOp; the first kernel takes all arrays of a match.
        where: A condition on the keys of a match; other matches are skipped.
        key_map: The result's keys as expressions over the match's keys; None keeps the keys.
        domain: The domain of the first kernel, as in TRA; None if it is a template.
        layout: The sites of the cells of a domain. None for every site that has the arrays.
            A join with given sites has one kernel, no condition and no new keys.

    Raises:
        ProgrammingError: A join with given sites has other attributes too.
    """

    sources: tuple[Node, ...]
    keys: tuple[tuple[int, ...], ...]
    kernels: Kernels
    where: Expr = TRUE
    key_map: tuple[Expr, ...] | None = None
    domain: Domain | None = None
    layout: Layout | None = None
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schemas, where = tuple(s.schema for s in self.sources), self.where
        if self.domain is not None and self.layout is not None:
            if len(self.kernels) > 1 or where != TRUE or self.key_map is not None:
                raise ProgrammingError(
                    "A local join with given sites has further kernels, a condition or new keys",
                    hint="Apply them in a local map or a local filter of the join.",
                )
            schema = cells_joined(schemas, self.keys, self.kernels[0], self.domain, self.layout)
        else:
            schema = joined(schemas, self.keys, self.kernels, where, self.key_map, self.domain)
        _typed(self, schema)

    @property
    def width(self) -> int:
        """The number of key dimensions of a match."""
        if self.domain is not None:
            return len(self.domain)
        return 1 + max((p for places in self.keys for p in places), default=-1)

    @property
    def join_keys(self) -> tuple[int, ...]:
        """The match's key dimensions that occur in every operand."""
        return tuple(k for k in range(self.width) if all(k in places for places in self.keys))


@dataclass(frozen=True, slots=True, eq=False)
class LocalAggregate:
    """Σᴸ: merges the arrays of a group at each site by ⊕.

    A group with arrays at several sites has partial results, a Partial entry. A shuffle
    (or Bcast) and a second local aggregation complete them.

    Attributes:
        group_by: The result's keys, in order.
        merge: The reduction of the field, or of each field.
        inner: Kernels applied to every array before the merge.
        finish: Kernels applied to every merged array.
        where: A condition on the keys of a group; other groups are skipped.
    """

    source: Node
    group_by: tuple[int, ...]
    merge: Merge
    inner: Kernels = ()
    finish: Kernels = ()
    where: Expr = TRUE
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema = ia_typing.aggregated(
            self.source.schema, self.group_by, self.merge, self.inner, self.finish, self.where
        )
        _typed(self, schema)

    @property
    def reduce(self) -> str:
        """The reduction of a relation with one field."""
        (reduce,) = reductions(self.merge)
        return reduce


@dataclass(frozen=True, slots=True, eq=False)
class LocalStack:
    """Concatenates arrays at one site that differ only in key `key`, along `dim`.

    The paper writes Σᴸ(keyDim, arrayStackOp). The order of the arrays matters, so it cannot
    run in two phases.
    """

    source: Node
    key: int
    dim: int
    schema: PhysicalSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, ia_typing.stacked(self.source.schema, self.key, self.dim))


Unary = (
    Bcast | Shuffle | Repartition | Routed | LocalFilter | LocalMap | LocalAggregate | LocalStack
)
Node = Scan | LocalJoin | Unary


def _typed(node: Node, schema: PhysicalSchema) -> None:
    object.__setattr__(node, "schema", schema)


def spread_over(sites: int, bounds: Sequence[int], part_dims: Sequence[int]) -> Layout:
    """The layout after a shuffle on some keys.

    Raises:
        ProgrammingError: A key is repeated or does not exist.
    """
    if len(set(part_dims)) < len(part_dims) or any(not 0 <= k < len(bounds) for k in part_dims):
        raise ProgrammingError(
            f"A shuffle on the keys {tuple(part_dims)} does not fit {len(bounds)} key dimensions",
            hint="Key dimensions are numbered from 0; each may occur once.",
        )
    return spread(sites, part_dims, [bounds[k] for k in part_dims])


def children(node: Node) -> tuple[Node, ...]:
    """The operands, in order."""
    match node:
        case Scan():
            return ()
        case LocalJoin():
            return node.sources
        case Repartition():
            return (node.source, *node.also)
        case _:
            return (node.source,)


def with_children(node: Node, sources: Sequence[Node]) -> Node:
    """The node over other operands; the same node if the operands are the same objects."""
    if all(a is b for a, b in zip(children(node), sources, strict=True)):
        return node
    if isinstance(node, LocalJoin):
        return replace(node, sources=tuple(sources))
    assert not isinstance(node, Scan)
    if isinstance(node, Repartition):
        return replace(node, source=sources[0], also=tuple(sources[1:]))
    return replace(node, source=sources[0])


def operation(node: Node) -> tuple[object, ...]:
    """The kind and the attributes of a node, without its operands and its type."""
    kind = type(node)
    return (kind, *(getattr(node, name) for name in _ATTRIBUTES[kind]))


_OPERANDS = ("source", "sources", "also")
_ATTRIBUTES = {
    kind: tuple(f.name for f in fields(kind) if f.init and f.name not in _OPERANDS)
    for kind in get_args(Node)
}
"""The names of the attributes of each kind of node, without its operands and its type."""


def walk(*roots: Node) -> list[Node]:
    """Every node of the plan once, producers before consumers."""
    return producers_first(roots, children)


def sends(node: Node) -> int:
    """The number of bytes that cross sites when a node runs; 0 for `Routed`.

    It is exact, except for results of sparse operands, whose number of elements is expected.
    """
    if isinstance(node, Bcast | Shuffle):
        return transferred_bytes(node.source.schema, node.schema)
    if isinstance(node, Repartition):
        if node.nbytes is not None:
            return node.nbytes
        source, width = node.source.schema, node.schema.width
        if isinstance(node.part_dims, Layout) and source.parts is None:
            return missing(node.schema, (source, *(v.schema for v in node.also)))[0] * width
        return moved_elements(source, node.schema, node.cuts) * width
    return 0


def bytes_sent(root: Node) -> int:
    """The exact number of bytes that cross sites when a plan runs."""
    return sum(map(sends, walk(root)))
