"""Tensors that lie in tiles at sites, for tests: in memory, in random placements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import numpy as np

import einsql
from einsql.core.schema import Schema
from einsql.ir.layout import Entry, Layout, Mesh, Replicate, Shard, Single, Tiles, region
from einsql.storage.fields import LocalFields, PlacedFields, Term, count_keys
from einsql.storage.objects import Tensor
from einsql.storage.relation import from_array


class InMemory(PlacedFields):
    """Fields that are said to lie somewhere; `asked` counts how often one is put together."""

    def __init__(self, array: np.ndarray, tiles: Tiles, sites: int, name: str = "val") -> None:
        self._array = array
        self._name = name
        self.tiles = tiles
        self.sites = sites
        self.asked = 0

    def __getitem__(self, name: str) -> np.ndarray:
        if name != self._name:
            raise KeyError(name)
        self.asked += 1
        return self._array

    def __iter__(self) -> Iterator[str]:
        return iter((self._name,))

    def __len__(self) -> int:
        return 1

    def renamed(self, schema: Schema, names: Mapping[str, str], title: str) -> InMemory:
        return InMemory(self._array, self.tiles, self.sites, names[self._name])

    def moved(self, tiles: Tiles, tick: Callable[[float], None]) -> InMemory:
        return InMemory(self._array, tiles, self.sites, self._name)

    def crop(self, box: np.ndarray) -> InMemory:
        inside = tuple(slice(int(lo), int(hi)) for lo, hi in box)
        return InMemory(self._array[inside], self.tiles, self.sites, self._name)

    def count(self, *terms: Term) -> int:
        return count_keys(self, terms)

    def part(self, names: Sequence[str], box: np.ndarray) -> LocalFields:
        inside = tuple(slice(int(lo), int(hi)) for lo, hi in box)
        return LocalFields({name: self[name][inside] for name in names})


def lay(
    con: einsql.Connection, name: str, dims: str, array: np.ndarray, tiles: Tiles, sites: int
) -> InMemory:
    """Stores an array under a name, lying in tiles, as a tensor that statements change."""
    relation = from_array(array, tuple(dims))
    fields = InMemory(array, tiles, sites)
    placed = type(relation)(relation.schema, fields)
    con.store.put(Tensor(name, placed, (*dims, "val"), changed=True))
    return fields


def on_mesh(layout: Layout, shape: tuple[int, ...]) -> Tiles:
    """The tiles that a layout makes, one copy after another, with that layout."""
    found = region(layout.mesh, layout.placed, shape)
    sites = np.flatnonzero(found.there)
    at = np.unravel_index(sites, layout.mesh.shape) if layout.mesh.axes else ()
    copy, copies = np.zeros(len(sites), np.int64), 1
    for k, entry, size in zip(at, layout.placed, layout.mesh.shape, strict=True):
        if isinstance(entry, Replicate):
            copy, copies = copy * size + k, copies * size
    sites = sites[np.argsort(copy, kind="stable")]
    return Tiles(sites, found.boxes[sites], copies, layout)


def random_layout(chance: Random, sites: int, rank: int) -> Layout:
    """Any mesh of all sites, its axes in any order; a tensor axis may be cut twice."""
    sizes, rest = [], sites
    while rest > 1:
        size = chance.choice([n for n in range(2, rest + 1) if rest % n == 0])
        sizes.append(size)
        rest //= size
    entries: list[Entry] = []
    for _ in sizes:
        options: list[Entry] = [Replicate(), Single()]
        options += [Shard(n, chance.randrange(2)) for n in range(rank)] * 2
        entries.append(chance.choice(options))
    axes = tuple((f"r{n}", size) for n, size in enumerate(sizes))
    return Layout(Mesh(axes), tuple(entries))


def random_tiles(chance: Random, sites: int, shape: tuple[int, ...]) -> Tiles:
    """Tiles on a mesh, one with or without its layout told; on an uneven grid; or on none."""
    kind = chance.choice(["mesh", "mesh", "bare mesh", "one site", "uneven", "none"])
    if kind == "one site":
        whole = np.array([(0, n) for n in shape], np.int64).reshape(1, -1, 2)
        return Tiles(np.array([chance.randrange(sites)]), whole)
    if kind in ("mesh", "bare mesh"):
        tiles = on_mesh(random_layout(chance, sites, len(shape)), shape)
        return tiles if kind == "mesh" else Tiles(tiles.sites, tiles.boxes, tiles.copies)
    boxes = [np.array([(0, n) for n in shape], np.int64).reshape(-1, 2)]
    for axis in range(len(shape)):
        if kind == "uneven":
            cut = chance.randint(0, shape[axis])
            boxes = [half for box in boxes for half in _halves(box, axis, cut)]
    for _ in range(chance.randint(0, 5) if shape and kind == "none" else 0):
        box = boxes.pop(chance.randrange(len(boxes)))
        axis = chance.randrange(len(shape))
        boxes += _halves(box, axis, chance.randint(*map(int, box[axis])))
    at = np.array([chance.randrange(sites) for _ in boxes])
    return Tiles(at, np.stack(boxes))


def _halves(box: np.ndarray, axis: int, cut: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = box.copy(), box.copy()
    low[axis, 1] = high[axis, 0] = cut
    return low, high
