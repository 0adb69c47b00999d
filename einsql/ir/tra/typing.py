"""Result types of the operations of the tensor-relational algebra.

The functions enforce the algebra's integrity (TRA §2.2). Keys are unique: no two pairs of a
relation may be renamed to the same key. *Continuity* means that no key within the bounds is
missing. Filter and ReKey may leave missing keys; ReKey also tightens the bounds to its keys.
Join, Aggregate and Transform accept missing keys. Stack, Repartition and the conversion to
one array require continuity.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from einsql.core.mappings import grouped
from einsql.core.schema import DType, Field, Schema
from einsql.errors import IntegrityError, NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import EinSum, Expr
from einsql.ir.tra.block_schema import (
    BlockSchema,
    Cuts,
    Dim,
    KeyTuple,
    dim_over,
    matches,
    over_keys,
    shown,
    sizes,
)
from einsql.ir.tra.kernels import AGGREGATES, VALUE, check_reduction

GREATEST_BOUND = 1 << 20
"""The maximum of values of a key dimension; no plan needs more blocks."""


def scan_schema(tensor: Schema, cuts: Cuts) -> BlockSchema:
    """The blocks of a stored tensor; key i cuts axis i.

    Raises:
        NotSupportedError: The tensor does not have exactly one field, a value.
        ProgrammingError: A cut does not run from 0 to its axis's extent.
    """
    if len(tensor.fields) != 1 or len(tensor.values) != 1:
        raise NotSupportedError("Scan takes dense tensors with one value column")
    return _cut("Scan", tensor.shape, cuts, tensor.fields)


def repartition_schema(source: BlockSchema, cuts: Cuts) -> BlockSchema:
    """Π: the same tensor in other blocks.

    Raises:
        IntegrityError: Keys are missing.
        ProgrammingError: The keys do not cut the axes, or the cuts do not fit.
    """
    extents = [c[-1] for c in assembled(source, "Repartition")]
    return _cut("Repartition", extents, cuts, source.fields)


def _cut(what: str, extents: Sequence[int], cuts: Cuts, fields: tuple[Field, ...]) -> BlockSchema:
    if len(cuts) != len(extents):
        raise ProgrammingError(
            f"{what} is given {len(cuts)} cuts for an array of rank {len(extents)}",
            hint="Give each axis one cut, such as 1 for an axis in one block.",
        )
    for n, (extent, cut) in enumerate(zip(extents, cuts, strict=True)):
        blocks = sizes(cut)
        if not blocks or cut[0] != 0 or cut[-1] != extent or any(b < 0 for b in blocks):
            raise ProgrammingError(
                f"{what} cannot cut axis {n} at {shown(cut)}: a cut ascends from 0 to {extent}"
            )
        if len(blocks) > 1 and min(blocks) < 1:
            raise ProgrammingError(
                f"{what} cuts axis {n} of {extent} elements into {len(blocks)} parts, "
                "which leaves a block empty",
                hint=f"Cut it into at most {max(1, extent)} parts.",
            )
    dims = tuple(Dim(sizes(c), n) for n, c in enumerate(cuts))
    return BlockSchema(tuple(len(c) - 1 for c in cuts), dims, fields)


def assembled(source: BlockSchema, what: str) -> Cuts:
    """The cuts of a relation that represents one tensor; key i cuts axis i.

    Raises:
        IntegrityError: Keys are missing.
        ProgrammingError: The keys do not cut the axes.
    """
    keys, rank = len(source.bounds), len(source.dims)
    if keys != rank:
        raise ProgrammingError(
            f"{what} needs key i to cut axis i, but there are {keys} key dimensions "
            f"for arrays of rank {rank}",
            hint="Stack or aggregate surplus keys, or add a key that is always 0.",
        )
    continuous(source, what)
    for n, d in enumerate(source.dims):
        if d.key not in (None, n):
            raise ProgrammingError(
                f"{what} needs key {n} to cut axis {n}, but its extent follows key {d.key}",
                hint="Put the keys in the order of the axes that they cut.",
            )
    return tuple(
        tuple(np.cumsum([0, *_extents(d, b)]).tolist())
        for d, b in zip(source.dims, source.bounds, strict=True)
    )


def _extents(dim: Dim, bound: int) -> tuple[int, ...]:
    return dim.extents * bound if dim.key is None else dim.extents


def continuous(source: BlockSchema, what: str) -> None:
    """Rejects a relation with missing keys.

    Raises:
        IntegrityError: Keys are missing.
    """
    if not source.is_continuous:
        missing = [shown(k) for k in islice(source.holes(), 4)]
        listed = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise IntegrityError(
            f"{what} needs every key within the bounds {shown(source.bounds)}, "
            f"but {listed} is missing",
            hint="Number the keys that are left without gaps, from 0.",
        )


def join_schema(
    sources: Sequence[BlockSchema],
    keys: Sequence[tuple[int, ...]],
    kernel: EinSum,
    only: frozenset[KeyTuple] | None = None,
) -> BlockSchema:
    """⋈: one pair for each match; the kernel computes its array.

    Args:
        sources: The operands.
        keys: For each key dimension of each operand the result's key dimension.
        kernel: The kernel over the arrays of a match.
        only: The selected matches; None for all.

    Raises:
        ProgrammingError: Joined keys differ in their bounds, or the kernel does not fit.
    """
    bounds = join_bounds(sources, keys)
    existing = only
    if existing is None and not all(s.is_continuous for s in sources):
        existing = frozenset(key for key, _ in matches([s.each_key() for s in sources], keys))
    operand_dims = [
        [d if d.key is None else Dim(d.extents, places[d.key]) for d in source.dims]
        for source, places in zip(sources, keys, strict=True)
    ]
    joined = BlockSchema(bounds, (), (), existing)
    return _applied("Join", joined, operand_dims, [s.dtype for s in sources], kernel)


def join_bounds(sources: Sequence[BlockSchema], keys: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The number of values of each key of a join's matches.

    Raises:
        ProgrammingError: Joined keys differ in their bounds, or are numbered out of order.
    """
    bounds: list[int] = []
    for n, (source, places) in enumerate(zip(sources, keys, strict=True)):
        if len(places) != len(source.bounds):
            raise ProgrammingError(
                f"Join numbers {len(places)} keys of operand {n}, which has {len(source.bounds)}"
            )
        _distinct("Join", places)
        for m, (place, bound) in enumerate(zip(places, source.bounds, strict=True)):
            if place == len(bounds):
                bounds.append(bound)
            elif not 0 <= place < len(bounds):
                raise ProgrammingError(f"Join numbers its keys {shown(places)} out of order")
            elif bounds[place] != bound:
                raise ProgrammingError(
                    f"Join needs equal bounds: key {m} of operand {n} takes {bound} values, "
                    f"the keys it joins take {bounds[place]}",
                    hint="Repartition one operand so that both are cut into as many parts.",
                )
    return tuple(bounds)


