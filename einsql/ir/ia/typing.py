"""Result types of the operations of the implementation algebra: laws from laws.

Each function computes the layout of a result from the layouts of the operands. It reads the keys
only where a law of one key is lost. The functions reject local operations that would compute
wrong results on the arrays of their sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.records import dataclass
from einsql.core.tables import Table
from einsql.errors import IntegrityError
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Label
from einsql.ir.einsum.graph_rewriting import relabel
from einsql.ir.ia.kernel_laws import distributes
from einsql.ir.ia.physical_schema import Parts, PhysicalSchema
from einsql.ir.ia.placement import everywhere, recognized
from einsql.ir.layout import Entry, Layout, Partial, Replicate, Scattered, Shard, Single
from einsql.ir.remembered import remembered
from einsql.ir.tra import kernel_typing
from einsql.ir.tra import typing as tra_typing
from einsql.ir.tra.block_schema import BlockSchema, Cuts, Dim, Dims, codes, over_keys, shown
from einsql.ir.tra.kernels import Merge, reductions

Law = Entry | np.ndarray
"""The entry of a mesh axis, or int64 (keys,), the coordinates of keys without a law."""


@remembered
def stored(blocks: BlockSchema, layout: Layout, sites: int) -> PhysicalSchema:
    """The type of a stored tensor."""
    return PhysicalSchema(blocks, layout, sites)


# ---- repartition


@remembered
def moved(source: PhysicalSchema, layout: Layout) -> PhysicalSchema:
    """BCAST and SHUF: the same arrays at other sites, with parts unmerged."""
    return PhysicalSchema(source.blocks, layout, source.sites, source.parts)


@remembered
def recut(source: PhysicalSchema, cuts: Cuts | Dims, layout: Layout) -> PhysicalSchema:
    """Π with a shuffle: the same tensor in other blocks and at other sites, with parts unmerged.

    Raises:
        IntegrityError: Keys are missing, or some keys lack parts.
        ProgrammingError: The keys do not cut the axes, or the cuts do not fit.
    """
    if source.parts is not None and source.parts.present is not None:
        merged(source, "Repartition")
    blocks = tra_typing.repartition_schema(source.blocks, cuts)
    return PhysicalSchema(blocks, layout, source.sites, source.parts)


@remembered
def whole(source: PhysicalSchema) -> PhysicalSchema:
    """One array of all blocks of a relation at every site.

    Raises:
        IntegrityError: The relation has parts.
    """
    merged(source, "A routed relation")
    blocks = source.blocks
    dims = []
    for axis in range(len(blocks.dims)):
        at = blocks.boxes()[:, axis]
        lo = int(at[:, 0].min())
        dims.append(Dim((int(at[:, 1].max()) - lo,), starts=(lo,)))
    return PhysicalSchema(
        BlockSchema((), tuple(dims), blocks.fields), everywhere(source.sites), source.sites
    )


# ---- local operations on one relation


@dataclass(frozen=True, slots=True)
class Tiled:
    """A local map emits each array in tiles of `size` along `dim`; the last may be smaller."""

    dim: int
    size: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A local map emits each array `count` times."""

    count: int


Emit = Tiled | Duplicate


@remembered
def filtered(source: PhysicalSchema, condition: Expr) -> PhysicalSchema:
    """σᴸ: the pairs whose keys satisfy a condition, by the same law.

    Raises:
        ProgrammingError: The condition is not a BOOLEAN.
    """
    blocks = tra_typing.filter_schema(source.blocks, condition)
    if blocks.count == source.blocks.count:
        return replace(source, blocks=blocks)

    def kept() -> np.ndarray:
        return np.flatnonzero(over_keys(condition, source.blocks.key_array()))

    return _selected(source, source.layout.placed, blocks, kept)


def _selected(
    source: PhysicalSchema,
    placed: Sequence[Entry],
    blocks: BlockSchema,
    rows: Callable[[], np.ndarray],
) -> PhysicalSchema:
    """The type after a selection or renumbering of keys.

    Args:
        source: The relation.
        placed: The laws over the new keys. Those of Scattered are still over the old keys.
        blocks: The result without sites.
        rows: Returns the position of each new key among the old keys, int64 (new keys,).
    """
    parts = source.parts
    lost = any(isinstance(e, Scattered) for e in placed)
    if lost or (parts is not None and parts.present is not None):
        row = rows()
        laws = [e.table.array[row] if isinstance(e, Scattered) else e for e in placed]
        layout = recognized(source.layout.mesh, laws, blocks.key_array)
        parts = None if parts is None else parts.rows(row, source.blocks.count)
        return PhysicalSchema(blocks, layout, source.sites, parts)
    return PhysicalSchema(blocks, Layout(source.layout.mesh, tuple(placed)), source.sites, parts)


