"""Reads the description of a tensor's files from JSON values; refuses one that makes no sense."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from einsql.core.schema import Schema
from einsql.storage.database.directory import is_payload
from einsql.storage.database.layout import CSR, DENSE, Layout, Segment, schema_in
from einsql.storage.database.sparse_blocks import COLUMNS, STARTS, starts_in
from einsql.storage.database.sparse_payload import arrays_in
from einsql.storage.database.tiles.tile_statistics import RECORD
from einsql.storage.database.units import stored_shape, units_of

MOST = 2**62
"""Exclusive upper bound of sizes and offsets."""


def of_type(kind: type[Any], value: object) -> Any:
    """Checks that a value has a type, and returns it.

    Raises:
        TypeError: It has another type.
    """
    if type(value) is not kind:
        raise TypeError(f"its row has {value!r:.60} where {kind.__name__} belongs")
    return value


def whole(value: object, least: int = 0, most: int = MOST) -> int:
    """Checks that a value is an integer in a range, and returns it.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of the range.
    """
    number = int(of_type(int, value))
    if not least <= number <= most:
        raise ValueError(f"its row has the number {number}")
    return number


def checked_layout(
    description: Mapping[str, Any], chunks: Mapping[int, bytes], schema: Schema
) -> Layout:
    """The layout of a tensor, without reading its files.

    Args:
        description: The JSON values.
        chunks: The chunks of the tile index.
        schema: The keys and fields.

    Raises:
        ValueError: A place is outside of its file, a file outside of the directory, or the tile
            index is damaged.
        TypeError: An entry has another type.
        KeyError: An entry is missing.
    """
    layout = Layout.read(description, chunks, schema.shape)
    segments = (layout.base, *layout.newer)
    for segment in segments:
        _check_types(segment)
    is_sparse = layout.base.format == CSR
    arrays = arrays_in(layout.base, schema) if is_sparse else schema
    for segment in segments:
        if not is_payload(segment.file):
            raise ValueError(f"{segment.file!r} is no payload's name")
        if not layout.newer and [p.name for p in segment.parts] != [f.name for f in arrays.fields]:
            raise ValueError("the payload has other fields")
    numbers = [s.number for s in layout.newer]
    if layout.base.number or len({*numbers, 0}) <= len(numbers):
        raise ValueError("its newer tiles do not fit the payload")
    if is_sparse:
        _check_base(layout.base, arrays)
        _check_blocks(layout, schema)
        return layout
    _check_base(layout.base, schema_in(layout.base, schema) if layout.newer else schema)
    if layout.newer or len(layout.index.entries):
        _check_newer(layout, schema)
    return layout


def _check_types(segment: Segment) -> None:
    of_type(str, segment.file)
    of_type(str, segment.format)
    for number in (segment.size, segment.sums, segment.count, segment.frame):
        whole(number, -MOST)
    for number in (segment.number, segment.statistics or 0, *(segment.tile or ())):
        whole(number)
    for part in segment.parts:
        of_type(str, part.name)
        for number in (part.offset, part.first, *part.shape):
            whole(number, -MOST)


def _check_base(base: Segment, schema: Schema) -> None:
    for part in base.parts if base.format == DENSE else ():
        extents = zip(part.shape, schema.shape, strict=True)
        if any(stored not in (1, extent) for stored, extent in extents):
            raise ValueError(f"the payload has no {part.name} of that shape")
    if base.tile is not None:
        _check_tile(base.tile, stored_shape(base.parts, len(schema.keys)))
    count = 0
    for n, part in enumerate(base.parts):
        units = units_of(base, part, schema)
        if part.first != (count if base.tile is None else n):
            raise ValueError(f"the payload has no {part.name} of that shape")
        count += units.count
    _check_places(base, count, schema)


def _check_tile(tile: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuses tiles whose elements do not follow each other in C order."""
    if len(tile) != len(shape) or min(tile, default=1) < 1:
        raise ValueError("the payload has no tiles of that shape")
    axis = next((n for n, extent in enumerate(tile) if extent > 1), len(tile))
    rest = zip(tile[axis + 1 :], shape[axis + 1 :], strict=True)
    if any(extent != max(1, full) for extent, full in rest):
        raise ValueError("the payload has no tiles of that shape")


