"""Placements of the pairs of a relation on a grid of sites (TRA §3).

Keys are distributed cyclically over a grid axis of g sites: value k goes to coordinate
k mod g, which requires no bound of the key. Neighbouring blocks go to different sites, so a
triangular filter keeps the load balanced. Equal keys of two relations on equal grids share a
site. If g exceeds the bound of the key, some sites store nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from einsql.errors import ProgrammingError
from einsql.ir.layout import Partial, Replicate
from einsql.ir.tra.block_schema import KeyTuple

Sites = tuple[int, ...]
"""The sites that store a copy of an array, ascending."""

Held = Mapping[KeyTuple, tuple[Sites, ...]]
"""For every key the sites with a copy of its array, or of each of its parts."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A key dimension determines the coordinate of a pair along this grid axis, cyclically.

    In contrast, `einsql.ir.layout.Shard` cuts an axis into contiguous pieces.
    """

    key: int

    def __str__(self) -> str:
        return f"Shard({self.key})"


@dataclass(frozen=True, slots=True)
class Scattered:
    """No single key dimension determines the coordinate of a pair along this grid axis.

    A local map may renumber keys, while the pairs stay at their sites.
    """

    def __str__(self) -> str:
        return "Scattered"


Entry = Shard | Replicate | Partial | Scattered


@dataclass(frozen=True, slots=True)
class Placement:
    """A grid of sites and an entry for each of its axes.

    Sites are numbered by their coordinates in the grid, the last axis fastest. Sites beyond
    the grid store nothing. A grid without axes is site 0.

    Attributes:
        sites: The number of sites.
        grid: The number of sites along each axis, at least 2.
        entries: The distribution of pairs along each axis.
    """

    sites: int
    grid: tuple[int, ...]
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len(self.grid) != len(self.entries):
            raise ProgrammingError("A placement needs an entry for each axis of its grid")
        if any(g < 2 for g in self.grid) or prod(self.grid) > self.sites:
            grid = "x".join(map(str, self.grid))
            raise ProgrammingError(f"A grid of {grid} sites does not fit {self.sites} sites")

    def __str__(self) -> str:
        if not self.grid:
            return "site 0"
        return f"{'x'.join(map(str, self.grid))} {', '.join(map(str, self.entries))}"

    @property
    def keys(self) -> frozenset[int]:
        """The paper's D: the key dimensions that are sharded."""
        return frozenset(e.key for e in self.entries if isinstance(e, Shard))

    @property
    def is_by_keys(self) -> bool:
        """True if the key alone determines the sites of a pair."""
        return all(isinstance(e, Shard | Replicate) for e in self.entries)

    def at(self, key: KeyTuple) -> Sites:
        """The sites of the pair with a key; requires `is_by_keys`."""
        assert self.is_by_keys
        fixed = [
            key[e.key] % g if isinstance(e, Shard) else None
            for e, g in zip(self.entries, self.grid, strict=True)
        ]
        return _sites_at(self.grid, tuple(fixed))


@lru_cache(maxsize=4096)
def _sites_at(grid: tuple[int, ...], fixed: tuple[int | None, ...]) -> Sites:
    """The sites with some fixed coordinates; None stands for every coordinate of an axis."""
    sites = [0]
    for g, at in zip(grid, fixed, strict=True):
        along = range(g) if at is None else (at,)
        sites = [site * g + c for site in sites for c in along]
    return tuple(sites)


def coordinates(site: int, grid: Sequence[int]) -> tuple[int, ...]:
    """The coordinates of a site in a grid."""
    digits: list[int] = []
    for g in reversed(grid):
        site, c = divmod(site, g)
        digits.append(c)
    return tuple(reversed(digits))


def everywhere(sites: int) -> Placement:
    """The placement with a copy at every site, the paper's D = ∅."""
    return Placement(sites, (sites,), (Replicate(),)) if sites > 1 else Placement(1, (), ())


def spread(sites: int, keys: Sequence[int], bounds: Sequence[int]) -> Placement:
    """The placement of a shuffle on key dimensions; without any, all pairs are at site 0.

    Args:
        sites: The number of sites.
        keys: The key dimensions, distinct.
        bounds: The number of values of each of these dimensions.

    Returns:
        The grid with the fewest keys at the busiest site, and among these the fewest sites.
        A dimension without an axis is not sharded.
    """
    grid = _grid(sites, tuple(bounds))
    axes = [(g, Shard(k)) for g, k in zip(grid, keys, strict=True) if g > 1]
    return Placement(sites, tuple(g for g, _ in axes), tuple(e for _, e in axes))


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


def law_of(
    held: Held, keys: int, merge: str | None, sites: int, grids: Iterable[tuple[int, ...]]
) -> Placement:
    """The most precise placement that describes the sites of arrays.

    Args:
        held: The sites of each array.
        keys: The number of key dimensions.
        merge: The reduction that merges parts under one key; None without parts.
        sites: The number of sites.
        grids: The grids to try.
    """
    candidates = [
        Placement(sites, grid, entries)
        for grid in (*grids, *([(sites,)] if sites > 1 else []))
        if (entries := _entries(held, grid, keys, merge)) is not None
    ]
    lost: Entry = Scattered() if merge is None else Partial(merge)
    candidates.append(Placement(sites, (sites,), (lost,)) if sites > 1 else Placement(1, (), ()))
    return min(candidates, key=lambda p: (sum(e == Scattered() for e in p.entries), prod(p.grid)))


def _entries(
    held: Held, grid: tuple[int, ...], keys: int, merge: str | None
) -> tuple[Entry, ...] | None:
    """The entry of each axis of a grid, or None if the copies do not form a sub-grid."""
    along: dict[Sites, tuple[frozenset[int], ...]] = {}
    for copies in {c for parts in held.values() for c in parts}:
        if copies[-1] >= prod(grid):
            return None
        axes = zip(*(coordinates(s, grid) for s in copies), strict=True)
        along[copies] = tuple(frozenset(a) for a in axes)
        if prod(map(len, along[copies])) != len(copies):
            return None
    spans = [(key, along[c]) for key, parts in held.items() for c in parts]
    entries: list[Entry] = []
    for n, g in enumerate(grid):
        if all(len(axes[n]) == g for _, axes in spans):
            entries.append(Replicate())
            continue
        if any(len(axes[n]) != 1 for _, axes in spans):
            return None
        by = (k for k in range(keys) if all(key[k] % g in axes[n] for key, axes in spans))
        lost: Entry = Scattered() if merge is None else Partial(merge)
        shard = next(by, None)
        entries.append(lost if shard is None else Shard(shard))
    return tuple(entries)
