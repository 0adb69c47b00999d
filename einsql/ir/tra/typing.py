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
from math import prod

import numpy as np

from einsql.core.boxes import volumes
from einsql.core.schema import DType, Field, Schema
from einsql.core.tables import Table
from einsql.core.units import plural
from einsql.errors import IntegrityError, ProgrammingError
from einsql.ir.einsum.graph import Expr
from einsql.ir.einsum.partial_states import state_fields
from einsql.ir.remembered import remembered
from einsql.ir.tra.block_schema import (
    BlockSchema,
    Cuts,
    Dim,
    Dims,
    codes,
    cut_dims,
    dim_bounds,
    dim_over,
    key_set,
    over_keys,
    shown,
    sizes,
)
from einsql.ir.tra.kernels import AGGREGATES, Merge, check_reduction, reductions

GREATEST_BOUND = 1 << 20
"""The maximum of values of a key dimension; no plan needs more blocks."""


@remembered
def scan_schema(tensor: Schema, cuts: Cuts | Dims) -> BlockSchema:
    """The blocks of a stored tensor, with a record of all its fields.

    Raises:
        ProgrammingError: A cut does not run from 0 to its axis's extent, or an interval is
            outside its axis.
    """
    return _cut("Scan", tensor.shape, cuts, tensor.fields)


@remembered
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
    if by_axis(cuts) is None:
        extents = tensor_extents(source, "Repartition")
    else:
        extents = [c[-1] for c in assembled(source, "Repartition")]
    return _cut("Repartition", extents, cuts, source.fields)


def by_axis(cuts: Cuts | Dims) -> Cuts | None:
    """The cuts if key i cuts axis i; None for axes in intervals."""
    plain = tuple(c for c in cuts if not isinstance(c, Dim))
    return plain if len(plain) == len(cuts) else None


def cut_bounds(cuts: Cuts | Dims) -> tuple[int, ...]:
    """The number of values of each key dimension of a tensor in blocks."""
    plain = by_axis(cuts)
    if plain is not None:
        return tuple(len(c) - 1 for c in plain)
    return dim_bounds(tuple(c for c in cuts if isinstance(c, Dim)))


def _cut(
    what: str, extents: Sequence[int], cuts: Cuts | Dims, fields: tuple[Field, ...]
) -> BlockSchema:
    if len(cuts) != len(extents):
        raise ProgrammingError(
            f"{what} is given {plural(len(cuts), 'cut')} for an array of rank {len(extents)}",
            hint="Give each axis one cut, such as 1 for an axis in one block.",
        )
    plain = by_axis(cuts)
    if plain is not None:
        for n, (extent, cut) in enumerate(zip(extents, plain, strict=True)):
            check_cut(what, f"axis {n}", plural(extent, "element"), extent, cut)
        return BlockSchema(cut_bounds(cuts), cut_dims(plain), fields)
    dims = tuple(c for c in cuts if isinstance(c, Dim))
    for n, (extent, dim) in enumerate(zip(extents, dims, strict=True)):
        if not dim.within(extent):
            raise ProgrammingError(f"{what} needs intervals within 0 to {extent} of axis {n}")
    return BlockSchema(cut_bounds(cuts), dims, fields)


def check_bounds(what: str, axis: str, extent: int, cut: Sequence[int]) -> None:
    """Rejects boundaries that do not cut an axis; blocks may be empty.

    Raises:
        ProgrammingError: The boundaries descend, or do not run from 0 to the extent.
    """
    blocks = sizes(cut)
    if not blocks or cut[0] != 0 or cut[-1] != extent or any(b < 0 for b in blocks):
        raise ProgrammingError(
            f"{what} cannot cut {axis} at {shown(cut)}: a cut ascends from 0 to {extent}"
        )