def transform_schema(source: BlockSchema, kernel: EinSum) -> BlockSchema:
    """λ: applies a kernel to every array.

    Raises:
        ProgrammingError: The kernel does not fit.
    """
    return _applied("Transform", source, [source.dims], [source.dtype], kernel)


def _applied(
    what: str,
    keys: BlockSchema,
    operands: Sequence[Sequence[Dim]],
    dtypes: Sequence[DType],
    kernel: EinSum,
) -> BlockSchema:
    """The result type of a kernel; `operands` has the arrays' axes over the result's keys."""
    if len(kernel.operands) != len(operands):
        raise ProgrammingError(
            f"{what} gives its kernel {len(operands)} arrays, it takes {len(kernel.operands)}"
        )
    label_dims: dict[str, Dim] = {}
    for n, (operand, dims, dtype) in enumerate(zip(kernel.operands, operands, dtypes, strict=True)):
        if len(operand.labels) != len(dims) or operand.source.schema.dtype(VALUE) is not dtype:
            raise ProgrammingError(
                f"{what}'s kernel takes {operand.source.schema.dtype(VALUE).value} arrays of "
                f"rank {len(operand.labels)} as operand {n}, not {dtype.value} of rank {len(dims)}"
            )
        for label, dim in zip(operand.labels, dims, strict=True):
            known = label_dims.setdefault(label, dim)
            if known != dim:
                _same_extents(what, label, known, dim, keys)
    dims = tuple(
        label_dims[k] if k in label_dims else Dim((kernel.axis(k).extent,)) for k in kernel.keys
    )
    return BlockSchema(keys.bounds, dims, kernel.schema.fields, keys.existing)


