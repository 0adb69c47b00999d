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
from einsql.errors import IntegrityError, ProgrammingError
from einsql.ir.einsum.graph import Expr
from einsql.ir.einsum.partial_states import state_fields
from einsql.ir.tra.block_schema import (
    BlockSchema,
    Cuts,
    Dim,
    Dims,
    KeyTuple,
    cut_dims,
    dim_bounds,
    dim_over,
    over_keys,
    shown,
    sizes,
)
from einsql.ir.tra.kernels import AGGREGATES, Merge, check_reduction

GREATEST_BOUND = 1 << 20
"""The maximum of values of a key dimension; no plan needs more blocks."""


def scan_schema(tensor: Schema, cuts: Cuts | Dims) -> BlockSchema:
    """The blocks of a stored tensor, with a record of all its fields.

    Raises:
        ProgrammingError: A cut does not run from 0 to its axis's extent, or an interval is
            outside its axis.
    """
    return _cut("Scan", tensor.shape, cuts, tensor.fields)


def repartition_schema(source: BlockSchema, cuts: Cuts | Dims) -> BlockSchema:
    """Π: the same tensor in other blocks.

    Args:
        source: The relation.
        cuts: The cut of each axis, key i cuts axis i before and after; or the axes in
            intervals, which may overlap or leave out parts of the tensor.

    Raises:
        IntegrityError: Keys are missing, or the source leaves out parts or overlaps.
        ProgrammingError: The keys do not cut the axes, or the cuts do not fit.
    """
    old = (tensor_cuts if by_axis(cuts) is None else assembled)(source, "Repartition")
    return _cut("Repartition", [c[-1] for c in old], cuts, source.fields)


def by_axis(cuts: Cuts | Dims) -> Cuts | None:
    """The cuts if key i cuts axis i; None for axes in intervals."""
    plain = tuple(c for c in cuts if not isinstance(c, Dim))
    return plain if len(plain) == len(cuts) else None


def _cut(
    what: str, extents: Sequence[int], cuts: Cuts | Dims, fields: tuple[Field, ...]
) -> BlockSchema:
    if len(cuts) != len(extents):
        raise ProgrammingError(
            f"{what} is given {len(cuts)} cuts for an array of rank {len(extents)}",
            hint="Give each axis one cut, such as 1 for an axis in one block.",
        )
    plain = by_axis(cuts)
    if plain is not None:
        for n, (extent, cut) in enumerate(zip(extents, plain, strict=True)):
            check_cut(what, f"axis {n}", f"{extent} elements", extent, cut)
        return BlockSchema(tuple(len(c) - 1 for c in plain), cut_dims(plain), fields)
    dims = tuple(c for c in cuts if isinstance(c, Dim))
    for n, (extent, dim) in enumerate(zip(extents, dims, strict=True)):
        if not dim.within(extent):
            raise ProgrammingError(f"{what} needs intervals within 0 to {extent} of axis {n}")
    return BlockSchema(dim_bounds(dims), dims, fields)


def check_cut(what: str, axis: str, elements: str, extent: int, cut: Sequence[int]) -> None:
    """Rejects boundaries that do not cut an axis into blocks with elements.

    Raises:
        ProgrammingError: The boundaries do not ascend from 0 to the extent.
    """
    blocks = sizes(cut)
    if not blocks or cut[0] != 0 or cut[-1] != extent or any(b < 0 for b in blocks):
        raise ProgrammingError(
            f"{what} cannot cut {axis} at {shown(cut)}: a cut ascends from 0 to {extent}"
        )
    if len(blocks) > 1 and min(blocks) < 1:
        raise ProgrammingError(
            f"{what} cuts {axis} of {elements} into {len(blocks)} parts, "
            "which leaves a block empty",
            hint=f"Cut it into at most {max(1, extent)} parts.",
        )


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
    disjoint(source, what)
    cuts: list[tuple[int, ...]] = []
    for n, (d, bound) in enumerate(zip(source.dims, source.bounds, strict=True)):
        extents = d.relative
        if extents.keys not in ((), (n,)):
            raise ProgrammingError(
                f"{what} needs key {n} to cut axis {n}, "
                f"but its extent follows key {next(k for k in extents.keys if k != n)}",
                hint="Put the keys in the order of the axes that they cut.",
            )
        blocks = extents.extents if extents.keys else extents.extents * bound
        cuts.append(tuple(np.cumsum([0, *blocks]).tolist()))
    return tuple(cuts)


