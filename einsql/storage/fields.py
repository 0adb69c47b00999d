"""Fields of relations: one array for each name, in this process, in a file, or on sites."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, Schema
from einsql.ir.einsum.tile_conditions import TileRanges
from einsql.storage.array_ownership import distinct
from einsql.storage.database.layout import Layout
from einsql.storage.undo_log import Index

if TYPE_CHECKING:
    from einsql.ir.layout import Tiles


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on the keys that `Fields.count` counts.

    Attributes:
        name: A flag or an integer field.
        holds: Whether the field must exceed `above`, or must not exceed it.
        above: An integer of the field's type; a flag exceeds 0 where it is true.
    """

    name: str
    holds: bool = True
    above: int = 0


class Fields(Mapping[str, np.ndarray]):
    """The arrays of a relation by name; reading one loads it into this process's memory.

    Callers use these attributes and methods instead of tests of the class. Positions are counted
    from 0 along each axis, independently of the bounds of the keys.

    Attributes:
        is_local: Whether all arrays are in this process's memory.
        is_sparse: Whether the fields are also a `core.sparse.matrix.Sparse`.
        is_detached: Whether they stay unchanged when the inputs of their statement change.
        sites: The number of sites with the tiles; None for fields that are not placed.
        layout: The description of the fields' files; None without files.
        summands: The parts of a sum that is kept unreduced; None for other fields.
    """

    __slots__ = ()

    is_local: bool = False
    is_sparse: bool = False
    is_detached: bool = False
    sites: int | None = None
    layout: Layout | None = None
    summands: Summands | None = None

    @property
    def unmapped(self) -> frozenset[str]:
        """The names of the segments that must stay until they are mapped."""
        return frozenset()

    @property
    def directory(self) -> str | None:
        """The payload directory with the present elements; None if they are not all in files."""
        return None

    def local(self) -> Mapping[str, np.ndarray]:
        """Returns the arrays that are already in this process's memory."""
        return {}

    def nbytes(self, schema: Schema) -> int:
        """Returns the bytes of all elements; for local arrays the bytes of the stored ones.

        Args:
            schema: Keys and fields.
        """
        return schema.size * sum(f.dtype.numpy.itemsize for f in schema.fields)

    def tiles_over(self, sites: int) -> Tiles | None:
        """Returns the placement of the tiles over a number of sites; None if placed otherwise."""
        return None

    def placed_like(self, other: Fields) -> bool:
        """Whether plans for these fields are valid for the other fields.

        Both are in equal tiles over as many sites, or both are not placed and equally sparse.
        """
        return other.sites is None and self.is_sparse == other.is_sparse

    def stored_like(self, other: Fields) -> bool:
        """Whether the other fields are placed like these, or in other tiles over as many sites."""
        return self.placed_like(other)

    def count(self, *terms: Term) -> int:
        """Counts the keys that satisfy all terms, at least one; placed fields are not fetched."""
        return count_keys(self, terms)

    def all_set(self, name: str) -> bool:
        """Whether a flag is true at every key."""
        return bool(distinct(self[name]).all())

    def part(self, names: Sequence[str], box: np.ndarray) -> LocalFields:
        """Returns some fields over a box of positions; for placed fields only the box is fetched.

        Args:
            names: The fields.
            box: int64 (keys, 2).
        """
        at = tuple(slice(lo, hi) for lo, hi in box.tolist())
        return LocalFields({name: self[name][at] for name in names})

    def crop(self, box: np.ndarray) -> Fields:
        """Returns all fields over a box of positions; placed fields are not fetched.

        Args:
            box: int64 (keys, 2).
        """
        return self.part(tuple(self), box)

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> Fields:
        """Returns a part, without a copy; its position is known when a statement runs.

        Args:
            at: The slice of positions along each axis, each with a start and a stop.
            axes: The axes along which the part is cut; it is complete along the others.
        """
        index = tuple(at)
        return LocalFields({name: array[index] for name, array in self.items()})

    def verified(self, box: np.ndarray) -> Fields:
        """Returns the fields after a verification of a box; only this box may be read.

        Args:
            box: The keys, int64 (keys, 2). A payload file verifies only their chunks.

        Raises:
            OperationalError: The file is missing or truncated, or damaged in the box.
        """
        return self

    def tiles_in(self, box: np.ndarray) -> StoredTiles | None:
        """Returns the stored tiles that contain a box; None if their values have no statistics.

        Args:
            box: The keys, int64 (keys, 2).

        Raises:
            OperationalError: A file is missing or truncated, or its statistics are damaged.
        """
        return None

    def unread(self) -> Mapping[str, np.ndarray]:
        """Returns the arrays without verification: only their shapes and strides may be used."""
        return self

    def in_place(
        self, names: Sequence[str], at: Index, flat: bool, since: object
    ) -> InPlace | None:
        """Returns memory of stored fields in which cells may be overwritten, tile by tile.

        Args:
            names: The fields to write.
            at: The cells.
            flat: Whether `at` counts cells in key order instead of indexing by keys.
            since: The store's mark: memory that was allocated at an earlier one is not written.

        Returns:
            None if the change should replace the arrays.

        Raises:
            OperationalError: The file is missing or truncated, or damaged in a tile of the cells.
        """
        return None

    def without_flags(self) -> Fields:
        """Returns fields of which every key exists, without the flags."""
        return LocalFields({name: self[name] for name in self if name != PRESENT})

    def renamed(self, schema: Schema, names: Mapping[str, str], title: str) -> Fields:
        """Returns the same arrays as fields of a stored tensor.

        Args:
            schema: Keys and fields of that tensor.
            names: The present name of each field by its new name.
            title: The tensor's name, for messages.
        """
        return LocalFields({new: self[old] for new, old in names.items()})

    def constant(self) -> Fields:
        """Returns fields that stay unchanged when the inputs of their statement change.

        Only sparse fields of a caller's matrix are copied. Results share other arrays.
        """
        return self

    def rekeyed(self, schema: Schema) -> Fields:
        """Returns the same fields with other values of their keys.

        Args:
            schema: The present schema with other lower bounds of the keys.
        """
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Summands:
    """The parts of a sum, along the first key of a relation.

    Attributes:
        schema: The key that numbers the parts, the keys of the sum, and the fields.
        fields: The parts.
        mesh: The mesh of sites on which they were computed.
        axes: The mesh axes along which each site has one part.
    """

    schema: Schema
    fields: Fields
    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]

    def placed_like(self, other: Summands) -> bool:
        """Whether plans for these parts are valid for the other parts."""
        return (
            (self.mesh, self.axes, self.schema) == (other.mesh, other.axes, other.schema)
        ) and self.fields.placed_like(other.fields)


