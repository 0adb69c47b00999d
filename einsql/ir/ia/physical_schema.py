"""The type of a physical relation: a set of (key, array, site) (TRA §3).

A layout is the law of the sites. So the matches of a local join, the sites that share a group,
and the moved bytes are known exactly before a plan runs. Several arrays under one key are
*parts*, which ⊕ will merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import prod
from typing import TypeVar

import numpy as np

from einsql.core.records import dataclass
from einsql.core.tables import Table
from einsql.errors import ProgrammingError
from einsql.ir.ia.placement import coordinate
from einsql.ir.layout import Layout, Partial, Replicate, Single
from einsql.ir.tra.block_schema import BlockSchema
from einsql.ir.tra.kernels import Merge

T = TypeVar("T")

GREATEST_CACHED = 1 << 16
"""The maximum of sites in an array that a type keeps, half a megabyte: a search has many types."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Several arrays under each key, which a reduction will merge.

    Part n is at coordinate n of the Partial axes of the mesh, the last axis fastest. If the
    layout has no Partial axis, all parts of a key are at the sites of the key.

    Attributes:
        reduction: The reduction ⊕.
        slots: The maximum of parts of a key.
        present: bool (keys, slots), False where a key lacks a part; None if no part lacks.
    """

    reduction: Merge
    slots: int
    present: Table | None = None

    @classmethod
    def of(cls, reduction: Merge, present: np.ndarray) -> Parts:
        """The parts with a table of the present ones, bool (keys, slots)."""
        complete = bool(present.all()) and len(present) > 0
        return cls(reduction, present.shape[1], None if complete else Table.of(present))

    def mask(self, keys: int) -> np.ndarray:
        """The present parts of every key, bool (keys, slots)."""
        if self.present is None:
            return np.ones((keys, self.slots), np.bool_)
        return self.present.array

    def rows(self, row: np.ndarray, keys: int) -> Parts:
        """The parts of a selection of keys.

        Args:
            row: int64 (new keys,), the position of each new key among the old keys.
            keys: The number of old keys.
        """
        return self if self.present is None else Parts.of(self.reduction, self.mask(keys)[row])


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalSchema:
    """The type of a physical relation; types compare by value.

    Attributes:
        blocks: The relation's keys and the shapes of its arrays, independent of sites.
        layout: The law of the sites of the arrays, over the key dimensions.
        sites: The number of sites.
        parts: The parts under each key; None if there is one array for each key.

    Raises:
        ProgrammingError: The mesh does not fit the sites.
    """

    blocks: BlockSchema
    layout: Layout
    sites: int
    parts: Parts | None = None
    _derived: dict[str, object] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        points = self.layout.mesh.points
        if points.max() >= self.sites or any(g < 2 for g in self.layout.mesh.shape):
            grid = "x".join(map(str, self.layout.mesh.shape))
            raise ProgrammingError(f"A grid of {grid} sites does not fit {self.sites} sites")

    def __reduce__(self) -> tuple[type[PhysicalSchema], tuple[object, ...]]:
        return PhysicalSchema, (self.blocks, self.layout, self.sites, self.parts)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PhysicalSchema) or hash(self) != hash(other):
            return False
        return (self.layout, self.sites, self.parts, self.blocks) == (
            other.layout,
            other.sites,
            other.parts,
            other.blocks,
        )

    def __hash__(self) -> int:
        if "hash" not in self._derived:
            self._derived["hash"] = hash((self.blocks, self.layout, self.sites, self.parts))
        known = self._derived["hash"]
        assert isinstance(known, int)
        return known

    def derived(self, name: str, compute: Callable[[], T]) -> T:
        """The result of a function of the type, computed once."""
        if name not in self._derived:
            self._derived[name] = compute()
        known: T = self._derived[name]  # type: ignore[assignment] # one function uses a name
        return known

    @property
    def merge(self) -> Merge | None:
        """The reduction that merges the parts under one key; None without parts."""
        return None if self.parts is None else self.parts.reduction

    @property
    def volumes(self) -> np.ndarray:
        """The number of elements of the array under each key, int64 (keys,)."""
        keys = self.blocks.key_array()
        total = np.ones(len(keys), np.int64)
        for dim in self.blocks.dims:
            total *= dim.over(keys) if dim.relative.keys else dim.extents[0]
        return total

    @property
    def width(self) -> int:
        """Bytes of an element of the record under a key."""
        return sum(f.dtype.numpy.itemsize for f in self.blocks.fields)

    @property
    def nbytes(self) -> np.ndarray:
        """Bytes of the arrays under each key, int64 (keys,)."""
        return self.volumes * self.width

    @property
    def parts_of_keys(self) -> np.ndarray:
        """The number of parts of each key, int64 (keys,)."""
        keys = self.blocks.count
        if self.parts is None:
            return np.ones(keys, np.int64)
        return np.asarray(self.parts.mask(keys).sum(axis=1))

    def coordinates(self, axis: int) -> np.ndarray:
        """The coordinate of each key along a mesh axis that is a Shard or Scattered.

        Returns:
            int64 (keys,).
        """
        at = coordinate(self.layout, axis, self.blocks.key_array(), self.blocks.bounds)
        assert at is not None
        return np.asarray(at, np.int64)

    @property
    def holders(self) -> np.ndarray:
        """The sites of every copy of every part, int64 (keys, parts, copies), read-only.

        Keys are in the order of `blocks.each_key`. The parts of a key come first; -1 stands for
        a part that a key lacks, and for a copy whose site has another copy. The copies of a part
        are ascending.
        """
        if self.layout.mesh.sites is None:
            return self.points
        return self._cached("holders", self._holders)

    def _holders(self) -> np.ndarray:
        points, mesh = self.points, self.layout.mesh
        sites = np.where(points < 0, -1, mesh.points[points])
        if mesh.repeats:
            sites[:, :, 1:][sites[:, :, 1:] == sites[:, :, :-1]] = -1
        sites.flags.writeable = False
        return sites

    @property
    def points(self) -> np.ndarray:
        """The mesh point of every copy of every part, by site; int64 as in `holders`, read-only."""
        return self._cached("points", self._points)

    def _cached(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        known = self._derived.get(name)
        if not isinstance(known, np.ndarray):
            known = compute()
            if known.size <= GREATEST_CACHED:
                self._derived[name] = known
        return known

    def _points(self) -> np.ndarray:
        mesh, placed, keys = self.layout.mesh, self.layout.placed, self.blocks.count
        point = np.zeros(keys, np.int64)
        slots, copies = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for n, (entry, size) in enumerate(zip(placed, mesh.shape, strict=True)):
            offsets = np.arange(size) * prod(mesh.shape[n + 1 :])
            if isinstance(entry, Partial):
                slots = np.add.outer(slots, offsets).reshape(-1)
            elif isinstance(entry, Replicate):
                copies = np.add.outer(copies, offsets).reshape(-1)
            elif not isinstance(entry, Single):
                point = point + offsets[self.coordinates(n)]
        if self.parts is not None and len(slots) == 1:
            slots = np.zeros(self.parts.slots, np.int64)
        points = point[:, None, None] + slots[:, None] + copies
        if mesh.sites is not None:
            by_site = np.argsort(mesh.points[points], axis=2, kind="stable")
            points = np.take_along_axis(points, by_site, axis=2)
        if self.parts is not None and self.parts.present is not None:
            present = self.parts.present.array
            order = np.argsort(~present, axis=1, kind="stable")
            points[~present] = -1
            most = max(1, int(present.sum(axis=1).max(initial=1)))
            points = np.take_along_axis(points, order[:, :most, None], axis=1)
        points.flags.writeable = False
        return np.asarray(points)
