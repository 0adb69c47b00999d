"""Language 2: the tensor-relational algebra, which cuts a computation into blocks.

A tensor relation maps keys to arrays. The nodes are the operations of TRA §2.1 and
EinDecomp §4.2. Kernels, which are EinSums over the arrays' axes, compute on arrays.
Expressions over `k0`, `k1`, … compute on keys. Building a node checks its schema, so no
plan violates integrity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from einsql.core.dag import bottom_up, producers_first
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import EinSum, Expr, Input, call
from einsql.ir.tra import typing as tra_typing
from einsql.ir.tra.block_schema import BlockSchema, Cuts, equal_cuts, key_label, shown
from einsql.ir.tra.kernels import VALUE


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A named tensor, cut; key i cuts axis i."""

    tensor: Input
    cuts: Cuts
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.scan_schema(self.tensor.schema, self.cuts))


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """⋈: the natural join of any number of relations, a kernel on each match.

    `keys` gives, for every key dimension of each operand, the key dimension of the result.
    These are numbered in order of first use: a binary join has the left's keys, then the
    keys of the right that are not joined.
    """

    sources: tuple[Node, ...]
    keys: tuple[tuple[int, ...], ...]
    kernel: EinSum
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schemas = [s.schema for s in self.sources]
        _typed(self, tra_typing.join_schema(schemas, self.keys, self.kernel))


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Σ: arrays with equal `group_by` keys merged by ⊕; those keys remain, in that order."""

    source: Node
    group_by: tuple[int, ...]
    reduce: str
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source.schema
        _typed(self, tra_typing.aggregate_schema(source, self.group_by, self.reduce))


@dataclass(frozen=True, slots=True, eq=False)
class ReKey:
    """Every key replaced by expressions over it."""

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
    """λ: a kernel on every array."""

    source: Node
    kernel: EinSum
    schema: BlockSchema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _typed(self, tra_typing.transform_schema(self.source.schema, self.kernel))


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Every array cut along `dim` into tiles of `size`, the last one maybe smaller.

    The key that counts them becomes the last key dimension.
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
    """Π: the same tensor in other blocks; key i cuts axis i before and after."""

    source: Node
    cuts: Cuts
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
    """The node over other operands; itself when they are the same objects."""
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
    """Rebuilds a plan bottom-up; `visit` sees each node over its new operands."""
    return bottom_up(root, children, lambda node, sources: visit(with_children(node, sources)))


@dataclass(frozen=True, slots=True, eq=False)
class RangeInput(Input):
    """The values of a label, [start, start + 1, …], which `generated` makes."""

    start: int = 0

    @classmethod
    def over(cls, lo: int, hi: int) -> RangeInput:
        """The integers from lo to hi - 1."""
        return cls(f"RANGE({lo}, {hi})", _dense((max(0, hi - lo),), DType.BIGINT), start=lo)

    def array(self) -> np.ndarray:
        """The integers; int64 of one axis."""
        return np.arange(self.start, self.start + self.schema.size, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ZerosInput(Input):
    """Zeros that `generated` makes; a plan reads none of them."""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: DType) -> ZerosInput:
        """Zeros of a shape and type."""
        return cls(f"ZEROS{shown(shape)} {dtype.value}", _dense(shape, dtype))

    def array(self) -> np.ndarray:
        """The zeros, in the type's NumPy dtype."""
        return np.zeros(self.schema.shape, self.schema.dtype(VALUE).numpy)


def _dense(shape: tuple[int, ...], dtype: DType) -> Schema:
    keys = tuple(Key(f"d{n}", 0, extent) for n, extent in enumerate(shape))
    return Schema(keys, (Field(VALUE, dtype),))


def generated(root: Node) -> dict[str, np.ndarray]:
    """The ranges and zeros that a plan scans, by name; names of tensors are small letters."""
    tensors = [node.tensor for node in walk(root) if isinstance(node, Scan)]
    return {t.name: t.array() for t in tensors if isinstance(t, RangeInput | ZerosInput)}


def natural_keys(
    left: BlockSchema, right: BlockSchema, left_keys: Sequence[int], right_keys: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A binary Join's `keys` from the paper's joinKeysL and joinKeysR.

    Raises:
        ProgrammingError: The lists differ in length, repeat a key, or name none there is.
    """
    if len(left_keys) != len(right_keys):
        raise ProgrammingError(
            f"Join pairs {len(left_keys)} keys of the left with {len(right_keys)} of the right"
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
    """The relation cut equally into given numbers of blocks; itself if it is so already.

    Raises:
        IntegrityError: Keys are missing.
        ProgrammingError: Key i does not cut axis i, or the parts do not fit.
    """
    cuts = tra_typing.assembled(node.schema, "Repartition")
    new = equal_cuts("Repartition", [c[-1] for c in cuts], parts)
    return node if new == cuts else Repartition(node, new)


def diagonal(node: Node, labels: Sequence[str]) -> tuple[Node, tuple[str, ...]]:
    """The pairs whose keys of the same label agree, under one key for each label.

    Returns:
        The relation, itself where no label is repeated, and the labels of its keys.
    """
    firsts = {x: labels.index(x) for x in labels}
    for n, x in enumerate(labels):
        if firsts[x] != n:
            same = call("eq", DType.BOOLEAN, key_label(firsts[x]), key_label(n))
            node = Filter(node, same)
    if len(firsts) < len(labels):
        node = ReKey(node, tuple(key_label(n) for n in firsts.values()))
    return node, tuple(firsts)