@remembered
def mapped(
    source: PhysicalSchema,
    emit: Emit | None,
    keys: tuple[Expr, ...] | None,
    kernels: tuple[EinSum, ...],
) -> PhysicalSchema:
    """λᴸ: emits every array once or more, applies kernels to it, and renames its key.

    Args:
        source: The relation.
        emit: The emission of several pairs per pair; the emission's number is a new last key.
        keys: The new key over the old key and that number; None keeps the keys.
        kernels: The kernels, applied in order.

    Raises:
        IntegrityError: Two new keys are equal, or a kernel that needs merged arrays reads parts.
        ProgrammingError: A kernel does not fit.
    """
    if source.merge is not None and not all(distributes(k, source.merge) for k in kernels):
        raise IntegrityError(f"A local map needs merged arrays, not parts of a {source.merge}")
    blocks = emitted(source.blocks, emit)
    if emit is not None:
        emitting = source.blocks

        def rows() -> np.ndarray:
            own = blocks.key_array()[:, : len(emitting.bounds)]
            old, new = codes(emitting.bounds, emitting.key_array(), own)
            return np.searchsorted(old, new)

        source = _selected(source, source.layout.placed, blocks, rows)
    source = replace(source, blocks=chained(blocks, kernels))
    return source if keys is None else renamed(source, keys)


def emitted(source: BlockSchema, emit: Emit | None) -> BlockSchema:
    """The relation after the emission of a local map, with its additional last key."""
    if emit is None:
        return source
    if isinstance(emit, Tiled):
        return tra_typing.tile_schema(source, emit.dim, emit.size)
    existing = source.existing
    if existing is not None:
        number = np.tile(np.arange(emit.count), len(existing))
        keys = np.repeat(existing.array, emit.count, axis=0)
        existing = Table.of(np.concatenate([keys, number[:, None]], axis=1))
    return replace(source, bounds=(*source.bounds, emit.count), existing=existing)


def chained(blocks: BlockSchema, kernels: Iterable[EinSum]) -> BlockSchema:
    """The relation after a chain of kernels."""
    for kernel in kernels:
        blocks = kernel_typing.transform_schema(blocks, kernel)
    return blocks


def renamed(source: PhysicalSchema, keys: tuple[Expr, ...]) -> PhysicalSchema:
    """The same arrays under new keys; a law of a key that is lost becomes a table.

    Raises:
        IntegrityError: Two new keys are equal, or a key is negative or too large.
        ProgrammingError: A key function is not an integer, or a block's extent would depend on
            two keys.
    """
    blocks = tra_typing.rekey_schema(source.blocks, keys)
    number = {int(e.name[1:]): n for n, e in reversed([*enumerate(keys)]) if isinstance(e, Label)}
    placed: list[Entry] = []
    for axis, entry in enumerate(source.layout.placed):
        if isinstance(entry, Shard):
            n = number.get(entry.axis)
            bound = source.blocks.bounds[entry.axis]
            if n is not None and (entry.cyclic or blocks.bounds[n] == bound):
                entry = replace(entry, axis=n)
            else:
                entry = Scattered(Table.of(source.coordinates(axis)))
        placed.append(entry)

    def rows() -> np.ndarray:
        (new,) = codes(blocks.bounds, tra_typing.renamed(source.blocks, keys))
        return np.argsort(new, kind="stable")

    return _selected(source, placed, blocks, rows)


@remembered
def aggregated(
    source: PhysicalSchema,
    group_by: tuple[int, ...],
    merge: Merge,
    inner: tuple[EinSum, ...],
    finish: tuple[EinSum, ...],
    where: Expr,
) -> PhysicalSchema:
    """Σᴸ: merges the arrays of a group at each site; returns parts if sites share a group.

    Args:
        source: The relation.
        group_by: The result's keys.
        merge: The reduction ⊕ of each field.
        inner: Kernels applied to every array before the merge.
        finish: Kernels applied to every merged array.
        where: A condition on the result's keys; other groups are skipped.

    Raises:
        IntegrityError: Parts have another reduction, or a kernel that needs merged arrays
            reads parts.
        ProgrammingError: Keys, reduction or kernels do not fit.
    """
    if source.merge not in (None, merge):
        raise IntegrityError(f"Parts of a {source.merge} cannot be merged by {merge}")
    before = source if where == TRUE else filtered(source, over_groups(where, group_by))
    blocks = tra_typing.aggregate_schema(chained(before.blocks, inner), group_by, merge)
    layout, parts = _grouped(before, group_by, blocks, merge)
    late = [*(finish if parts else ()), *(inner if source.parts else ())]
    if not all(distributes(k, merge) for k in late):
        raise IntegrityError(f"A kernel of a local aggregation would read parts of a {merge}")
    return PhysicalSchema(chained(blocks, finish), layout, source.sites, parts)


