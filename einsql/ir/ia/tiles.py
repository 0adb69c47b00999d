"""The tiles of a physical relation whose arrays have positions in one tensor.

Tiles are boxes of positions from 0, in the order by copy, then key, then part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.tables import Table
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.layout import Entry, Layout, Partial, Replicate, Shard, Single, Tiles, covers
from einsql.ir.remembered import recalled
from einsql.ir.tile_transfers import lacking


def tiles_of(schema: PhysicalSchema) -> Tiles:
    """The tiles of a relation, with the layout of the tensor's axes if one yields them."""
    return schema.derived("tiles", lambda: _tiles(schema))


def _tiles(schema: PhysicalSchema) -> Tiles:
    holders = schema.holders
    copy, row, part = np.nonzero(np.moveaxis(holders >= 0, 2, 0))
    most = int(copy.max(initial=0)) + 1
    even = len(row) == most * int((holders >= 0).any(axis=2).sum())
    boxes = schema.blocks.boxes()[row]
    tiles = Tiles(holders[row, part, copy], boxes, most if even else 1)
    layout = _layout(schema)
    fits = layout is not None and len(boxes) > 0 and covers(layout, tiles.sites, boxes)
    return replace(tiles, layout=layout) if fits else tiles


def _layout(schema: PhysicalSchema) -> Layout | None:
    """The layout over all sites with axes of the tensor in place of keys; None if it has none."""
    mesh, dims = schema.layout.mesh, schema.blocks.dims
    if mesh.sites is not None or prod(mesh.shape) != schema.sites:
        return None
    placed: list[Entry] = []
    for entry in schema.layout.placed:
        if isinstance(entry, Shard):
            axes = [n for n, d in enumerate(dims) if entry.axis in d.keys]
            if entry.cyclic:
                return None
            if not axes:  # the label is reduced
                placed.append(Partial())
            elif len(axes) == 1 and dims[axes[0]].keys == (entry.axis,):
                placed.append(Shard(axes[0], entry.depth))
            else:
                placed.append(Replicate())
        elif isinstance(entry, Partial):
            placed.append(Partial())
        elif isinstance(entry, Replicate | Single):
            placed.append(entry)
        else:
            return None
    return Layout(mesh, tuple(placed))


def missing(target: PhysicalSchema, versions: Sequence[PhysicalSchema]) -> tuple[int, np.ndarray]:
    """The elements that move to give sites the tiles of a relation.

    Args:
        target: The wanted relation.
        versions: Relations of the same tensor; the first one has all its elements.

    Returns:
        The number of elements, and int64 (tiles, 2): for each wanted tile the version whose tile
        at the same site contains it and the number of that tile; -1 if the tile is assembled.
    """
    key = ("missing", target, tuple(versions))
    elements, at_hand = recalled(key, lambda: _missing(target, versions))
    return elements, at_hand.array


def _missing(target: PhysicalSchema, versions: Sequence[PhysicalSchema]) -> tuple[int, Table]:
    elements, at_hand = lacking(tiles_of(target), [tiles_of(v) for v in versions])
    return elements, Table.of(at_hand)