def _same_extents(what: str, label: str, a: Dim, b: Dim, schema: BlockSchema) -> None:
    for key in schema.each_key():
        if a.at(key) != b.at(key):
            raise ProgrammingError(
                f"{what}'s kernel reads axes of {a.at(key)} and {b.at(key)} elements as '{label}' "
                f"under the key {shown(key)}",
                hint="Repartition so that both have the same cuts.",
            )


def aggregate_schema(source: BlockSchema, group_by: tuple[int, ...], reduce: str) -> BlockSchema:
    """Σ: merges the arrays with equal grouping keys.

    Raises:
        ProgrammingError: A key number or the reduction is invalid, or a group has arrays of
            different shapes.
    """
    for g in group_by:
        _position("Aggregate", g, len(source.bounds), "key dimension")
    _distinct("Aggregate", group_by)
    if reduce not in AGGREGATES.values():
        raise ProgrammingError(f"Aggregate cannot merge arrays by {reduce}")
    check_reduction(reduce, source.dtype, "Aggregate")
    bounds = tuple(source.bounds[g] for g in group_by)
    kept = (None, *group_by)
    if source.is_continuous and all(d.key in kept for d in source.dims):
        dims = tuple(
            d if d.key is None else Dim(d.extents, group_by.index(d.key)) for d in source.dims
        )
        return BlockSchema(bounds, dims, source.fields)
    keys = source.key_array()[:, list(group_by)]
    return _regrouped("Aggregate", source, keys, bounds)


def rekey_schema(source: BlockSchema, keys: tuple[Expr, ...]) -> BlockSchema:
    """ReKey: recomputes every key; the bounds are those of the new keys.

    Raises:
        IntegrityError: Two new keys are equal, or a key is negative or too large.
        ProgrammingError: A key function is not an integer, or a block's extent would depend on
            two keys.
    """
    for expr in keys:
        if not expr.dtype.is_integer:
            raise ProgrammingError(f"ReKey needs integers, not {expr.dtype.value}")
    old, new = source.key_array(), renamed(source, keys)
    wrong = np.nonzero(((new < 0) | (new >= GREATEST_BOUND)).any(axis=1))[0]
    if len(wrong):
        at = int(wrong[0])
        raise IntegrityError(
            f"ReKey turns the key {shown(old[at])} into {shown(new[at])}; "
            f"keys run from 0 to {GREATEST_BOUND - 1}",
            hint="Add a constant to the key, or number keys more densely.",
        )
    seen: dict[KeyTuple, KeyTuple] = {}
    for before, after in zip(map(tuple, old.tolist()), map(tuple, new.tolist()), strict=True):
        if after in seen:
            raise IntegrityError(
                f"ReKey turns the keys {shown(seen[after])} and {shown(before)} both into "
                f"{shown(after)}",
                hint="Filter one of them out, aggregate, or keep a key that tells them apart.",
            )
        seen[after] = before
    bounds = tuple((new.max(axis=0) + 1).tolist()) if len(new) else (0,) * len(keys)
    return _regrouped("ReKey", source, new, bounds)


def renamed(source: BlockSchema, keys: tuple[Expr, ...]) -> np.ndarray:
    """The new key of each pair, in the order of the old keys.

    Returns:
        int64 of shape (pairs, new key dimensions).
    """
    old = source.key_array()
    columns = [over_keys(k, old).astype(np.int64) for k in keys]
    return np.stack(columns, axis=1) if columns else np.zeros((len(old), 0), np.int64)


def filter_schema(source: BlockSchema, condition: Expr) -> BlockSchema:
    """σ: the pairs whose keys satisfy a condition; the bounds do not change.

    Raises:
        ProgrammingError: The condition is not a BOOLEAN.
    """
    if condition.dtype is not DType.BOOLEAN:
        raise ProgrammingError(
            f"Filter needs a condition, not {condition.dtype.value}", hint="Compare keys."
        )
    keys = source.key_array()
    kept = map(tuple, keys[over_keys(condition, keys)].tolist())
    return BlockSchema(source.bounds, source.dims, source.fields, frozenset(kept))


