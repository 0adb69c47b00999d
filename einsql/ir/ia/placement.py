"""Laws of the sites of a physical relation's keys: a layout over key dimensions (TRA §3).

Shuffles distribute keys cyclically over a mesh axis of g sites: value k goes to coordinate
k mod g, which requires no bound of the key. Neighbouring blocks go to different sites, so a
triangular filter keeps the load balanced. Equal keys of two relations with equal laws share a
site. If g exceeds the bound of the key, some sites store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

import numpy as np

from einsql.core.tables import Table
from einsql.ir.layout import Entry, Layout, Mesh, Placement, Replicate, Scattered, Shard

Group = tuple[tuple[int, int], ...]
"""The mesh axes that shard one key, the outermost first: the number and the size of each."""


def everywhere(sites: int) -> Layout:
    """The layout with a copy at every site, the paper's D = ∅."""
    return Layout(Mesh.of((sites,)), (Replicate(),)) if sites > 1 else Layout(Mesh(()), ())


def spread(sites: int, keys: Sequence[int], bounds: Sequence[int]) -> Layout:
    """The layout of a shuffle on key dimensions; without any, all pairs are at site 0.

    Args:
        sites: The number of sites.
        keys: The key dimensions, distinct.
        bounds: The number of values of each of these dimensions.

    Returns:
        The grid with the fewest keys at the busiest site, and among these the fewest sites.
        A dimension without an axis is not sharded.
    """
    grid = _grid(sites, tuple(bounds))
    axes = [(g, Shard(k, cyclic=True)) for g, k in zip(grid, keys, strict=True) if g > 1]
    return Layout(Mesh.of([g for g, _ in axes]), tuple(e for _, e in axes))


@lru_cache(maxsize=1024)
def _grid(sites: int, bounds: tuple[int, ...]) -> tuple[int, ...]:
    def load(grid: Sequence[int]) -> tuple[int, int, tuple[int, ...]]:
        most = prod(-(-b // g) for b, g in zip(bounds, grid, strict=True))
        return most, prod(grid), tuple(-g for g in grid)

    return min(_grids(sites, bounds), key=load)


def _grids(sites: int, bounds: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every grid of at most `sites` sites whose sizes reduce the keys of the busiest site."""
    if not bounds:
        return [()]
    bound = max(1, bounds[0])
    sizes = range(1, min(sites, bound) + 1)
    useful = [g for g in sizes if g == 1 or -(-bound // g) < -(-bound // (g - 1))]
    return [(g, *rest) for g in useful for rest in _grids(sites // g, bounds[1:])]


def sharing(layout: Layout, axis: int) -> Group:
    """The mesh axes that cut the key of a sharded mesh axis in the same way, outermost first."""
    entry = layout.placed[axis]
    assert isinstance(entry, Shard)
    axes = [
        (e.depth, n, size)
        for n, (e, size) in enumerate(zip(layout.placed, layout.mesh.shape, strict=True))
        if isinstance(e, Shard) and (e.axis, e.cyclic) == (entry.axis, entry.cyclic)
    ]
    return tuple((n, size) for _, n, size in sorted(axes))


def coordinate(
    layout: Layout, axis: int, keys: np.ndarray, bounds: Sequence[int]
) -> np.ndarray | None:
    """The coordinate of each key along a mesh axis.

    Several mesh axes that shard one key are the digits of a number, the outermost first.

    Args:
        layout: The layout of the keys.
        axis: The number of the mesh axis.
        keys: All keys of the relation in order, int64 (keys, key dimensions).
        bounds: The number of values of each key dimension.

    Returns:
        int64 (keys,); None if the key does not determine the coordinate.
    """
    entry = layout.placed[axis]
    if isinstance(entry, Scattered):
        return entry.table.array
    if not isinstance(entry, Shard):
        return None
    group = sharing(layout, axis)
    size = prod(g for _, g in group)
    value, bound = keys[:, entry.axis], max(1, bounds[entry.axis])
    piece = value % size if entry.cyclic else value * size // bound
    inner = [n for n, _ in group].index(axis) + 1
    return np.asarray(piece // prod(g for _, g in group[inner:]) % layout.mesh.shape[axis])


def recognized(
    mesh: Mesh, laws: Sequence[Entry | np.ndarray], key_array: Callable[[], np.ndarray]
) -> Layout:
    """The layout with a law for every array of coordinates; a table where no law is found.

    Args:
        mesh: The mesh.
        laws: For each mesh axis its entry, or the coordinate of each key, int64 (keys,).
        key_array: Returns all keys of the relation in order, int64 (keys, key dimensions).
    """
    placed: list[Entry] = []
    taken = {e.axis for e in laws if isinstance(e, Shard)}
    for law, size in zip(laws, mesh.shape, strict=True):
        if not isinstance(law, np.ndarray):
            placed.append(law)
            continue
        keys = key_array()
        free = (k for k in range(keys.shape[1]) if k not in taken)
        key = next((k for k in free if np.array_equal(keys[:, k] % size, law)), None)
        if key is None:
            placed.append(Scattered(Table.of(law)))
        else:
            placed.append(Shard(key, cyclic=True))
            taken.add(key)
    return Layout(mesh, tuple(placed))


def replicates(placed: Placement) -> bool:
    """True if every point of a mesh stores everything."""
    return all(isinstance(e, Replicate) for e in placed)
