"""Placements: the part of a relation that each site of a mesh stores, per mesh axis.

A mesh axis has one of these entries:

* Shard: each site stores one piece of an axis of a tensor, or of a key dimension of a relation.
* Replicate: each site stores a copy.
* Partial: each site stores partial values, which a reduction merges.
* Single: only the first site stores anything.
* Scattered: a table gives the site of each key.

An axis may be sharded over several mesh axes, which cut it one after another. A mesh axis never
shards two axes. The sizes of the pieces differ by at most one. Pieces are empty where a mesh axis
is longer than the axis that it shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from einsql.core.boxes import enclosing, extents, part, volumes
from einsql.core.records import dataclass
from einsql.core.tables import Table
from einsql.core.units import plural
from einsql.errors import InterfaceError, ProgrammingError


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes with their sizes.

    Attributes:
        axes: The name and the size of each axis.
        sites: The site of each mesh point, the last axis fastest; None for the sites from 0 in
            this order. Several points may have one site.
    """

    axes: tuple[tuple[str, int], ...]
    sites: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sites = self.sites
        if sites is not None:
            if len(sites) != prod(self.shape):
                raise ProgrammingError(
                    f"A mesh of {plural(prod(self.shape), 'point')} cannot have the sites {sites}"
                )
            if sites == tuple(range(len(sites))):
                object.__setattr__(self, "sites", None)

    @classmethod
    def of(cls, shape: Sequence[int], sites: Sequence[int] | None = None) -> Mesh:
        """The mesh with axes r0, r1, … of the given sizes."""
        axes = tuple((f"r{n}", size) for n, size in enumerate(shape))
        return cls(axes, None if sites is None else tuple(sites))

    @property
    def repeats(self) -> bool:
        """True if a site has several points."""
        return self.sites is not None and len(set(self.sites)) < len(self.sites)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return tuple(size for _, size in self.axes)

    @property
    def points(self) -> np.ndarray:
        """The site of each mesh point, the last axis fastest, int64 (points,)."""
        sites = np.arange(prod(self.shape)) if self.sites is None else self.sites
        return np.asarray(sites, np.int64)


