"""Result types of kernels on tiles: joins and transforms.

A template computes on tiles of any extents. A kernel with a domain is a complete EinSum, and
every cell reads the tiles that have the values of its labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.core.schema import Field
from einsql.core.tables import Table
from einsql.core.units import plural
from einsql.errors import IntegrityError, ProgrammingError
from einsql.ir.einsum.cells import values_read
from einsql.ir.einsum.graph import EinSum, Operand
from einsql.ir.einsum.structure import structure
from einsql.ir.remembered import recalled
from einsql.ir.tra.block_schema import (
    BlockSchema,
    Dim,
    Domain,
    KeyTuple,
    cut_dims,
    match_rows,
    shown,
)
from einsql.ir.tra.typing import check_bounds, continuous, disjoint, distinct


def join_schema(
    sources: Sequence[BlockSchema],
    keys: Sequence[tuple[int, ...]],
    kernel: EinSum,
    only: Table | None = None,
) -> BlockSchema:
    """⋈: one pair for each match; the kernel computes its record.

    Args:
        sources: The operands.
        keys: For each key dimension of each operand the result's key dimension.
        kernel: The template over the records of a match.
        only: The keys of the selected matches, in order; None for all.

    Raises:
        IntegrityError: The arrays of an operand overlap.
        ProgrammingError: Joined keys differ in their bounds, or the kernel does not fit.
    """
    for source in sources:
        disjoint(source, "Join")
    bounds = join_bounds(sources, keys)
    existing = only
    if existing is None and not all(s.is_continuous for s in sources):
        existing = Table.of(match_rows(sources, keys)[0])
    dims = [
        [d.renumbered(places) for d in source.dims]
        for source, places in zip(sources, keys, strict=True)
    ]
    joined = BlockSchema(bounds, (), (), existing)
    return _applied("Join", joined, dims, [s.fields for s in sources], kernel)


def domain_schema(
    sources: Sequence[BlockSchema],
    keys: Sequence[tuple[int, ...]],
    kernel: EinSum,
    domain: Domain,
    only: Table | None = None,
) -> BlockSchema:
    """⋈ of a complete EinSum: one pair for each cell of its domain.

    Args:
        sources: The operands of the kernel; each tile has the values that its cells read.
        keys: For each key dimension of each operand the result's key dimension. Two key
            dimensions of an operand may have the same one (a diagonal).
        kernel: The EinSum.
        domain: The label that each key dimension of the result cuts, and the boundaries.
        only: The keys of the selected cells, in order; None for all.

    Raises:
        IntegrityError: Keys are missing, or a tile does not have the values that a cell reads.
        ProgrammingError: Boundaries do not cut a label, or an operand does not fit.
    """
    cuts = placed_domain(kernel, domain)
    key = ("domain", tuple(sources), tuple(keys), structure(kernel), cuts, only)
    return recalled(key, lambda: _domain_schema(sources, keys, kernel, domain, only))


def placed_domain(kernel: EinSum, domain: Domain) -> tuple[tuple[int | str, tuple[int, ...]], ...]:
    """The domain with the positions of the labels in the kernel; unknown labels stay."""
    at: dict[str, int] = {a.label: n for n, a in enumerate(kernel.axes)}
    return tuple((at.get(label, label), cut) for label, cut in domain)


def _domain_schema(
    sources: Sequence[BlockSchema],
    keys: Sequence[tuple[int, ...]],
    kernel: EinSum,
    domain: Domain,
    only: Table | None,
) -> BlockSchema:
    labels = tuple(label for label, _ in domain)
    for label, cut in domain:
        axis = next((a for a in kernel.axes if a.label == label), None)
        if axis is None or axis.define is not None or labels.count(label) > 1:
            raise ProgrammingError(f"Join cannot cut '{label}': a domain has distinct free labels")
        check_bounds("Join", f"'{label}'", axis.extent, cut)
    bounds = tuple(len(cut) - 1 for _, cut in domain)
    if len(sources) != len(kernel.operands):
        raise ProgrammingError(
            f"Join gives its kernel {len(sources)} records, it takes {len(kernel.operands)}"
        )
    for n, (o, source, places) in enumerate(zip(kernel.operands, sources, keys, strict=True)):
        continuous(source, "Join")
        check_record("Join", n, o, len(source.dims), source.fields)
        fits = all(0 <= p < len(bounds) for p in places)
        if not fits or tuple(bounds[p] for p in places) != source.bounds:
            raise ProgrammingError(
                f"Join maps the keys {shown(source.bounds)} of operand {n} to {shown(places)} "
                f"of {shown(bounds)}"
            )
    cut_of = dict(domain)
    numbers = {label: n for n, label in enumerate(labels)}
    dims = []
    for label in kernel.keys:
        extent = kernel.axis(label).extent
        (parts,) = cut_dims((cut_of.get(label, (0, extent)),))
        dims.append(parts.renumbered((numbers.get(label, 0),)))
    schema = BlockSchema(bounds, tuple(dims), kernel.schema.fields, only)
    _check_tiles(sources, keys, kernel, labels, domain_cells(kernel, domain, schema), schema)
    return schema


def operand_key(key: KeyTuple, places: tuple[int, ...]) -> KeyTuple:
    """The key of an operand's tile that a match of a join reads."""
    return tuple(key[p] for p in places)


def domain_cells(kernel: EinSum, domain: Domain, schema: BlockSchema) -> np.ndarray:
    """The values of the cut labels in each cell, int64 (keys of the result, labels, 2)."""
    keys = schema.key_array()
    cells = np.empty((*keys.shape, 2), np.int64)
    for n, (label, cut) in enumerate(domain):
        starts = np.array(cut, np.int64) + kernel.axis(label).lo
        cells[:, n, 0], cells[:, n, 1] = starts[keys[:, n]], starts[keys[:, n] + 1]
    return cells


