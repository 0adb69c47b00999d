"""Fields of relations: one array for each name, in this process, in a file, or on sites."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from einsql.core.schema import Schema
from einsql.ir.layout import Tiles
from einsql.storage.array_ownership import distinct
from einsql.storage.database.layout import Layout


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on keys that are counted.

    Attributes:
        name: A flag, or a field without negative values.
        holds: Whether it is to exceed `above`, or not to.
        above: A whole number; a flag exceeds 0 where it is true.
    """

    name: str
    holds: bool = True
    above: int = 0


class Fields(Mapping[str, np.ndarray]):
    """The arrays of a relation by name; reading one brings it into this process's memory.

    Callers ask these attributes and methods, never the class. Positions count from 0 along
    each axis, whatever the bounds of the keys.

    Attributes:
        is_local: Whether all arrays are in this process's memory.
        is_sparse: Whether the fields are a `core.sparse_matrix.Sparse`, too.
        is_detached: Whether they stay unchanged when the inputs of their statement change.
        sites: The number of sites that the tiles are on; None if they are on no sites.
        layout: The description of the payload file that has the fields; None without a file.
    """

    __slots__ = ()

    is_local: bool = False
    is_sparse: bool = False
    is_detached: bool = False
    sites: int | None = None
    layout: Layout | None = None

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays that are in this process's memory already."""
        return {}

    def nbytes(self, schema: Schema) -> int:
        """Bytes of all elements; of local arrays those that are stored.

        Args:
            schema: Keys and fields.
        """
        return schema.size * sum(f.dtype.numpy.itemsize for f in schema.fields)

    def tiles_over(self, sites: int) -> Tiles | None:
        """The placement of the tiles over so many sites; None if they are placed otherwise."""
        return None

    def placed_like(self, other: Fields) -> bool:
        """True if plans over these fields are plans over the others.

        Both are in equal tiles over as many sites, or both on no sites and both sparse or not.
        """
        return other.sites is None and self.is_sparse == other.is_sparse

    def count(self, *terms: Term) -> int:
        """How many keys meet all terms, at least one; placed fields are not fetched."""
        return count_keys(self, terms)

    def part(self, names: Sequence[str], box: np.ndarray) -> LocalFields:
        """Some fields over a box of positions; of placed fields nothing else is fetched.

        Args:
            names: The fields.
            box: int64 (keys, 2).
        """
        at = tuple(slice(lo, hi) for lo, hi in box.tolist())
        return LocalFields({name: self[name][at] for name in names})

    def crop(self, box: np.ndarray) -> Fields:
        """All fields over a box of positions; placed fields are not fetched.

        Args:
            box: int64 (keys, 2).
        """
        return self.part(tuple(self), box)

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> Fields:
        """A part whose position is known when a statement runs, without a copy.

        Args:
            at: Positions along each axis, each with a start and a stop.
            axes: The axes that the part is cut along; the others are whole.
        """
        index = tuple(at)
        return LocalFields({name: array[index] for name, array in self.items()})

    def verified(self, box: np.ndarray) -> Fields:
        """The fields, of which only a box may be read; a payload file verifies no more of it.

        Args:
            box: Keys, int64 (keys, 2).

        Raises:
            OperationalError: The file is missing, truncated or damaged there.
        """
        return self

    def renamed(self, schema: Schema, names: Mapping[str, str], title: str) -> Fields:
        """The same arrays as fields of a stored tensor.

        Args:
            schema: Keys and fields of that tensor.
            names: The present name of each field by its new name.
            title: The tensor's name, for messages.
        """
        return LocalFields({new: self[old] for new, old in names.items()})

    def rekeyed(self, schema: Schema) -> Fields:
        """The same fields by other values of their keys.

        Args:
            schema: The present one with other lower bounds of the keys.
        """
        return self


class LocalFields(dict[str, np.ndarray], Fields):
    """Arrays in this process's memory; most fields are."""

    __slots__ = ()

    is_local = True

    def local(self) -> Mapping[str, np.ndarray]:
        """All arrays."""
        return self

    def nbytes(self, schema: Schema) -> int:
        """Bytes of the elements that are stored, shared storage counted once per field."""
        return sum(a.nbytes for a in self.values())


class RemoteFields(Fields):
    """Fields that are not in this process's memory."""

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)  # Mapping's reads the array


class PlacedFields(RemoteFields):
    """Fields whose tiles are on sites outside this process.

    Attributes:
        tiles: The placement of the tiles.
        sites: The number of sites.
    """

    is_detached = True
    tiles: Tiles
    sites: int

    def tiles_over(self, sites: int) -> Tiles | None:
        """See `Fields.tiles_over`."""
        return self.tiles if self.sites == sites else None

    def placed_like(self, other: Fields) -> bool:
        """See `Fields.placed_like`."""
        tiles = other.tiles_over(self.sites)
        return tiles is not None and self.tiles.equals(tiles)

    @abstractmethod
    def moved(self, tiles: Tiles, tick: Callable[[float], None]) -> Self:
        """The same fields in other tiles over as many sites.

        Args:
            tiles: The wanted placement.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        """


class WindowFields(RemoteFields):
    """A part of other fields, which is read or sent when a program needs it.

    Attributes:
        whole: The other fields.
        at: The positions of the part along each axis.
        axes: The axes that it is cut along.
    """

    def __init__(self, whole: Fields, at: Sequence[slice], axes: Sequence[int]) -> None:
        self.whole = whole
        self.at = tuple(at)
        self.axes = tuple(axes)

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays that the part is cut from, as far as they are in memory."""
        return self.whole.local()

    def __getitem__(self, name: str) -> np.ndarray:
        box = np.array([(s.start, s.stop) for s in self.at], np.int64).reshape(-1, 2)
        return self.whole.part([name], box)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def as_fields(arrays: Mapping[str, np.ndarray]) -> Fields:
    """Arrays as fields: LocalFields of a plain dictionary, fields as they are.

    Kernels return plain dictionaries, and parameters are plain dictionaries, too.
    """
    if type(arrays) is not dict and isinstance(arrays, Fields):
        return arrays
    return LocalFields(arrays)


def count_keys(fields: Mapping[str, np.ndarray], terms: Sequence[Term]) -> int:
    """How many keys of arrays in memory meet all terms, at least one."""
    if len(terms) == 1:
        (term,) = terms
        stored = distinct(fields[term.name])
        count = int(np.count_nonzero(stored if term.above == 0 else stored > term.above))
        count = count if term.holds else stored.size - count
        return count * (fields[term.name].size // stored.size) if count else 0
    met = [(fields[t.name] > t.above) == t.holds for t in terms]
    return int(np.count_nonzero(np.logical_and.reduce(met)))
