"""The sites of cells and the tiles that cells read: arithmetic on boxes of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations, product
from math import prod

import numpy as np

from einsql.core.boxes import common_volumes, split
from einsql.core.records import dataclass
from einsql.errors import InternalError
from einsql.ir.einsum.balance import Balance, balance_of
from einsql.ir.einsum.cells import values_read
from einsql.ir.einsum.graph import EinSum, Input
from einsql.ir.layout import (
    Entry,
    Layout,
    Mesh,
    Partial,
    Replicate,
    Shard,
    Single,
    Tiles,
    covers,
    layout_of,
    region,
)
from einsql.ir.spmd.program import COPIES
from einsql.optimizer.decomposition import Cut

REPLICATE = Replicate()

ORDERS = 24
"""The maximum of tried orders of an operation's cut labels: all orders of four labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cells of an operation on a grid of sites; the cells of one copy are contiguous.

    Attributes:
        labels: The free labels.
        grid: The cut labels with their parts, possibly COPIES, slowest first.
        coordinates: (cells, labels), the interval number of each label.
        boxes: (cells, labels, 2), the interval `[lo, hi)` of each label.
        sites: (cells,), the site of each cell.
        copies: The number of groups of sites that run all cells.
        among: The number of all sites.
        idle: If the number of sites is a multiple of the cells, only the first site along an
            additional axis has a cell. This is the number of slower axes of the grid.
        depths: The depth of each axis of the grid, as in `Shard`; empty if all are 0.
    """

    labels: tuple[str, ...]
    grid: tuple[tuple[str, int], ...]
    coordinates: np.ndarray
    boxes: np.ndarray
    sites: np.ndarray
    copies: int
    among: int
    idle: int
    depths: tuple[int, ...] = ()


def numbered(cells: int, sites: int) -> np.ndarray:
    """The site of each cell in order: evenly distributed, neighbouring cells on near sites."""
    return np.arange(cells) * sites // cells


def _coordinates(shape: Sequence[int]) -> Sequence[np.ndarray]:
    """The coordinates of every point along each axis of a grid, the last axis fastest."""
    return np.unravel_index(np.arange(prod(shape)), tuple(shape)) if shape else ()


def grids(node: EinSum, cut: Cut, sites: int) -> Iterator[Cells]:
    """Yields the cells of an operation under each order of the cut labels.

    If there are several sites per cell, the first grids place the idle sites next to each
    cell, like a result that was merged at the first site of each group.

    Raises:
        InternalError: All copies of the cells exceed the number of sites.
    """
    free = [a for a in node.axes if a.define is None]
    labels = tuple(a.label for a in free)
    extent = {x: cut.parts[x] for x in labels if cut.parts[x] > 1}
    if cut.copies > 1:
        extent[COPIES] = cut.copies
    number = prod(extent.values())
    if cut.copies > 1 and number > sites:
        raise InternalError(f"{number} calls in {cut.copies} copies need more than {sites} sites")
    intervals = [cut.intervals(a) for a in free]
    orders = list(islice(permutations(extent), ORDERS))
    if cut.pinned is not None and cut.pinned.mesh is not None:
        orders = [cut.pinned.mesh]
    spaced = number < sites and sites % number == 0
    places = [len(extent), *(range(len(extent)) if spaced else ())]
    for idle, order in product(places, orders):
        shape = [extent[x] for x in order]
        at = dict(zip(order, _coordinates(shape), strict=True))
        where = numbered(number, sites)
        if idle < len(extent):
            groups, at_once = np.divmod(np.arange(number), prod(shape[idle:]))
            where = groups * (sites // prod(shape[:idle])) + at_once
        if cut.copies > 1:
            together = np.argsort(at[COPIES], kind="stable")
            at, where = {x: c[together] for x, c in at.items()}, where[together]
        coordinates = np.zeros((number, len(free)), np.int64)
        boxes = np.empty((number, len(free), 2), np.int64)
        for n, x in enumerate(labels):
            if x in at:
                coordinates[:, n] = at[x]
            boxes[:, n] = intervals[n][coordinates[:, n]]
        grid = tuple(zip(order, shape, strict=True))
        yield Cells(labels, grid, coordinates, boxes, where, cut.copies, sites, idle)


def gridded(node: EinSum, sites: int) -> Cells | None:
    """The cells of an operation on its requested grid; None if it requests none of these sites."""
    grid = [g for g in node.grid if g.size > 1]
    if not grid or prod(g.size for g in grid) != sites:
        return None
    free = [a for a in node.axes if a.define is None]
    labels = tuple(a.label for a in free)
    cut = [g.label in labels for g in grid]
    names = [g.label if own else COPIES for g, own in zip(grid, cut, strict=True)]
    mesh = Mesh(tuple(zip(names, (g.size for g in grid), strict=True)))
    placed = tuple(
        Shard(labels.index(g.label), g.depth) if own else REPLICATE
        for g, own in zip(grid, cut, strict=True)
    )
    tiles = tiles_of([(a.lo, a.hi) for a in free], Layout(mesh, placed))
    coordinates = coordinates_of(tiles.sites, Layout(mesh, placed), len(labels))
    depths = tuple(g.depth for g in grid)
    sized = (coordinates, tiles.boxes, tiles.sites, tiles.copies, sites, len(grid), depths)
    return Cells(labels, mesh.axes, *sized)


def coordinates_of(sites: np.ndarray, layout: Layout, axes: int) -> np.ndarray:
    """The number of the interval of each axis at some sites, int64 (sites, axes).

    Args:
        sites: int64 (sites,).
        layout: A layout over all sites, which shards the axes.
        axes: The number of axes.
    """
    coordinates = np.zeros((len(sites), axes), np.int64)
    shape = layout.mesh.shape
    at = np.unravel_index(sites, shape) if shape else ()
    along = [
        (entry, size, number)
        for entry, size, number in zip(layout.placed, shape, at, strict=True)
        if isinstance(entry, Shard)
    ]
    for entry, size, number in sorted(along, key=lambda axis: axis[0].depth):
        coordinates[:, entry.axis] = coordinates[:, entry.axis] * size + number
    return coordinates


def pinned_cells(node: EinSum, cut: Cut, sites: int) -> Cells | None:
    """The cells of an operation on the grid of a plan file; None if the file has no grid for it."""
    pinned = cut.pinned
    if pinned is None or pinned.mesh is None:
        return None
    candidates = list(grids(node, cut, sites))
    if pinned.sites is None:
        return candidates[0]
    wanted = np.array(pinned.sites, np.int64)
    alike = (c for c in candidates if np.array_equal(c.sites, wanted))
    return next(alike, replace(candidates[0], sites=wanted))


def declared(
    keys: Sequence[tuple[int, int]],
    parts: Sequence[int],
    sites: int,
    order: Sequence[int] = (),
    balances: Sequence[Balance | None] = (),
) -> Tiles:
    """The tiles and sites of a stored tensor with a declared cut.

    Args:
        keys: Bounds of each key.
        parts: The number of parts of each key; all 1 for a copy at every site.
        sites: The number of sites.
        order: The keys in the order in which blocks are numbered, the slowest first; empty
            for the order of the keys.
        balances: For each key the balance of its parts; None or empty for equal lengths.
    """
    number, order = prod(parts), order or range(len(keys))
    if number == 1:
        box = np.array(keys, np.int64).reshape(1, -1, 2)
        everywhere = Layout(Mesh((("", sites),)), (Replicate(),))
        return Tiles(np.arange(sites), np.repeat(box, sites, axis=0), sites, everywhere)
    boxes = np.empty((number, len(keys), 2), np.int64)
    for n, at in zip(order, _coordinates([parts[n] for n in order]), strict=True):
        balance = balances[n] if balances else None
        intervals = split if balance is None else balance.intervals
        boxes[:, n] = intervals(*keys[n], parts[n])[at]
    tiles = Tiles(numbered(number, sites), boxes)
    if sites % number:
        return tiles
    mesh = Mesh((*(("", parts[n]) for n in order), ("", sites // number)))
    return laid(tiles, Layout(mesh, (*map(Shard, order), Single())))


def tiles_of(keys: Sequence[tuple[int, int]], layout: Layout) -> Tiles:
    """The tiles of a stored tensor under a layout without partial values.

    Args:
        keys: Bounds of each key.
        layout: A layout over all sites.
    """
    mesh, first = layout.mesh, np.array(keys, np.int64).reshape(-1, 2)[:, :1]
    pieces = region(mesh, layout.placed, [max(0, hi - lo) for lo, hi in keys])
    repeats = [n for n, e in enumerate(layout.placed) if isinstance(e, Replicate)]
    copy = np.zeros(len(pieces.there), np.int64)
    at = _coordinates(mesh.shape)
    for n in repeats:
        copy = copy * mesh.shape[n] + at[n]
    sites = np.argsort(copy, kind="stable")
    sites = sites[pieces.there[sites]]
    copies = prod(mesh.shape[n] for n in repeats)
    return Tiles(sites, pieces.boxes[sites] + first, copies, layout)


def spread(keys: Sequence[tuple[int, int]], sites: int) -> Tiles:
    """The tiles of a tensor whose longest key is cut equally into at most `sites` parts.

    Args:
        keys: Bounds of each key.
        sites: The number of sites.
    """
    extents = [max(0, hi - lo) for lo, hi in keys]
    parts = [1] * len(keys)
    if extents:
        longest = extents.index(max(extents))
        parts[longest] = max(1, min(sites, extents[longest]))
    return declared(keys, parts, sites if prod(parts) > 1 else 1)


def lying(tensor: Input, sites: int) -> Tiles:
    """The tiles of a stored tensor with fixed sites, with their layout if there is one."""
    keys = [(k.lo, k.hi) for k in tensor.schema.keys]
    if tensor.lies is None:
        assert tensor.parts is not None
        balances = [balance_of(tensor, n) for n in range(len(keys))]
        return declared(keys, tensor.parts, sites, tensor.order, balances)
    if tensor.lies.layout is not None:
        return tensor.lies
    return replace(tensor.lies, layout=layout_of(tensor.lies, sites, tensor.schema.shape))


def needed(node: EinSum, operand: int, cells: Cells) -> Tiles:
    """The tile of an operand that each cell reads."""
    labels = node.operands[operand].labels
    boxes = np.empty((len(cells.sites), len(labels), 2), np.int64)
    for axis, label in enumerate(labels):
        boxes[:, axis] = values_read(node, label, cells.labels, cells.boxes)
    return Tiles(cells.sites, boxes)


def made_layout(node: EinSum, cells: Cells, copies: Entry = REPLICATE) -> Layout | None:
    """The layout of the cells' results; `copies` is the entry of the axis of copies."""

    def entry(label: str, depth: int) -> Entry:
        if label == COPIES:
            return copies
        return Shard(node.keys.index(label), depth) if label in node.keys else Partial()

    return grid_layout(cells, entry)