def check_cut(what: str, axis: str, elements: str, extent: int, cut: Sequence[int]) -> None:
    """Rejects boundaries that do not cut an axis into blocks with elements.

    Raises:
        ProgrammingError: The boundaries do not ascend from 0 to the extent.
    """
    check_bounds(what, axis, extent, cut)
    blocks = sizes(cut)
    if len(blocks) > 1 and min(blocks) < 1:
        raise ProgrammingError(
            f"{what} cuts {axis} of {elements} into {plural(len(blocks), 'part')}, "
            "which leaves a block empty",
            hint=f"Cut it into at most {plural(max(1, extent), 'part')}.",
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


def tensor_extents(source: BlockSchema, what: str) -> list[int]:
    """The extents of the tensor that the arrays of a relation cover by their positions.

    Raises:
        IntegrityError: Keys are missing, or arrays overlap or leave out elements.
        ProgrammingError: The arrays have no positions, or a key dimension cuts no axis.
    """
    continuous(source, what)
    disjoint(source, what)
    if any(d.starts is None for d in source.dims):
        raise ProgrammingError(f"{what} needs arrays with positions in one tensor")
    cutting = {k for d in source.dims for k in d.keys}
    if cutting != {k for k, bound in enumerate(source.bounds) if bound > 1}:
        raise ProgrammingError(f"{what} needs every key dimension to cut an axis")
    if source.shares_keys:
        boxes = source.boxes()
        extents = boxes[:, :, 1].max(axis=0)
        complete = int(volumes(boxes).sum()) == prod(extents.tolist())
    else:
        cuts = [d.cut for d in source.dims]
        complete = None not in cuts
        extents = np.array([c[-1] for c in cuts if c is not None], np.int64)
    if not complete:
        raise IntegrityError(f"{what} needs every element of the tensor, but some are left out")
    return [int(n) for n in extents]


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


@remembered
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
    names = {f.name for f in fields}
    if len(reductions(merge)) != len(fields):
        raise ProgrammingError(
            f"Aggregate has {plural(len(reductions(merge)), 'reduction')} for "
            f"{plural(len(fields), 'field')}"
        )
    for f, reduce in zip(fields, reductions(merge), strict=True):
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
    bounds = tuple((new.max(axis=0) + 1).tolist()) if len(new) else (0,) * len(keys)
    (numbers,) = codes(bounds, new)
    order = np.argsort(numbers, kind="stable")
    equal = np.flatnonzero(numbers[order[1:]] == numbers[order[:-1]])
    if len(equal):
        first, second = old[order[equal[0]]], old[order[equal[0] + 1]]
        raise IntegrityError(
            f"ReKey turns the keys {shown(first)} and {shown(second)} both into "
            f"{shown(new[order[equal[0]]])}",
            hint="Filter one of them out, aggregate, or keep a key that tells them apart.",
        )
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
    kept = Table.of(keys[over_keys(condition, keys)])
    return BlockSchema(source.bounds, source.dims, source.fields, kept)


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
    old = source.key_array()
    extents = source.dims[dim].over(old)
    parts = np.maximum(1, -(-extents // size))
    row = np.repeat(np.arange(len(old)), parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    keys = np.concatenate([old[row], number[:, None]], axis=1)
    bounds = (*source.bounds, int(parts.max(initial=0)))
    cut = _dim("Tile", dim, keys, np.minimum(size, extents[row] - number * size), bounds)
    dims = tuple(cut if n == dim else d.relative for n, d in enumerate(source.dims))
    return BlockSchema(bounds, dims, source.fields, Table.of(keys))


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
    old = source.key_array()
    bounds, others = without(source.bounds, key), np.delete(old, key, axis=1)
    (numbers,) = codes(bounds, others)
    order = np.argsort(numbers, kind="stable")  # the members of a group are in order of the key
    _, first, members = np.unique(numbers, return_index=True, return_counts=True)
    new = others[first]
    begin = np.cumsum(members) - members
    within = np.arange(len(old)) - np.repeat(begin, members)
    holes = np.flatnonzero(old[order, key] != within)
    if len(holes):
        at, group = int(within[holes[0]]), others[order[holes[0]]].tolist()
        raise IntegrityError(
            f"Stack needs every key, but {shown((*group[:key], at, *group[key:]))} is missing",
            hint="Number the keys that are left without gaps, from 0.",
        )
    dims = []
    for n, d in enumerate(source.dims):
        each = d.over(old)[order]
        heads = each[begin]
        wrong = np.flatnonzero(each != np.repeat(heads, members))
        if n == dim:
            heads = np.add.reduceat(each, begin) if len(begin) else each
        elif len(wrong):
            raise ProgrammingError(
                f"Stack along array dimension {dim} meets arrays of "
                f"{np.repeat(heads, members)[wrong[0]]} and "
                f"{plural(each[wrong[0]], 'element')} in dimension {n}",
                hint=f"The key that cuts array dimension {n} can be stacked along it alone.",
            )
        dims.append(_dim("Stack", n, new, heads, bounds))
    return BlockSchema(bounds, tuple(dims), source.fields, Table.of(new))


def without(key: tuple[int, ...], n: int) -> tuple[int, ...]:
    """The key without one dimension."""
    return (*key[:n], *key[n + 1 :])


def _regrouped(
    what: str, source: BlockSchema, new: np.ndarray, bounds: tuple[int, ...]
) -> BlockSchema:
    """The relation under new keys, one per old key; equal new keys form a group."""
    old = source.key_array()
    dims = tuple(_dim(what, n, new, d.over(old), bounds) for n, d in enumerate(source.dims))
    return BlockSchema(bounds, dims, source.fields, key_set(new, bounds))


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
