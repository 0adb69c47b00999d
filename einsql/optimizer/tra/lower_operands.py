"""Operands of an EinSum as relations of blocks: cut, sliced, their diagonals taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einsql.core.schema import DType, Field, Schema
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import TRUE, Axis, Expr, Input, Node, bigint, call, conj
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import Cuts, boundaries, key_label
from einsql.ir.tra.kernels import VALUE
from einsql.ir.tra.typing import assembled


@dataclass(frozen=True, slots=True)
class Source:
    """A field of a node, with its relation where it is computed."""

    node: Node
    field: str
    relation: ra.Node | None


def cut_operand(source: Source, axes: Sequence[Axis], parts: Sequence[int]) -> ra.Node:
    """The blocks of a field within the bounds of the axes it is read through.

    Args:
        source: The field.
        axes: One for each of its keys, within the key's bounds.
        parts: Into how many parts each is cut.

    Raises:
        NotSupportedError: It is computed, and its relation is not given.
        ProgrammingError: An axis has more parts than values.
    """
    keys = source.node.schema.keys
    dtype = source.node.schema.dtype(source.field)
    sliced = [(a.lo, a.hi) != (k.lo, k.hi) for a, k in zip(axes, keys, strict=True)]
    if any(s and a.extent == 0 for s, a in zip(sliced, axes, strict=True)):
        shape = tuple(a.extent for a in axes)
        nothing = tuple(boundaries(n, p) for n, p in zip(shape, parts, strict=True))
        return ra.Scan(ra.ZerosInput.of(shape, dtype), nothing)
    inner = [
        tuple(a.lo - k.lo + n for n in boundaries(a.extent, p))
        for a, k, p in zip(axes, keys, parts, strict=True)
    ]
    cuts: Cuts = tuple(
        (*((0,) if cut[0] > 0 else ()), *cut, *((k.extent,) if cut[-1] < k.extent else ()))
        for cut, k in zip(inner, keys, strict=True)
    )
    relation = _recut(source, cuts)
    first = [int(cut[0] > 0) for cut in inner]
    if not any(sliced):
        return relation
    within: Expr = TRUE
    for n, (skip, part) in enumerate(zip(first, parts, strict=True)):
        if sliced[n]:
            first_block = call("le", DType.BOOLEAN, bigint(skip), key_label(n))
            last_block = call("lt", DType.BOOLEAN, key_label(n), bigint(skip + part))
            within = conj(within, first_block, last_block)
    moved = tuple(
        call("sub", DType.BIGINT, key_label(n), bigint(skip)) if skip else key_label(n)
        for n, skip in enumerate(first)
    )
    return ra.ReKey(ra.Filter(relation, within), moved)


def _recut(source: Source, cuts: Cuts) -> ra.Node:
    if source.relation is None:
        if not isinstance(source.node, Input):
            raise NotSupportedError("An operand is computed; its relation has to be given")
        return ra.Scan(scanned_field(source.node, source.field), cuts)
    if assembled(source.relation.schema, "Repartition") == cuts:
        return source.relation
    return ra.Repartition(source.relation, cuts)


def scanned_field(tensor: Input, field: str) -> Input:
    """The tensor that a Scan of one field reads, named `name.field` if there are several."""
    schema = tensor.schema
    if len(schema.values) == len(schema.fields) == 1:
        return tensor
    only = Schema(schema.keys, (Field(VALUE, schema.dtype(field)),))
    return replace(tensor, name=f"{tensor.name}.{field}", schema=only)
