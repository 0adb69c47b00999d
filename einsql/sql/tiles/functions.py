"""TILES, TILE and ELEMENTS: conversion of tensors to tiles, to smaller tiles, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.units import plural
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, Input, PartInput
from einsql.ir.einsum.intervals import interval
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import equal_cuts, sizes
from einsql.ir.tra.kernels import VALUE
from einsql.ir.tra.typing import assembled
from einsql.sql.binder.context import Binder
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.select import SelectBinder
from einsql.sql.parser.positions import position, positioned
from einsql.sql.scope.relation import Column, Relation, TileColumn, TileRelation, deduplicated
from einsql.sql.tiles.free_tiling import FreeTensor, is_free, merged_back

TILE = "tile"
"""The name of the column of arrays."""
PART = "part"
"""The name of the key that TILE adds."""


def bind_function(query: Binder, call: exp.Anonymous) -> Relation | TileRelation:
    """Binds TILES(x, parts, …), TILE(t, dimension, size) or ELEMENTS(t).

    Raises:
        Error: An argument is invalid.
    """
    name = call.name.lower()
    with positioned(call):
        if not call.expressions:
            raise ProgrammingError(f"{name.upper()} needs a tensor or tiles first")
        source = _source(query, call.expressions[0], name.upper())
        counts = [_count(query, arg, name.upper()) for arg in call.expressions[1:]]
        if name == "tiles":
            return _tiles(query, source, counts, call)
        if isinstance(source, Relation):
            raise ProgrammingError(
                f"{name.upper()} takes tiles, not elements", hint="TILES(…) cuts a tensor."
            )
        return _tile(source, counts) if name == "tile" else _elements(query, source, counts)


def _source(query: Binder, arg: exp.Expr, name: str) -> Relation | TileRelation:
    match arg:
        case exp.Subquery():
            return query.bind_any(arg)
        case exp.Column() if not arg.table:
            return query.named(arg.name, arg)
        case exp.Literal() if arg.is_string:
            return query.find(arg.name) or query.catalog.file(arg.name)
        case exp.Func():
            return query.table_function(arg)
    raise ProgrammingError(
        f"{name} takes the name of a tensor, a file, a subquery or a table function first",
        position=position(arg),
    )


def _count(query: Binder, arg: exp.Expr, name: str) -> int:
    bound = ScalarBinder(SelectBinder(query)).bind(arg)
    is_integer = isinstance(bound.type, DType) and bound.type.is_integer and bound.valid == TRUE
    bounds = interval(bound.value, {}) if is_integer else None
    if bounds is None or bounds[0] != bounds[1]:
        raise ProgrammingError(f"{name} takes whole constants", position=position(arg))
    return bounds[0]


# ---- TILES


def _tiles(
    query: Binder, source: Relation | TileRelation, parts: list[int], call: exp.Anonymous
) -> TileRelation:
    if isinstance(source, TileRelation):
        _check_parts(parts, source.keys)
        node = ra.repartition(source.node, parts) if parts else source.node
        return TileRelation(node, source.columns)
    names = [c.name for c in source.columns if c.key is not None]
    _check_parts(parts, names)
    tensor = _tensor(query, source)
    if names and not parts:
        tensor = _free(tensor, source, call)
    cuts = equal_cuts("TILES", tensor.schema.shape, parts or [1] * len(names))
    columns = deduplicated([*names, TILE])
    keys = [TileColumn(name, n) for n, name in enumerate(columns[:-1])]
    return TileRelation(ra.Scan(tensor, cuts), (*keys, TileColumn(columns[-1])))


def _free(tensor: Input, source: Relation, call: exp.Anonymous) -> FreeTensor:
    """The tensor whose tiling the optimizer chooses."""
    if isinstance(tensor, PartInput) and len(source.node.schema.fields) == 1:  # without flags
        keys = {c.key: c.name for c in source.columns if c.key is not None}
        return FreeTensor.of(source.node, keys, position(call))
    return FreeTensor.of(tensor, {k.name: k.name for k in tensor.schema.keys}, position(call))


def _check_parts(parts: Sequence[int], keys: Sequence[str]) -> None:
    if parts and len(parts) != len(keys):
        raise ProgrammingError(
            f"TILES needs a number of parts for each of {plural(len(keys), 'key')}, "
            f"not {len(parts)}",
            hint=f"Give one for each of {', '.join(keys)}; 1 leaves a key whole."
            if keys
            else "There is nothing to cut.",
        )


def _tensor(query: Binder, source: Relation) -> Input:
    """The input of a Scan: a dense stored tensor, or the computed result of another relation."""
    schema = source.node.schema
    values = [c for c in source.columns if c.field is not None]
    if source.hidden:
        raise ProgrammingError(
            f"TILES needs every key, but {', '.join(source.hidden)} is not selected",
            hint="Select it, or aggregate it away.",
        )
    if len(values) != 1:
        raise ProgrammingError(
            f"TILES cuts one value column, but there are {len(values)}",
            hint="Select one in a subquery: TILES((SELECT …), …).",
        )
    bounds = {k.name: k for k in schema.keys}
    keys = [replace(bounds[c.key], name=c.name) for c in source.columns if c.key is not None]
    for k in keys:
        if k.lo != 0:
            raise ProgrammingError(
                f"TILES needs keys that start at 0, but {k.name} starts at {k.lo}",
                hint=f"Shift it in a subquery: {k.name} {'-' if k.lo > 0 else '+'} {abs(k.lo)}.",
            )
    in_order = [c.key for c in source.columns if c.key is not None] == list(bounds)
    if isinstance(source.node, Input) and in_order and len(schema.fields) == 1:
        return source.node
    return query.catalog.part(source, Schema(tuple(keys), (Field(VALUE, values[0].dtype),)))


# ---- TILE and ELEMENTS


def _tile(source: TileRelation, numbers: list[int]) -> TileRelation:
    if len(numbers) != 2:
        raise ProgrammingError("TILE takes tiles, the number of a dimension, and a size")
    node = ra.Tile(source.node, *numbers)
    names = deduplicated([*(c.name for c in source.columns), PART])
    columns = [TileColumn(name, c.key) for name, c in zip(names, source.columns, strict=False)]
    at = next(n for n, c in enumerate(columns) if c.key is None)
    columns.insert(at, TileColumn(names[-1], len(node.schema.bounds) - 1))
    return TileRelation(node, tuple(columns))


def _elements(query: Binder, source: TileRelation, numbers: list[int]) -> Relation:
    if numbers:
        raise ProgrammingError("ELEMENTS takes tiles alone")
    if is_free(source):
        return merged_back(source)
    cuts = assembled(source.node.schema, "ELEMENTS")
    extents = [sum(sizes(c)) for c in cuts]
    names = deduplicated([*source.keys, VALUE])
    keys = tuple(Key(name, 0, n) for name, n in zip(names, extents, strict=False))
    dtype = source.node.schema.dtype
    node = query.catalog.part(source, Schema(keys, (Field(VALUE, dtype),)))
    columns = [Column(k.name, DType.BIGINT, key=k.name) for k in keys]
    return Relation(node, (*columns, Column(names[-1], dtype, field=VALUE)))
