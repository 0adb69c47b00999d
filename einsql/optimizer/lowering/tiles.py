"""The tiles of a physical relation: their order, keys and areas as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import Expr
from einsql.ir.layout import Tiles
from einsql.ir.tra.block_schema import over_keys


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A physical relation and the step of the program that produces its tiles.

    The areas of the tiles start at 0. The tiles may have other keys than the relation.

    Attributes:
        step: The number of the step.
        keys: int64 (keys, key dimensions), in order.
        holders: int64 (keys, parts, copies), the site of each copy; -1 where it does not exist.
        numbers: int64 (keys, parts, copies), the step's tile of each copy; -1 likewise.
    """

    step: int
    keys: np.ndarray
    holders: np.ndarray
    numbers: np.ndarray

    def at(self, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """The tile of each key at a site, int64 (n,); a site has one part of a key at most.

        Args:
            rows: int64 (n,), the positions of the keys.
            sites: int64 (n,), sites that have a copy of a part.
        """
        count = self.holders.shape[1] * self.holders.shape[2]
        holders, numbers = (a.reshape(-1, count)[rows] for a in (self.holders, self.numbers))
        slot = (holders == sites[:, None]).argmax(axis=1)
        return np.asarray(numbers[np.arange(len(rows)), slot])

    def senders(self) -> Relation:
        """The relation with equally many copies of each part, the first one if they differ."""
        if Copies.of(self.holders).repeated > 1:
            return self
        return Relation(self.step, self.keys, self.holders[..., :1], self.numbers[..., :1])

    def staying(self, holders: np.ndarray) -> Relation:
        """The relation with other holders, and the tiles of the copies that exist already.

        Args:
            holders: int64 (keys, parts, copies), with -1 for absent copies.
        """
        here = (holders[..., None] == self.holders[:, :, None]) & (holders >= 0)[..., None]
        numbers = np.take_along_axis(self.numbers, here.argmax(axis=-1), axis=2)
        return Relation(self.step, self.keys, holders, np.where(here.any(axis=-1), numbers, -1))

    def select(self, rows: np.ndarray) -> Relation:
        """The relation of some keys."""
        return Relation(self.step, self.keys[rows], self.holders[rows], self.numbers[rows])

    def renamed(self, functions: Sequence[Expr] | None) -> Relation:
        """The relation under functions of its keys; None keeps the keys."""
        if functions is None:
            return self
        columns = [over_keys(f, self.keys).astype(np.int64) for f in functions]
        if not columns:
            return Relation(self.step, self.keys[:, :0], self.holders, self.numbers)
        keys = np.stack(columns, axis=1)
        order = np.lexsort(columns[::-1])
        return Relation(self.step, keys[order], self.holders[order], self.numbers[order])


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """All copies of a relation's arrays in the order of tiles: by copy, then key, then part.

    Attributes:
        rows: int64 (copies,), the position of each one's key.
        parts: int64 (copies,), the number among the parts of the key.
        which: int64 (copies,), the number among the copies of the part.
        sites: int64 (copies,).
        repeated: The number of copies of each part, or 1 if some parts have more than others.
        numbers: int64 (keys, parts, copies), the position of each copy; -1 where it does not exist.
    """

    rows: np.ndarray
    parts: np.ndarray
    which: np.ndarray
    sites: np.ndarray
    repeated: int
    numbers: np.ndarray

    @classmethod
    def of(cls, holders: np.ndarray) -> Copies:
        """The copies with the sites `holders`, int64 (keys, parts, copies) with -1 for absent."""
        which, rows, parts = np.nonzero(np.moveaxis(holders >= 0, 2, 0))
        numbers = np.full(holders.shape, -1, np.int64)
        numbers[rows, parts, which] = np.arange(len(rows))
        most = int(which.max(initial=0)) + 1
        even = len(rows) == most * int((holders >= 0).any(axis=2).sum())
        sites = holders[rows, parts, which]
        return cls(rows, parts, which, sites, most if even else 1, numbers)

    def at(self, rows: np.ndarray, sites: np.ndarray) -> np.ndarray:
        """The position of the copy of each key at a site, int64 (n,); each site has one at most.

        Args:
            rows: int64 (n,), the positions of the keys.
            sites: int64 (n,), sites that have a copy of a part of the key.
        """
        own = np.stack([self.rows, self.sites], axis=1)
        return rows_of(own, np.stack([rows, sites], axis=1))

    def tiles(self, keys: np.ndarray, areas: np.ndarray) -> Tiles:
        """The tiles under their keys, and under their parts if there are several of a key.

        Args:
            keys: int64 (keys, key dimensions).
            areas: int64 (copies, array axes, 2).
        """
        at = keys[self.rows]
        if self.numbers.shape[1] > 1:
            at = np.concatenate([at, self.parts[:, None]], axis=1)
        return Tiles(self.sites, boxes(at, areas), self.repeated, keyed=at.shape[1])

    def of_relation(self, relation: Relation) -> np.ndarray:
        """The tile of each copy in a relation with these holders, int64 (copies,)."""
        return np.asarray(relation.numbers[self.rows, self.parts, self.which])


def boxes(keys: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """The boxes of tiles, int64 (tiles, key dimensions + array axes, 2).

    Args:
        keys: int64 (tiles, key dimensions).
        areas: int64 (tiles, array axes, 2).
    """
    return np.concatenate([np.stack([keys, keys + 1], axis=-1), areas], axis=1)


def numbered(areas: np.ndarray) -> np.ndarray:
    """The boxes of tiles that have their number as their key, int64 (tiles, 1 + array axes, 2)."""
    return boxes(np.arange(len(areas))[:, None], areas)


def from_zero(areas: np.ndarray) -> np.ndarray:
    """The areas, moved to start at 0."""
    return np.asarray(areas - areas[..., :1])


def rows_of(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The position of each wanted key among distinct keys; -1 where there is none.

    Args:
        keys: int64 (keys, key dimensions).
        wanted: int64 (n, key dimensions).
    """
    if keys.shape[1] == 0:
        return np.full(len(wanted), 0 if len(keys) else -1)
    every = np.concatenate([keys, wanted])
    codes = np.unique(every, axis=0, return_inverse=True)[1].reshape(-1)
    row = np.full(len(every), -1)
    row[codes[: len(keys)]] = np.arange(len(keys))
    return np.asarray(row[codes[len(keys) :]])


def in_rows(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """The values of each row side by side, int64 (count, most); -1 where a row has fewer.

    Args:
        values: int64 (n,).
        rows: int64 (n,), ascending.
        count: The number of rows.
    """
    sizes = np.bincount(rows, minlength=count)
    place = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[rows]
    table = np.full((count, int(sizes.max(initial=1))), -1, np.int64)
    table[rows, place] = values
    return table
