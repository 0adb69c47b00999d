"""Placements: what the sites of a mesh hold of a tensor, axis by axis of the mesh.

Along each mesh axis the sites hold a piece of one tensor axis each (Shard), all of it
(Replicate), values that are still to be reduced with each other (Partial), or nothing but
at the first of them (Single). A tensor axis may lie on several mesh axes, which cut it one
after another; a mesh axis never carries two tensor axes. Pieces differ by one element at
most, and are empty where a mesh axis is longer than the tensor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.boxes import part, volumes
from einsql.errors import InterfaceError


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes with their sizes; sites are numbered with the last axis fastest."""

    axes: tuple[tuple[str, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return tuple(size for _, size in self.axes)


@dataclass(frozen=True, slots=True)
class Shard:
    """Each site along the mesh axis holds its piece of a tensor axis.

    Attributes:
        axis: The tensor axis.
        depth: Mesh axes that cut the same tensor axis do so by depth, equal ones in the
            order of the mesh.
    """

    axis: int
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Replicate:
    """Each site along the mesh axis holds the same."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True, slots=True)
class Partial:
    """The sites along the mesh axis hold what a reduction makes the tensor of."""

    reduction: str = "sum"

    def __str__(self) -> str:
        return f"Partial({self.reduction.upper()})"


@dataclass(frozen=True, slots=True)
class Single:
    """The first site along the mesh axis holds it, the others nothing."""


Entry = Shard | Replicate | Partial | Single
Placement = tuple[Entry, ...]
"""One entry for each axis of a mesh."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A placement on a mesh of all sites."""

    mesh: Mesh
    placed: Placement


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Tiles of one relation.

    Attributes:
        sites: int64 (tiles,), the site that holds each tile.
        boxes: int64 (tiles, keys, 2), the keys `[lo, hi)` that each tile covers.
        copies: How often the relation is there. The first tiles/copies tiles are one
            copy, the next ones the same boxes at other sites, and so on.
        layout: The placement that puts these tiles there, if one does.
    """

    sites: np.ndarray
    boxes: np.ndarray
    copies: int = 1
    layout: Layout | None = None

    @property
    def once(self) -> int:
        """How many tiles one copy has."""
        return len(self.sites) // self.copies

    @property
    def volumes(self) -> np.ndarray:
        """Elements of each tile."""
        return volumes(self.boxes)


def covers(layout: Layout, sites: np.ndarray, boxes: np.ndarray) -> bool:
    """True if a layout puts exactly these boxes at these sites.

    Args:
        layout: Over all sites.
        sites: (tiles,), the site of each box.
        boxes: (tiles, keys, 2), together all keys of a relation.
    """
    low, high = boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)
    found = region(layout.mesh, layout.placed, high - low)
    if len(sites) != found.there.sum() or not found.there[sites].all():
        return False
    if len(np.unique(sites)) != len(sites):
        return False
    wanted, filled = found.boxes[sites] + low[:, None], found.volumes[sites] > 0
    same = (wanted == boxes).all(axis=(1, 2))
    empty = (boxes[:, :, 1] <= boxes[:, :, 0]).any(axis=1)
    return bool(np.where(filled, same, empty).all())


def placement(
    mesh: Mesh, axes: Sequence[Sequence[str]], partial: Mapping[str, str] | None = None
) -> Placement:
    """A placement in sharding notation.

    Args:
        mesh: The mesh.
        axes: For each tensor axis the mesh axes it lies on, the outer one first.
        partial: Mesh axes along which values wait for a reduction, with its name.

    Returns:
        Replicate along every mesh axis that is not named.

    Raises:
        InterfaceError: A mesh axis is unknown, is named twice, or cuts before an outer one.
    """
    entries: dict[str, Entry] = {}
    numbers = {name: n for n, (name, _) in enumerate(mesh.axes)}
    named: list[tuple[str, Entry]]
    named = [(name, Shard(n)) for n, names in enumerate(axes) for name in names]
    named += [(name, Partial(reduction)) for name, reduction in (partial or {}).items()]
    for name, entry in named:
        if name not in numbers:
            raise InterfaceError(
                f'The mesh has no axis "{name}"', hint=f"It has {', '.join(numbers)}."
            )
        if name in entries:
            raise InterfaceError(
                f'The mesh axis "{name}" cannot carry two indices',
                hint="Give each index a mesh axis of its own, or let one lie on several.",
            )
        entries[name] = entry
    for names in axes:
        if [numbers[x] for x in names] != sorted(numbers[x] for x in names):
            raise InterfaceError(
                f"An axis on {', '.join(names)} is not cut in the order of the mesh",
                hint="Name the mesh axes in their order, or reorder the mesh.",
            )
    return tuple(entries.get(name, Replicate()) for name, _ in mesh.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """What each site of a mesh holds.

    Attributes:
        boxes: int64 (sites, tensor axes, 2), half-open.
        there: bool (sites,), False at sites that hold nothing.
    """

    boxes: np.ndarray
    there: np.ndarray

    @property
    def volumes(self) -> np.ndarray:
        """Elements at each site."""
        return np.asarray(volumes(self.boxes) * self.there)


def region(mesh: Mesh, placed: Placement, shape: Sequence[int]) -> Region:
    """The piece of a tensor at every site of a mesh.

    Args:
        mesh: The mesh.
        placed: How the tensor lies.
        shape: Its extents.
    """
    sites = prod(mesh.shape)
    at = np.unravel_index(np.arange(sites), mesh.shape) if mesh.axes else ()
    boxes = np.zeros((sites, len(shape), 2), np.int64)
    boxes[:, :, 1] = shape
    there = np.ones(sites, np.bool_)
    cuts = zip(at, placed, mesh.shape, strict=True)
    for k, entry, parts in sorted(cuts, key=lambda c: c[1].depth if isinstance(c[1], Shard) else 0):
        if isinstance(entry, Single):
            there &= k == 0
        elif isinstance(entry, Shard):
            boxes[:, entry.axis] = part(boxes[:, entry.axis], k, parts)
    return Region(boxes, there)