@dataclass(frozen=True, slots=True)
class Shard:
    """Each site along the mesh axis stores one piece of an axis.

    Attributes:
        axis: The axis of the tensor, or the key dimension of the relation.
        depth: The order of mesh axes that cut the same axis: lower depths cut first, equal
            depths in the order of the mesh.
        cyclic: True if neighbouring keys go to different sites: of g sites, coordinate
            `key % g` stores a key. False for contiguous pieces.
    """

    axis: int
    depth: int = 0
    cyclic: bool = False

    def __str__(self) -> str:
        return f"Shard({self.axis})" if self.cyclic else f"Shard({self.axis}, blocks)"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Each site along the mesh axis stores a copy."""

    def __str__(self) -> str:
        return "Replicate"


@dataclass(frozen=True, slots=True)
class Partial:
    """The sites along the mesh axis store partial values; their reduction is the tensor."""

    reduction: str = "sum"

    def __str__(self) -> str:
        return f"Partial({self.reduction.upper()})"


@dataclass(frozen=True, slots=True)
class Single:
    """Only the first site along the mesh axis stores the tensor."""

    def __str__(self) -> str:
        return "Single"


@dataclass(frozen=True, slots=True)
class Scattered:
    """A table gives the coordinate of each key along the mesh axis, because no law does.

    A local map may renumber keys, while the arrays stay at their sites.

    Attributes:
        table: int64 (keys,), the coordinate of each key of the relation, in order.
    """

    table: Table

    def __str__(self) -> str:
        return "Scattered"


Entry = Shard | Replicate | Partial | Single | Scattered
Placement = tuple[Entry, ...]
"""One entry for each axis of a mesh."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A placement on a mesh.

    Raises:
        ProgrammingError: Axes and entries differ in number.
    """

    mesh: Mesh
    placed: Placement

    def __post_init__(self) -> None:
        if len(self.mesh.axes) != len(self.placed):
            raise ProgrammingError("A placement needs an entry for each axis of its mesh")

    def __str__(self) -> str:
        at = "" if self.mesh.sites is None else f" of sites {', '.join(map(str, self.mesh.sites))}"
        if not self.placed:
            return f"site {self.mesh.points[0]}"
        return f"{'x'.join(map(str, self.mesh.shape))}{at} {', '.join(map(str, self.placed))}"

    @property
    def keys(self) -> frozenset[int]:
        """The axes or key dimensions that are sharded; the paper's D."""
        return frozenset(e.axis for e in self.placed if isinstance(e, Shard))


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Tiles of one relation.

    Attributes:
        sites: int64 (tiles,), the site that stores each tile.
        boxes: int64 (tiles, keys, 2), the range of keys `[lo, hi)` of each tile.
        copies: The number of copies of the relation. The first tiles/copies tiles are one
            copy, the next ones the same boxes at other sites, and so on.
        layout: The placement that yields these tiles and sites; None if no placement does.
        keyed: The number of leading axes of `boxes` along which a tile has one key and its
            arrays have no axis.
    """

    sites: np.ndarray
    boxes: np.ndarray
    copies: int = 1
    layout: Layout | None = None
    keyed: int = 0

    @property
    def once(self) -> int:
        """The number of tiles of one copy."""
        return len(self.sites) // self.copies

    @property
    def areas(self) -> np.ndarray:
        """The part of the boxes that the arrays have, int64 (tiles, array axes, 2)."""
        return self.boxes[:, self.keyed :]

    @property
    def volumes(self) -> np.ndarray:
        """The number of elements of each tile."""
        return volumes(self.boxes)

    def equals(self, other: Tiles) -> bool:
        """True if tiles, sites, their order and the layout are equal."""
        return self is other or (self.layout == other.layout and self.same_places(other))

    def same_places(self, other: Tiles) -> bool:
        """True if tiles, sites and their order are equal; layouts may name mesh axes otherwise."""
        return self is other or (
            self.copies == other.copies
            and self.keyed == other.keyed
            and np.array_equal(self.sites, other.sites)
            and np.array_equal(self.boxes, other.boxes)
        )


def covers(layout: Layout, sites: np.ndarray, boxes: np.ndarray) -> bool:
    """True if a layout yields exactly these boxes at these sites.

    Args:
        layout: A layout over all sites.
        sites: (tiles,), the site of each box.
        boxes: (tiles, keys, 2), boxes that together cover all keys of a relation.
    """
    span = enclosing(boxes)
    expected = region(layout.mesh, layout.placed, extents(span).tolist())
    every = len(sites) == expected.there.sum() and expected.there[sites].all()
    if not every or len(np.unique(sites)) != len(sites):
        return False
    wanted, filled = expected.boxes[sites] + span[:, :1], expected.volumes[sites] > 0
    same = (wanted == boxes).all(axis=(1, 2))
    empty = (boxes[:, :, 1] <= boxes[:, :, 0]).any(axis=1)
    return bool(np.where(filled, same, empty).all())


def layout_of(tiles: Tiles, sites: int, shape: Sequence[int]) -> Layout | None:
    """Infers the placement on a mesh of all sites that yields the tiles.

    Args:
        tiles: All tiles of a relation; `tiles.layout` is ignored.
        sites: The number of sites.
        shape: The extents of the relation.

    Returns:
        The placement with the fewest mesh axes, which are named r0, r1, …; None if no mesh
        yields these tiles.
    """
    tile_of_site = np.full(sites, -1)
    tile_of_site[tiles.sites] = np.arange(len(tiles.sites))
    if tile_of_site[0] < 0 or (tile_of_site >= 0).sum() != len(tiles.sites):
        return None
    if not np.array_equal(extents(enclosing(tiles.boxes)), shape):
        return None
    first = tiles.boxes[tile_of_site[0]]
    # The first two sites along a mesh axis of this stride determine its entry.
    along = {
        stride: _entry(
            first, None if tile_of_site[stride] < 0 else tiles.boxes[tile_of_site[stride]]
        )
        for stride in range(1, sites)
        if sites % stride == 0
    }
    for ends in _chains(sites, [n for n, entry in along.items() if entry is not None]):
        strides = ends[-2::-1]
        mesh = Mesh(tuple((f"r{n}", ends[-1 - n] // t) for n, t in enumerate(strides)))
        layout = Layout(mesh, _deepened(strides, along, tiles.boxes[tile_of_site]))
        if covers(layout, tiles.sites, tiles.boxes):
            return layout
    return None


def _entry(first: np.ndarray, box: np.ndarray | None) -> Entry | None:
    """The entry of a mesh axis whose first two sites store the boxes; None if there is none."""
    if box is None:
        return Single()
    changed = np.flatnonzero((box != first).any(axis=1))
    if len(changed) > 1:
        return None
    return Shard(int(changed[0])) if len(changed) else Replicate()


def _chains(sites: int, strides: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every mesh of all sites with these strides, the last stride first; short meshes first."""
    open_ends: list[tuple[int, ...]] = [(1,)] if sites == 1 or 1 in strides else []
    while open_ends:
        yield from (ends for ends in open_ends if ends[-1] == sites)
        open_ends = [
            (*ends, n)
            for ends in open_ends
            for n in (*strides, sites)
            if n > ends[-1] and n % ends[-1] == 0
        ]