def tile_schema(source: BlockSchema, dim: int, size: int) -> BlockSchema:
    """Tile: cuts every array along an axis; the number of the tile becomes the last key.

    Raises:
        ProgrammingError: There is no such axis, the size is invalid, or a tile's extent
            would depend on two keys.
    """
    _position("Tile", dim, len(source.dims), "array dimension")
    if size < 1:
        raise ProgrammingError(f"Tile needs a size of at least 1, not {size}")
    keys: list[KeyTuple] = []
    extents: list[int] = []
    for key in source.each_key():
        extent = source.dims[dim].at(key)
        for n in range(tiles_of(extent, size)):
            keys.append((*key, n))
            extents.append(min(size, extent - n * size))
    bounds = (*source.bounds, max((k[-1] + 1 for k in keys), default=0))
    new = np.array(keys, np.int64).reshape(len(keys), len(bounds))
    cut = _dim("Tile", dim, new, np.array(extents, np.int64), bounds)
    dims = tuple(cut if n == dim else d for n, d in enumerate(source.dims))
    return BlockSchema(bounds, dims, source.fields, frozenset(keys))


def tiles_of(extent: int, size: int) -> int:
    """The number of tiles of an axis; an empty axis is one tile."""
    return max(1, -(-extent // size))


def stack_schema(source: BlockSchema, key: int, dim: int) -> BlockSchema:
    """Stack: concatenates arrays that differ in one key along an axis; the inverse of Tile.

    Raises:
        IntegrityError: A key is missing between the arrays of a group.
        ProgrammingError: There is no such key or axis, or stacked arrays differ in
            another axis.
    """
    _position("Stack", key, len(source.bounds), "key dimension")
    _position("Stack", dim, len(source.dims), "array dimension")
    groups = grouped((without(k, key), k) for k in source.each_key())
    bounds = without(source.bounds, key)
    new = np.array(list(groups), np.int64).reshape(len(groups), len(bounds))
    extents: list[list[int]] = [[] for _ in source.dims]
    for members in groups.values():
        for n, k in enumerate(members):
            if k[key] != n:
                raise IntegrityError(
                    f"Stack needs every key, but {shown((*k[:key], n, *k[key + 1 :]))} is missing",
                    hint="Number the keys that are left without gaps, from 0.",
                )
        for n, d in enumerate(source.dims):
            sizes = [d.at(k) for k in members]
            if n != dim and len(set(sizes)) > 1:
                raise ProgrammingError(
                    f"Stack along array dimension {dim} meets arrays of {sizes[0]} and "
                    f"{next(f for f in sizes if f != sizes[0])} elements in dimension {n}",
                    hint=f"The key that cuts array dimension {n} can be stacked along it alone.",
                )
            extents[n].append(sum(sizes) if n == dim else sizes[0])
    dims = tuple(
        _dim("Stack", n, new, np.array(e, np.int64), bounds) for n, e in enumerate(extents)
    )
    return BlockSchema(bounds, dims, source.fields, frozenset(groups))


def without(key: KeyTuple, n: int) -> KeyTuple:
    """The key without one dimension."""
    return (*key[:n], *key[n + 1 :])


def _regrouped(
    what: str, source: BlockSchema, new: np.ndarray, bounds: tuple[int, ...]
) -> BlockSchema:
    """The relation under new keys, one per old key; equal new keys form a group."""
    old = list(source.each_key())
    dims = tuple(
        _dim(what, n, new, np.array([d.at(k) for k in old], np.int64), bounds)
        for n, d in enumerate(source.dims)
    )
    return BlockSchema(bounds, dims, source.fields, frozenset(map(tuple, new.tolist())))


def _dim(
    what: str, number: int, keys: np.ndarray, extents: np.ndarray, bounds: Sequence[int]
) -> Dim:
    dim = dim_over(keys, extents, bounds)
    if dim is None:
        few, many = extents.min(), extents.max()
        raise ProgrammingError(
            f"{what} would lose the key that array dimension {number} is cut by: "
            f"its blocks have {few} to {many} elements",
            hint="Keep that key as it is, stack it, or repartition into equal blocks first.",
        )
    return dim


def _distinct(what: str, keys: Sequence[int]) -> None:
    if len(set(keys)) < len(keys):
        raise ProgrammingError(f"{what} names a key twice: {shown(keys)}")


def _position(what: str, given: int, count: int, kind: str) -> None:
    if not 0 <= given < count:
        known = f"0 to {count - 1}" if count else "none"
        raise ProgrammingError(
            f"{what} is given {kind} {given}, there is {known}",
            hint="Dimensions are numbered from 0.",
        )