@dataclass(frozen=True, slots=True, eq=False)
class StoredTiles:
    """Stored tiles of a tensor.

    Attributes:
        boxes: The keys of each tile: int64 (tiles, keys, 2).
        ranges: The values of each field in each tile.
    """

    boxes: np.ndarray
    ranges: Mapping[str, TileRanges]


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """Fields that a change is about to write.

    Attributes:
        fields: The tensor's fields after the change, which show the same memory.
        cells: The arrays to write.
    """

    fields: Fields
    cells: Mapping[str, np.ndarray]


class LocalFields(dict[str, np.ndarray], Fields):
    """Fields with arrays in this process's memory, the most common case."""

    __slots__ = ("__weakref__",)

    is_local = True

    def local(self) -> Mapping[str, np.ndarray]:
        """All arrays."""
        return self

    def nbytes(self, schema: Schema) -> int:
        """Returns the bytes of the stored elements; shared storage counts once per field."""
        return sum(a.nbytes for a in self.values())


class RemoteFields(Fields):
    """Fields that are outside this process's memory."""

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)  # Mapping's method would read the array


class PlacedFields(RemoteFields):
    """Fields whose tiles are on sites outside this process.

    Attributes:
        tiles: The placement of the tiles.
        sites: The number of sites.
        pending: Whether the run that computes the tiles is not known to have succeeded.
    """

    is_detached = True
    tiles: Tiles
    sites: int
    pending = False

    def tiles_over(self, sites: int) -> Tiles | None:
        """See `Fields.tiles_over`."""
        return self.tiles if self.sites == sites else None

    def placed_like(self, other: Fields) -> bool:
        """See `Fields.placed_like`."""
        tiles = other.tiles_over(self.sites)
        return tiles is not None and self.tiles.same_places(tiles)

    def stored_like(self, other: Fields) -> bool:
        """See `Fields.stored_like`."""
        return other.tiles_over(self.sites) is not None

    @abstractmethod
    def moved(self, tiles: Tiles, tick: Callable[[float], None]) -> Self:
        """Returns the same fields in other tiles over as many sites.

        Args:
            tiles: The new placement.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        """


class WindowFields(RemoteFields):
    """A part of other fields, which is read or sent when a program needs it.

    Attributes:
        whole: The other fields.
        at: The positions of the part along each axis.
        axes: The axes along which it is cut.
    """

    def __init__(self, whole: Fields, at: Sequence[slice], axes: Sequence[int]) -> None:
        self.whole = whole
        self.at = tuple(at)
        self.axes = tuple(axes)

    def local(self) -> Mapping[str, np.ndarray]:
        """The local arrays from which the part is cut."""
        return self.whole.local()

    def __getitem__(self, name: str) -> np.ndarray:
        box = np.array([(s.start, s.stop) for s in self.at], np.int64).reshape(-1, 2)
        return self.whole.part([name], box)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def as_fields(arrays: Mapping[str, np.ndarray]) -> Fields:
    """Returns arrays as fields: LocalFields of a plain dictionary, fields unchanged.

    Kernels return plain dictionaries, and parameters are plain dictionaries.
    """
    if type(arrays) is not dict and isinstance(arrays, Fields):
        return arrays
    return LocalFields(arrays)


def count_keys(fields: Mapping[str, np.ndarray], terms: Sequence[Term]) -> int:
    """Counts the keys of arrays in memory that satisfy all terms, at least one."""
    if len(terms) == 1:
        (term,) = terms
        stored = distinct(fields[term.name])
        is_flag = stored.dtype == np.bool_
        count = int(np.count_nonzero(stored if is_flag else stored > term.above))
        count = count if term.holds else stored.size - count
        return count * (fields[term.name].size // stored.size) if count else 0
    met = [(fields[t.name] > t.above) == t.holds for t in terms]
    return int(np.count_nonzero(np.logical_and.reduce(met)))