def _deepened(
    strides: Sequence[int], along: Mapping[int, Entry | None], boxes: np.ndarray
) -> Placement:
    """Entries with depths: of two cuts of a tensor axis the outer cut has the larger offset."""
    entries: list[Entry] = []
    for stride in strides:
        entry = along[stride]
        assert entry is not None
        if isinstance(entry, Shard):
            far = {t: boxes[t, entry.axis].tolist() for t in strides if along[t] == entry}
            outer_first = sorted(far, key=far.__getitem__, reverse=True)
            if outer_first != list(far):
                entry = Shard(entry.axis, outer_first.index(stride))
        entries.append(entry)
    return tuple(entries)


def on_mesh(layout: Layout, mesh: Mesh) -> Layout | None:
    """The same pieces at the same sites as a layout on another mesh of all sites; None if none is.

    The axes of either mesh may be parts of an axis of the other one.
    """
    entries: list[Entry] = []
    ends, far = _ends(layout.mesh), prod(mesh.shape)
    if far != ends[0] or layout.mesh.sites != mesh.sites:
        return None
    for size in mesh.shape:
        near = far // size
        inside = [
            entry
            for entry, (end, begin) in zip(layout.placed, pairwise(ends), strict=True)
            if begin < far and near < end
        ]
        if any(end % x if end > x else x % end for end in (near, far) for x in ends):
            return None
        if size > 1 and len(set(inside)) != 1:
            return None
        entries.append(inside[0] if size > 1 else Replicate())
        far = near
    return Layout(mesh, tuple(entries))