def tensor_cuts(source: BlockSchema, what: str) -> Cuts:
    """The cuts of a relation whose arrays have positions that cover one tensor.

    An axis is cut by one key dimension or by none; every key dimension cuts one axis.

    Raises:
        IntegrityError: Keys are missing, or intervals overlap or leave out parts.
        ProgrammingError: The arrays have no positions, or the keys do not cut the axes.
    """
    continuous(source, what)
    disjoint(source, what)
    cuts = [d.cut for d in source.dims]
    if any(d.starts is None for d in source.dims):
        raise ProgrammingError(f"{what} needs arrays with positions in one tensor")
    whole = [c for c in cuts if c is not None]
    if len(whole) < len(cuts):
        raise IntegrityError(f"{what} needs every element of the tensor, but some are left out")
    if sorted(k for d in source.dims for k in d.keys) != [
        k for k, bound in enumerate(source.bounds) if bound > 1
    ]:
        raise ProgrammingError(f"{what} needs every key dimension to cut one axis")
    return tuple(whole)


def disjoint(source: BlockSchema, what: str) -> None:
    """Rejects a relation whose arrays overlap; only a join with a domain reads it.

    Raises:
        IntegrityError: Arrays overlap.
    """
    if source.overlaps:
        raise IntegrityError(
            f"{what} needs disjoint arrays, but they overlap as those of a window do",
            hint="The join that reads through the window takes them.",
        )


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


def aggregate_schema(source: BlockSchema, group_by: tuple[int, ...], merge: Merge) -> BlockSchema:
    """Σ: merges the records with equal grouping keys.

    Raises:
        IntegrityError: Arrays overlap.
        ProgrammingError: A key number or a reduction is invalid, or a group has arrays of
            different shapes.
    """
    for g in group_by:
        _position("Aggregate", g, len(source.bounds), "key dimension")
    distinct("Aggregate", group_by)
    _check_merge(source.fields, merge)
    disjoint(source, "Aggregate")
    bounds = tuple(source.bounds[g] for g in group_by)
    axes = [d if set(d.keys) <= set(group_by) else d.relative for d in source.dims]
    if source.is_continuous and all(set(d.keys) <= set(group_by) for d in axes):
        to = {g: n for n, g in enumerate(group_by)}
        dims = tuple(d.renumbered([to.get(k, 0) for k in range(len(source.bounds))]) for d in axes)
        return BlockSchema(bounds, dims, source.fields)
    keys = source.key_array()[:, list(group_by)]
    return _regrouped("Aggregate", source, keys, bounds)


def _check_merge(fields: tuple[Field, ...], merge: Merge) -> None:
    if len(merge) != len(fields):
        raise ProgrammingError(f"Aggregate has {len(merge)} reductions for {len(fields)} fields")
    names = {f.name for f in fields}
    for f, reduce in zip(fields, merge, strict=True):
        state = state_fields(f.name, reduce)
        if len(state) == 1 and reduce in AGGREGATES.values():
            check_reduction(reduce, f.dtype, "Aggregate")
        elif len(state) == 1 or not names.issuperset(state):
            raise ProgrammingError(f"Aggregate cannot merge arrays by {reduce}")


def rekey_schema(source: BlockSchema, keys: tuple[Expr, ...]) -> BlockSchema:
    """ReKey: recomputes every key; the bounds are those of the new keys.

    Raises:
        IntegrityError: Two new keys are equal, or a key is negative or too large.
        ProgrammingError: A key function is not an integer, or a block's extent would depend on
            two keys.
    """
    disjoint(source, "ReKey")
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
    disjoint(source, "Filter")
    keys = source.key_array()
    kept = map(tuple, keys[over_keys(condition, keys)].tolist())
    return BlockSchema(source.bounds, source.dims, source.fields, frozenset(kept))


def tile_schema(source: BlockSchema, dim: int, size: int) -> BlockSchema:
    """Tile: cuts every array along an axis; the number of the tile becomes the last key.

    Raises:
        ProgrammingError: There is no such axis, the size is invalid, or a tile's extent
            would depend on two keys.
    """
    disjoint(source, "Tile")
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
    dims = tuple(cut if n == dim else d.relative for n, d in enumerate(source.dims))
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
    disjoint(source, "Stack")
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


def distinct(what: str, keys: Sequence[int]) -> None:
    """Rejects a repeated key.

    Raises:
        ProgrammingError: A key occurs twice.
    """
    if len(set(keys)) < len(keys):
        raise ProgrammingError(f"{what} names a key twice: {shown(keys)}")


def _position(what: str, given: int, count: int, kind: str) -> None:
    if not 0 <= given < count:
        known = f"0 to {count - 1}" if count else "none"
        raise ProgrammingError(
            f"{what} is given {kind} {given}, there is {known}",
            hint="Dimensions are numbered from 0.",
        )
