"""Language 2: the tensor-relational algebra, which cuts a computation into blocks.

A tensor relation maps keys to records of arrays of one shape. The nodes are the operations of
TRA §2.1 and EinDecomp §4.2. Kernels, which are EinSums, compute on records. Expressions over
`k0`, `k1`, … compute on keys. Building a node checks its schema, so no plan violates integrity
(TRA §2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from einsql.core.dag import bottom_up, producers_first
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import EinSum, Expr, Input, call
from einsql.ir.tra import kernel_typing
from einsql.ir.tra import typing as tra_typing
from einsql.ir.tra.block_schema import BlockSchema, Cuts, Dims, Domain, equal_cuts, key_label
from einsql.ir.tra.kernels import Merge, reductions


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A named tensor in blocks, with all its fields.

    Attributes:
        cuts: The cut of each axis, key i cuts axis i; or the axes in intervals.
    """

    tensor: Input
    cuts: Cuts | Dims
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.scan_schema(self.tensor.schema, self.cuts))


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """⋈: the natural join of any number of relations, with a kernel on each match.

    `keys` gives, for every key dimension of each operand, the key dimension of the result.
    Without a domain the result's keys are numbered in order of first use: a binary join has
    the left's keys, then the right's keys that are not joined.

    Attributes:
        kernel: An EinSum with all its outputs; a template if there is no domain.
        domain: The label of the kernel that each key dimension of the result cuts, with the
            boundaries of its intervals. The matches are the cells of the domain: they know
            their positions, and a label may be one of no operand. None if positions count
            from 0 in every tile.
    """

    sources: tuple[Node, ...]
    keys: tuple[tuple[int, ...], ...]
    kernel: EinSum
    domain: Domain | None = None
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schemas, keys = [s.schema for s in self.sources], self.keys
        if self.domain is None:
            _typed(self, kernel_typing.join_schema(schemas, keys, self.kernel))
        else:
            _typed(self, kernel_typing.domain_schema(schemas, keys, self.kernel, self.domain))


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Σ: merges records with equal `group_by` keys by ⊕; the result has these keys in order.

    Attributes:
        merge: The reduction of the field, or of each field.
    """

    source: Node
    group_by: tuple[int, ...]
    merge: Merge
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        _typed(self, tra_typing.aggregate_schema(source, self.group_by, self.merge))

    @property
    def reduce(self) -> str:
        """The reduction of a relation with one field."""
        (reduce,) = reductions(self.merge)
        return reduce


@dataclass(frozen=True, slots=True, eq=False)
class ReKey:
    """Replaces every key by expressions over it."""

    source: Node
    keys: tuple[Expr, ...]
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.rekey_schema(self.source.schema, self.keys))


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """σ: the pairs whose keys satisfy a condition."""

    source: Node
    condition: Expr
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.filter_schema(self.source.schema, self.condition))


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """λ: applies a kernel to every record."""

    source: Node
    kernel: EinSum
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, kernel_typing.transform_schema(self.source.schema, self.kernel))


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Cuts every array along `dim` into tiles of `size`; the last tile may be smaller.

    The number of the tile becomes the last key dimension.
    """

    source: Node
    dim: int
    size: int
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.tile_schema(self.source.schema, self.dim, self.size))


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Concatenates arrays that differ only in key `key` along `dim`, in key order."""

    source: Node
    key: int
    dim: int
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.stack_schema(self.source.schema, self.key, self.dim))


@dataclass(frozen=True, slots=True, eq=False)
class Repartition:
    """Π: the same tensor in other blocks.

    Attributes:
        cuts: The cut of each axis, key i cuts axis i before and after; or the axes in
            intervals, which may overlap (a window) or leave out parts (a slice).
    """

    source: Node
    cuts: Cuts | Dims
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.repartition_schema(self.source.schema, self.cuts))


Node = Scan | Join | Aggregate | ReKey | Filter | Transform | Tile | Stack | Repartition


def _typed(node: Node, schema: BlockSchema) -> None:
    object.__setattr__(node, "schema", schema)


def children(node: Node) -> tuple[Node, ...]:
    """The operands, in order."""
    if isinstance(node, Scan):
        return ()
    return node.sources if isinstance(node, Join) else (node.source,)


def with_children(node: Node, sources: Sequence[Node]) -> Node:
    """The node over other operands; the same node if the operands are the same objects."""
    if all(a is b for a, b in zip(children(node), sources, strict=True)):
        return node
    if isinstance(node, Join):
        return replace(node, sources=tuple(sources))
    assert not isinstance(node, Scan)
    return replace(node, source=sources[0])


def walk(*roots: Node) -> list[Node]:
    """Every node of the plan once, producers before consumers."""
    return producers_first(roots, children)


def transform(root: Node, visit: Callable[[Node], Node]) -> Node:
    """Rebuilds a plan bottom-up; `visit` takes each node over its new operands."""
    return bottom_up(root, children, lambda node, sources: visit(with_children(node, sources)))


def natural_keys(
    left: BlockSchema, right: BlockSchema, left_keys: Sequence[int], right_keys: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A binary Join's `keys` from the paper's joinKeysL and joinKeysR.

    Raises:
        ProgrammingError: The lists differ in length, repeat a key, or contain an unknown key.
    """
    if len(left_keys) != len(right_keys):
        raise ProgrammingError(
            f"Join pairs {plural(len(left_keys), 'key')} of the left with {len(right_keys)} of the "
            "right"
        )
    for side, keys, schema in (("left", left_keys, left), ("right", right_keys, right)):
        count = len(schema.bounds)
        for k in keys:
            if not 0 <= k < count:
                raise ProgrammingError(
                    f"Join names key {k} of the {side} operand, which has {count}",
                    hint="Key dimensions are numbered from 0.",
                )
        if len(set(keys)) < len(keys):
            raise ProgrammingError(f"Join names a key of the {side} operand twice")
    first = tuple(range(len(left.bounds)))
    pairs = dict(zip(right_keys, left_keys, strict=True))
    fresh = iter(range(len(first), len(first) + len(right.bounds)))
    return first, tuple(pairs[k] if k in pairs else next(fresh) for k in range(len(right.bounds)))


def repartition(node: Node, parts: Sequence[int]) -> Node:
    """The relation cut equally into numbers of blocks; the same node if it already is.

    Raises:
        IntegrityError: Keys are missing.
        ProgrammingError: Key i does not cut axis i, or the parts do not fit.
    """
    cuts = tra_typing.assembled(node.schema, "Repartition")
    new = equal_cuts("Repartition", [c[-1] for c in cuts], parts)
    return node if new == cuts else Repartition(node, new)


def diagonal(node: Node, labels: Sequence[str]) -> tuple[Node, tuple[str, ...]]:
    """The pairs whose keys with the same label are equal, under one key for each label.

    Returns:
        The relation and the labels of its keys; the same node if no label is repeated.
    """
    firsts = {x: labels.index(x) for x in labels}
    for n, x in enumerate(labels):
        if firsts[x] != n:
            same = call("eq", DType.BOOLEAN, key_label(firsts[x]), key_label(n))
            node = Filter(node, same)
    if len(firsts) < len(labels):
        node = ReKey(node, tuple(key_label(n) for n in firsts.values()))
    return node, tuple(firsts)