def _ends(mesh: Mesh) -> list[int]:
    """The number of sites, then the stride of each axis."""
    return list(accumulate(mesh.shape, lambda sites, size: sites // size, initial=prod(mesh.shape)))


def describe(layout: Layout, keys: Sequence[str], named: bool = False) -> str:
    """Formats a layout in the terms of PyTorch's DTensor.

    Args:
        layout: A layout over all sites.
        keys: The names of the tensor's axes.
        named: Whether the names of the mesh axes are shown, instead of r0, r1, ….

    Returns:
        Text such as `DeviceMesh(r0=2, r1=4) [Shard(i), Replicate]`. A mesh axis that cuts the
        pieces of a later one further is a `StridedShard`.
    """
    entries = named_entries(layout, keys)
    axes = [name if named else f"r{n}" for n, name in enumerate(_long_axes(layout.mesh))]
    mesh = ", ".join(f"{axis}={size}" for axis, (size, _) in zip(axes, entries, strict=True))
    return f"DeviceMesh({mesh}) [{', '.join(name for _, name in entries)}]"


def _long_axes(mesh: Mesh) -> list[str]:
    """The names of the axes that are longer than 1."""
    return [name for name, size in mesh.axes if size > 1]


def named_entries(layout: Layout, keys: Sequence[str]) -> list[tuple[int, str]]:
    """The size and the entry of each mesh axis that is longer than 1, with the names of keys."""
    axes = [(n, e) for (_, n), e in zip(layout.mesh.axes, layout.placed, strict=True) if n > 1]
    names = []
    for n, (_, entry) in enumerate(axes):
        if isinstance(entry, Shard):
            later = (e for _, e in axes[n:] if isinstance(e, Shard) and e.axis == entry.axis)
            strided = "Strided" if any(e.depth < entry.depth for e in later) else ""
            names.append(f"{strided}Shard({keys[entry.axis]})")
        else:
            names.append(str(entry))
    return [(size, name) for (size, _), name in zip(axes, names, strict=True)]


def described(
    tiles: Tiles, sites: int, extents: Mapping[str, int], mesh: Mesh | None = None
) -> str:
    """Formats the placement of tiles as `describe` does; without one, as `8 tiles at 3 sites`.

    Args:
        tiles: All tiles of a relation.
        sites: The number of sites.
        extents: The relation's keys with their extents.
        mesh: The mesh of the sites, whose axes are named where the placement follows them.
    """
    layout = tiles.layout or layout_of(tiles, sites, tuple(extents.values()))
    if layout is not None:
        followed = None if mesh is None else on_mesh(layout, mesh)
        if followed is not None:
            return describe(followed, tuple(extents), named=True)
        return describe(layout, tuple(extents))
    return counted(tiles)


def counted(tiles: Tiles) -> str:
    """Formats the number of tiles and sites, as `8 tiles at 3 sites`."""
    many, at = len(tiles.sites), len(np.unique(tiles.sites))
    return f"{many} tile{'s'[: many > 1]} at {at} site{'s'[: at > 1]}"


def ranks_of(sites: np.ndarray, count: int, ranks: int) -> np.ndarray:
    """The rank of each site: equal contiguous ranges of sites go to the ranks in order.

    Args:
        sites: int64 (…,), the numbers of the sites.
        count: The number of sites.
        ranks: The number of ranks.
    """
    return np.asarray(sites * ranks // count)


def placement(
    mesh: Mesh, axes: Sequence[Sequence[str]], partial: Mapping[str, str] | None = None
) -> Placement:
    """Creates a placement from sharding notation.

    Args:
        mesh: The mesh.
        axes: For each tensor axis the mesh axes that shard it, the outer one first.
        partial: Mesh axes along which values are partial, with the name of the reduction.

    Returns:
        The placement; unnamed mesh axes replicate.

    Raises:
        InterfaceError: A mesh axis is unknown or is named twice.
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
                hint="Shard each index over separate mesh axes.",
            )
        entries[name] = entry
    for n, names in enumerate(axes):
        if [numbers[x] for x in names] != sorted(numbers[x] for x in names):
            entries.update({name: Shard(n, depth) for depth, name in enumerate(names)})
    return tuple(entries.get(name, Replicate()) for name, _ in mesh.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The part of a tensor that each site of a mesh stores.

    Attributes:
        boxes: int64 (sites, tensor axes, 2), the box of each site, with exclusive upper bounds.
        there: bool (sites,), False at sites that store nothing.
    """

    boxes: np.ndarray
    there: np.ndarray

    @property
    def volumes(self) -> np.ndarray:
        """The number of elements at each site."""
        return np.asarray(volumes(self.boxes) * self.there)


def region(mesh: Mesh, placed: Placement, shape: Sequence[int]) -> Region:
    """The piece of a tensor at every site of a mesh.

    Args:
        mesh: The mesh.
        placed: The placement of the tensor.
        shape: The tensor's extents.
    """
    assert mesh.sites is None, "a program uses the sites from 0 in order"
    sites = prod(mesh.shape)
    at = np.unravel_index(np.arange(sites), mesh.shape) if mesh.axes else ()
    boxes = np.zeros((sites, len(shape), 2), np.int64)
    boxes[:, :, 1] = shape
    there = np.ones(sites, np.bool_)
    cuts = zip(at, placed, mesh.shape, strict=True)
    for k, entry, parts in sorted(cuts, key=lambda c: c[1].depth if isinstance(c[1], Shard) else 0):
        assert not isinstance(entry, Scattered), "a table has no boxes"
        if isinstance(entry, Single):
            there &= k == 0
        elif isinstance(entry, Shard):
            assert not entry.cyclic, "a cyclic piece is no box"
            boxes[:, entry.axis] = part(boxes[:, entry.axis], k, parts)
    return Region(boxes, there)