def over_groups(where: Expr, group_by: Sequence[int]) -> Expr:
    """A condition on the keys of groups as a condition on the operand's keys."""
    return relabel(where, {f"k{n}": f"k{g}" for n, g in enumerate(group_by)})


def _grouped(
    source: PhysicalSchema, group_by: Sequence[int], blocks: BlockSchema, merge: Merge
) -> tuple[Layout, Parts | None]:
    """The sites of groups: where members of a group have several coordinates, it has parts."""
    mesh = source.layout.mesh
    laws: list[Law] = []
    spans: list[int] = []
    for n, entry in enumerate(source.layout.placed):
        if isinstance(entry, Shard) and entry.axis in group_by:
            laws.append(replace(entry, axis=list(group_by).index(entry.axis)))
        elif isinstance(entry, Replicate | Single):
            laws.append(entry)
        else:
            laws.append(Partial(", ".join(reductions(merge))))
            spans.append(n)
    if not spans:
        return Layout(mesh, tuple(e for e in laws if not isinstance(e, np.ndarray))), None
    shape = [mesh.shape[n] for n in spans]
    present = _members(source, group_by, blocks, spans, shape)
    partial: list[int] = []
    for i, n in enumerate(spans):
        others = tuple(1 + k for k in range(len(spans)) if k != i)
        along = present.any(axis=others)
        if (along.sum(axis=1) == 1).all():  # each group has one coordinate
            laws[n] = along.argmax(axis=1)
        else:
            partial.append(i)
    layout = recognized(mesh, laws, blocks.key_array)
    if not partial:
        return layout, None
    uncut = tuple(1 + k for k in range(len(spans)) if k not in partial)
    return layout, Parts.of(merge, present.any(axis=uncut).reshape(blocks.count, -1))


def _members(
    source: PhysicalSchema,
    group_by: Sequence[int],
    blocks: BlockSchema,
    spans: Sequence[int],
    shape: Sequence[int],
) -> np.ndarray:
    """The coordinates of members of groups along some mesh axes, bool (groups, *axes)."""
    keys = source.blocks.key_array()
    groups, group = codes(blocks.bounds, blocks.key_array(), keys[:, list(group_by)])
    row = np.searchsorted(groups, group)
    partial = [n for n in spans if isinstance(source.layout.placed[n], Partial)]
    at: dict[int, np.ndarray] = {}
    if partial and source.parts is not None:
        member, slot = np.nonzero(source.parts.mask(len(keys)))
        sizes = [source.layout.mesh.shape[n] for n in partial]
        at = dict(zip(partial, np.unravel_index(slot, sizes), strict=True))
        row = row[member]
    else:
        member = np.arange(len(keys))
    for n in spans:
        if n not in at:
            at[n] = source.coordinates(n)[member]
    present = np.zeros((blocks.count, *shape), np.bool_)
    present[(row, *(at[n] for n in spans))] = True
    return present


@remembered
def stacked(source: PhysicalSchema, key: int, dim: int) -> PhysicalSchema:
    """Stack: concatenates the arrays of groups, which must share a site.

    Raises:
        IntegrityError: A group's arrays share no site, keys are missing, or parts are not
            merged.
        ProgrammingError: There is no such key or axis, or arrays differ in another axis.
    """
    merged(source, "Stack")
    blocks = tra_typing.stack_schema(source.blocks, key, dim)
    kept = [k for k in range(len(source.blocks.bounds)) if k != key]
    layout, parts = _grouped(source, kept, blocks, "sum")
    if parts is not None:
        several = parts.mask(blocks.count).sum(axis=1) > 1
        group = blocks.key_array()[np.flatnonzero(several)[0]]
        raise IntegrityError(
            f"No site holds all of the group {shown(group)} that is stacked",
            hint="Shuffle on the other keys first.",
        )
    return PhysicalSchema(blocks, layout, source.sites)


def merged(source: PhysicalSchema, what: str) -> None:
    """Rejects a relation with parts.

    Raises:
        IntegrityError: Parts are not merged.
    """
    if source.merge is not None:
        raise IntegrityError(
            f"{what} needs merged arrays, not parts of a {source.merge}",
            hint="Shuffle and aggregate the relation first.",
        )