def grid_layout(cells: Cells, entry: Callable[[str, int], Entry]) -> Layout | None:
    """The layout over all sites with an entry for each axis of the cells' grid.

    Args:
        cells: The cells.
        entry: Returns the entry for the label of an axis and its depth.

    Returns:
        The layout, in which idle sites store nothing; None if no grid has all sites.
    """
    idle, rest = divmod(cells.among, len(cells.sites))
    if rest or not idle:
        return None
    axes: list[tuple[tuple[str, int], Entry]]
    axes = list(zip(cells.grid, entries(cells, entry), strict=True))
    if idle > 1:
        axes.insert(cells.idle, (("", idle), Single()))
    return Layout(Mesh(tuple(axis for axis, _ in axes)), tuple(e for _, e in axes))


def entries(cells: Cells, entry: Callable[[str, int], Entry]) -> tuple[Entry, ...]:
    """The entry of each axis of the cells' grid; arguments as of `grid_layout`."""
    depths = cells.depths or (0,) * len(cells.grid)
    return tuple(entry(label, depth) for (label, _), depth in zip(cells.grid, depths, strict=True))


def laid(tiles: Tiles, layout: Layout | None) -> Tiles:
    """The tiles with a layout, if the layout yields these tiles."""
    fits = layout is not None and covers(layout, tiles.sites, tiles.boxes)
    return replace(tiles, layout=layout if fits else None)


