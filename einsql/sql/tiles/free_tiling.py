"""TILES(x) without numbers: the optimizer chooses the tiling.

The result of such a query must be the same for every tiling. `merged_back` proves this from the
plan and returns the equal graph over elements, which EinDecomp cuts like any other. The proof
follows two facts through the plan. Each axis of the arrays is cut by one key dimension. A kernel
that reduces an axis leaves its key pending, until an aggregation merges the arrays of that key by
the same reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import ProgrammingError
from einsql.ir.einsum.cells import sized
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Label,
    Node,
    Operand,
    Output,
    Value,
    exprs,
    labels_of,
)
from einsql.ir.tra import plan as ra
from einsql.ir.tra.kernels import VALUE
from einsql.sql.scope.relation import Column, Relation, TileRelation, deduplicated


@dataclass(frozen=True, slots=True, eq=False)
class FreeTensor(Input):
    """A tensor in TILES without numbers.

    Attributes:
        node: The relation over elements.
        keys: The position among the node's keys of each axis.
        offset: The position of the call in the statement's text.
    """

    node: Node | None = None
    keys: tuple[int, ...] = ()
    offset: int | None = None

    @classmethod
    def of(cls, node: Node, names: Mapping[str, str], offset: int | None) -> FreeTensor:
        """The tensor of a relation's only field.

        Args:
            node: A relation with every key, whose keys start at 0.
            names: The axes' names, by the node's key, in the order of axes.
            offset: The position of the call.
        """
        positions = {k.name: n for n, k in enumerate(node.schema.keys)}
        keys = tuple(positions[k] for k in names)
        extents = (node.schema.keys[n].extent for n in keys)
        axes = tuple(
            Key(new, 0, extent) for new, extent in zip(names.values(), extents, strict=True)
        )
        (field,) = node.schema.fields
        schema = Schema(axes, (Field(VALUE, field.dtype),))
        return cls("TILES", schema, node=node, keys=keys, offset=offset)


def free_tensors(root: ra.Node) -> list[FreeTensor]:
    """The tensors of a plan whose tiling is free."""
    tensors = (n.tensor for n in ra.walk(root) if isinstance(n, ra.Scan))
    return [t for t in tensors if isinstance(t, FreeTensor)]


def is_free(relation: TileRelation) -> bool:
    """True if the optimizer chooses the tiling of a tensor that a relation reads."""
    return bool(free_tensors(relation.node))


def require_numbers(root: ra.Node, why: str) -> None:
    """Rejects a plan with a free tiling.

    Args:
        root: The plan.
        why: The part of the query that depends on the tiling.

    Raises:
        ProgrammingError: TILES lacks numbers.
    """
    for tensor in free_tensors(root):
        raise numbers_needed(tensor, why)


def require_one_kind(items: Sequence[ra.Node]) -> None:
    """Rejects free tilings beside tiles with numbers in one FROM.

    Raises:
        ProgrammingError: TILES lacks numbers.
    """
    free = [n for n in items if free_tensors(n)]
    if any(n not in free and n.schema.bounds for n in items):
        for node in free:
            require_numbers(node, "other tiles of its FROM have them")


def numbers_needed(tensor: FreeTensor, why: str, *, merged: bool = False) -> ProgrammingError:
    """The error for a free tiling on which the result depends.

    Args:
        tensor: The tensor with the free tiling.
        why: The part of the query that depends on the tiling.
        merged: The query merges its result back to elements.
    """
    parts = ", ".join("2" for _ in tensor.schema.keys)
    other = "" if merged else ", or read the result with ELEMENTS((SELECT …))"
    return ProgrammingError(
        f"TILES needs a number of parts for each key here, because {why}",
        hint=f"Write TILES(x, {parts}){other}.",
        position=tensor.offset,
    )


class TilingError(Exception):
    """The result of a plan depends on its tiling; the argument says why."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """A relation of the plan over elements.

    Attributes:
        node: The relation over elements; its keys are the axes of the arrays, from 0.
        axes: The key dimension that cuts each axis.
        pending: The reduction by which the arrays of a key dimension must be merged.
    """

    node: Node
    axes: tuple[int, ...]
    pending: Mapping[int, str]


def merged_back(source: TileRelation) -> Relation:
    """The relation over elements that equals the merged tiles of a plan with free tilings.

    Raises:
        ProgrammingError: The result depends on the tiling.
    """
    node = _elements(source.node)
    names = deduplicated([*source.keys, VALUE])
    pairs = zip(names, node.schema.keys, strict=False)
    columns = [Column(name, DType.BIGINT, key=k.name) for name, k in pairs]
    return Relation(node, (*columns, Column(names[-1], node.schema.dtype(VALUE), field=VALUE)))


def _elements(root: ra.Node) -> Node:
    """A node over elements with a key for each axis and the field VALUE."""
    tensors = free_tensors(root)
    raised: dict[int, _Raised] = {}
    try:
        for node in ra.walk(root):
            raised[id(node)] = _raise(node, [raised[id(c)] for c in ra.children(node)])
        result = raised[id(root)]
        if result.pending:
            raise TilingError("a kernel reduces arrays that nothing merges")
        if result.axes != tuple(range(len(root.schema.bounds))):
            raise TilingError("the keys are not those of the axes, in order")
    except TilingError as error:
        raise numbers_needed(tensors[0], str(error), merged=True) from None
    return result.node


def _raise(node: ra.Node, sources: Sequence[_Raised]) -> _Raised:
    match node:
        case ra.Scan():
            return _scan(node.tensor)
        case ra.Join():
            return _applied(node.kernel, sources, node.keys)
        case ra.Transform():
            every = tuple(range(len(node.schema.bounds)))
            return _applied(node.kernel, sources, (every,))
        case ra.Aggregate():
            return _aggregated(node, sources[0])
        case ra.ReKey():
            return _rekeyed(node.keys, sources[0])
        case ra.Filter():
            raise TilingError("a condition reads keys of tiles")
    raise TilingError("it cuts or stacks tiles")


def _scan(tensor: Input) -> _Raised:
    if not isinstance(tensor, FreeTensor):
        if tensor.schema.keys:
            raise TilingError("other tiles have numbers")
        return _Raised(_value(tensor, ()), (), {})
    assert tensor.node is not None
    axes = tuple(range(len(tensor.keys)))
    labels = tuple(f"d{tensor.keys.index(n)}" for n in axes)
    return _Raised(_value(tensor.node, labels), axes, {})


def _value(node: Node, labels: tuple[str, ...]) -> EinSum:
    """The only field of a node as VALUE, with the keys d0, d1, … in order."""
    axes = tuple(Axis(x, k.lo, k.hi) for x, k in zip(labels, node.schema.keys, strict=True))
    (field,) = node.schema.fields
    output = Output(VALUE, (Value(0, field.name, field.dtype),), field.dtype)
    keys = tuple(f"d{n}" for n in range(len(labels)))
    return EinSum(axes, (Operand(node, labels),), TRUE, keys, (output,))


def _applied(
    kernel: EinSum, sources: Sequence[_Raised], places: Sequence[tuple[int, ...]]
) -> _Raised:
    if any(labels_of(e) for e in exprs(kernel)) or any(a.define for a in kernel.axes):
        raise TilingError("a kernel reads positions within tiles")
    if any(s.pending for s in sources):
        raise TilingError("a kernel reads arrays before they are merged")
    cut_by: dict[str, int] = {}
    for operand, source, keys in zip(kernel.operands, sources, places, strict=True):
        for label, axis in zip(operand.labels, source.axes, strict=True):
            if cut_by.setdefault(label, keys[axis]) != keys[axis]:
                raise TilingError("a kernel reads axes that different keys cut as one axis")
    if any(x not in cut_by for x in kernel.keys):
        raise TilingError("a kernel adds an axis")
    axes = tuple(cut_by[x] for x in kernel.keys)
    (output,) = kernel.outputs
    reduced = {key for label, key in cut_by.items() if label not in kernel.keys}
    if len(set(cut_by.values())) < len(cut_by):
        raise TilingError("one key cuts two axes")
    if output.reduction is None and reduced:
        raise TilingError("a kernel selects elements by their position within tiles")
    local = sized(kernel, tuple(s.node.schema.shape for s in sources))
    operands = (replace(o, source=s.node) for o, s in zip(local.operands, sources, strict=True))
    node = replace(local, operands=tuple(operands))
    return _Raised(node, axes, dict.fromkeys(reduced, output.reduction or ""))


def _aggregated(node: ra.Aggregate, source: _Raised) -> _Raised:
    pending = dict(source.pending)
    for key in range(len(node.source.schema.bounds)):
        if key not in node.group_by and pending.pop(key, None) != node.reduce:
            raise TilingError(f"tiles are merged by {node.reduce} that no kernel reduced by it")
    numbers = {key: n for n, key in enumerate(node.group_by)}
    return _renumbered(source.node, source.axes, pending, numbers)


def _rekeyed(keys: Sequence[Expr], source: _Raised) -> _Raised:
    numbers = {int(e.name[1:]): n for n, e in enumerate(keys) if isinstance(e, Label)}
    if len(numbers) < len(keys):
        raise TilingError("a key is computed from keys of tiles")
    return _renumbered(source.node, source.axes, source.pending, numbers)


def _renumbered(
    node: Node, axes: Sequence[int], pending: Mapping[int, str], numbers: Mapping[int, int]
) -> _Raised:
    """The relation under new numbers of its key dimensions."""
    if not numbers.keys() >= {*axes, *pending}:
        raise TilingError("a key of tiles is left out")
    left = {numbers[k]: reduce for k, reduce in pending.items()}
    return _Raised(node, tuple(numbers[k] for k in axes), left)