def _check_tiles(
    sources: Sequence[BlockSchema],
    keys: Sequence[tuple[int, ...]],
    kernel: EinSum,
    labels: tuple[str, ...],
    cells: np.ndarray,
    schema: BlockSchema,
) -> None:
    """Checks that each tile has the values that its cells read.

    Tiles may have more values of a derived label, equally in all operands.
    """
    derived: dict[str, np.ndarray] = {}
    for n, (o, source, places) in enumerate(zip(kernel.operands, sources, keys, strict=True)):
        read_keys = schema.key_array()[:, list(places)]
        for axis, (label, key) in enumerate(zip(o.labels, o.source.schema.keys, strict=True)):
            dim = source.dims[axis]
            if dim.starts is None:
                raise IntegrityError(f"Join needs positions in axis {axis} of operand {n}")
            tiles = dim.intervals(read_keys) + key.lo
            values = values_read(kernel, label, labels, cells)
            empty = values[:, 0] >= values[:, 1]
            if kernel.axis(label).define is None:
                fits = (tiles == values).all(axis=1) | (empty & (tiles[:, 0] >= tiles[:, 1]))
            else:
                fits = (tiles[:, 0] <= values[:, 0]) & (values[:, 1] <= tiles[:, 1]) | empty
                fits &= (derived.setdefault(label, tiles) == tiles).all(axis=1)
            if not fits.all():
                raise IntegrityError(
                    f"Join needs the values of '{label}' that its cells read in axis {axis} "
                    f"of operand {n}",
                    hint="Repartition the operand into the intervals of the cells.",
                )


def join_bounds(sources: Sequence[BlockSchema], keys: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The number of values of each key of a join's matches.

    Raises:
        ProgrammingError: Joined keys differ in their bounds, or are numbered out of order.
    """
    bounds: list[int] = []
    for n, (source, places) in enumerate(zip(sources, keys, strict=True)):
        if len(places) != len(source.bounds):
            raise ProgrammingError(
                f"Join numbers {plural(len(places), 'key')} of operand {n}, which has "
                f"{len(source.bounds)}"
            )
        distinct("Join", places)
        for m, (place, bound) in enumerate(zip(places, source.bounds, strict=True)):
            if place == len(bounds):
                bounds.append(bound)
            elif not 0 <= place < len(bounds):
                raise ProgrammingError(f"Join numbers its keys {shown(places)} out of order")
            elif bounds[place] != bound:
                raise ProgrammingError(
                    f"Join needs equal bounds: key {m} of operand {n} takes "
                    f"{plural(bound, 'value')}, the keys it joins take {bounds[place]}",
                    hint="Repartition one operand so that both are cut into as many parts.",
                )
    return tuple(bounds)


def transform_schema(source: BlockSchema, kernel: EinSum) -> BlockSchema:
    """λ: applies a kernel to every array.

    Raises:
        ProgrammingError: The kernel does not fit.
    """
    disjoint(source, "Transform")
    return _applied("Transform", source, [source.dims], [source.fields], kernel)


def _applied(
    what: str,
    keys: BlockSchema,
    operands: Sequence[Sequence[Dim]],
    records: Sequence[tuple[Field, ...]],
    kernel: EinSum,
) -> BlockSchema:
    """The result type of a template; `operands` has the arrays' axes over the result's keys."""
    if len(kernel.operands) != len(operands):
        raise ProgrammingError(
            f"{what} gives its kernel {len(operands)} arrays, it takes {len(kernel.operands)}"
        )
    label_dims: dict[str, Dim] = {}
    of_operands = zip(kernel.operands, operands, records, strict=True)
    for n, (operand, dims, record) in enumerate(of_operands):
        check_record(what, n, operand, len(dims), record)
        for label, dim in zip(operand.labels, dims, strict=True):
            known = label_dims.setdefault(label, dim)
            if known != dim:
                label_dims[label] = known.relative
            if known.relative != dim.relative:
                _same_extents(what, label, known, dim, keys)
    dims = tuple(
        label_dims[k] if k in label_dims else Dim((kernel.axis(k).extent,)) for k in kernel.keys
    )
    return BlockSchema(keys.bounds, dims, kernel.schema.fields, keys.existing)


def check_record(
    what: str, number: int, operand: Operand, rank: int, record: tuple[Field, ...]
) -> None:
    """Rejects an operand whose record lacks a field that the kernel takes.

    Raises:
        ProgrammingError: Ranks or fields differ.
    """
    taken = operand.source.schema.fields
    if len(operand.labels) != rank or not set(taken) <= set(record):
        raise ProgrammingError(
            f"{what}'s kernel takes {_types(taken)} arrays of rank {len(operand.labels)} "
            f"as operand {number}, not {_types(record)} of rank {rank}"
        )


def _types(record: tuple[Field, ...]) -> str:
    if len(record) == 1:
        return record[0].dtype.value
    return f"({', '.join(f'{f.name} {f.dtype.value}' for f in record)})"


def _same_extents(what: str, label: str, a: Dim, b: Dim, schema: BlockSchema) -> None:
    keys = schema.key_array()
    differing = np.flatnonzero(a.over(keys) != b.over(keys))
    if len(differing):
        key = tuple(keys[differing[0]].tolist())
        raise ProgrammingError(
            f"{what}'s kernel reads axes of {a.at(key)} and {plural(b.at(key), 'element')} "
            f"as '{label}' under the key {shown(key)}",
            hint="Repartition so that both have the same cuts.",
        )