def made(node: EinSum, cells: Cells) -> Tiles:
    """The result tile of each cell."""
    boxes = np.empty((len(cells.sites), len(node.keys), 2), np.int64)
    for axis, key in enumerate(node.keys):
        if key in cells.labels:
            boxes[:, axis] = cells.boxes[:, cells.labels.index(key)]
        else:  # the result has all values of a derived key
            boxes[:, axis] = node.axis(key).lo, node.axis(key).hi
    return Tiles(cells.sites, boxes, cells.copies)


def groups(node: EinSum, cells: Cells) -> np.ndarray | None:
    """The cells whose partial results form each tile, (groups, members); None for single cells."""
    merged = [n for n, x in enumerate(cells.labels) if x not in node.keys]
    if not (cells.coordinates[:, merged] > 0).any():
        return None
    group = np.arange(len(cells.sites)) // (len(cells.sites) // cells.copies)
    for n, x in enumerate(cells.labels):
        if x in node.keys:
            group = group * (cells.coordinates[:, n].max() + 1) + cells.coordinates[:, n]
    return np.argsort(group, kind="stable").reshape(group.max() + 1, -1)


def distinct(need: Tiles) -> Tiles:
    """The distinct tiles, by site."""
    if len(np.unique(need.sites)) == len(need.sites):
        by_site = np.argsort(need.sites)
        return Tiles(need.sites[by_site], need.boxes[by_site])
    rows = np.concatenate([need.sites[:, None], need.boxes.reshape(len(need.sites), -1)], axis=1)
    first = np.unique(rows, axis=0, return_index=True)[1]
    return Tiles(need.sites[first], need.boxes[first])


def following(need: Tiles, have: Tiles, most: int = 1) -> np.ndarray | None:
    """For each needed tile the site with most of its elements.

    Args:
        need: The tiles to place.
        have: The stored tiles.
        most: The maximum of tiles for a site; the result is None if a site would get more.
    """
    shared = common_volumes(need.boxes[:, None], have.boxes[None])
    sites = have.sites[shared.argmax(axis=1)]
    return sites if np.bincount(sites).max() <= most else None