def _check_places(segment: Segment, count: int, schema: Schema) -> None:
    places = [(segment.sums, 4 * segment.count)]
    places += [
        (p.offset, prod(p.shape) * schema.dtype(p.name).numpy.itemsize) for p in segment.parts
    ]
    if segment.statistics is not None:
        nbytes = segment.rows * len(segment.parts) * RECORD.itemsize
        places.append((segment.statistics, nbytes))
    if count != segment.count or any(lo < 0 or lo + n > segment.size for lo, n in places):
        raise ValueError("the payload is too short")


def _check_newer(layout: Layout, schema: Schema) -> None:
    base, entries = layout.base, layout.index.entries
    numbers = [s.number for s in layout.newer]
    grid = layout.grid(schema)
    if grid is None:
        raise ValueError("its newer tiles do not fit the payload")
    _check_tile(grid.tile, schema.shape)
    is_full = all(p.shape == schema.shape for p in base.parts)
    if {s.tile for s in layout.newer} != {grid.tile} or (is_full and base.tile != grid.tile):
        raise ValueError("its newer tiles do not fit the payload")
    if not (np.isin(entries["segment"], numbers).all() and (entries["tile"] < grid.count).all()):
        raise ValueError("its tile index names other tiles")
    spans = grid.spans(entries["tile"], schema.shape)
    ends = entries["start"] + spans[:, 1] - spans[:, 0]
    for segment in layout.newer:
        here = entries["segment"] == segment.number
        (total,) = {p.shape for p in segment.parts}
        _check_places(segment, segment.rows * len(segment.parts), schema_in(segment, schema))
        wrong = (entries["start"] < 0) | (entries["row"] >= segment.rows) | (ends > prod(total))
        firsts = [p.first for p in segment.parts]
        if len(total) != 1 or firsts != list(range(len(firsts))) or (wrong & here).any():
            raise ValueError("its tile index leaves a payload")


def _check_blocks(layout: Layout, schema: Schema) -> None:
    """Refuses newer blocks of a sparse tensor that overlap, or that are outside of their files."""
    entries, sparse = layout.index.entries, layout.newer
    if not sparse and not len(entries) and layout.stored is None:
        return
    whole(layout.stored)
    if not sparse or any(s.format != CSR or s.tile is not None for s in sparse):
        raise ValueError("its newer tiles do not fit the payload")
    lo, hi = entries["tile"], entries["end"]
    bounds = np.stack([lo, hi], axis=-1).reshape(-1)
    within = len(bounds) > 0 and bounds[0] >= 0 and bounds[-1] <= schema.shape[0]
    apart = (hi > lo).all() and (np.diff(bounds) >= 0).all()
    if not (within and apart and np.isin(entries["segment"], [s.number for s in sparse]).all()):
        raise ValueError("its tile index names other tiles")
    for segment in sparse:
        arrays = arrays_in(segment, schema)
        sizes = {p.name: prod(p.shape) for p in segment.parts}
        _check_places(segment, segment.rows * len(sizes), arrays)
        here = entries[entries["segment"] == segment.number]
        starts = here["offset"] + starts_in(schema, here["tile"], here["end"])
        wrong = (here["start"] < 0) | (here["stop"] < here["start"]) | (here["offset"] < 0)
        wrong |= (here["stop"] > sizes[COLUMNS]) | (starts > sizes[STARTS])
        firsts = [p.first for p in segment.parts]
        if firsts != list(range(len(firsts))) or (wrong | (here["row"] >= segment.rows)).any():
            raise ValueError("its tile index leaves a payload")
