"""The placements in which ranks keep one relation: its own, and those of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import Kept
from einsql.ir.layout import Tiles

MOST = 4
"""Greatest number of placements of a tensor that ranks keep, its own included."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """Tiles of a relation on ranks.

    Attributes:
        tiles: The sites and boxes.
        sites: The number of sites; sites are distributed over the ranks, so it sets the
            rank of each site.
        lease: The lease that keeps the tiles on the ranks.
        names: By name of a field its name on the ranks.
    """

    tiles: Tiles
    sites: int
    lease: Lease
    names: Mapping[str, str]


class Versions:
    """The placements of a relation, its own first."""

    def __init__(self, own: Version) -> None:
        self._all = [own]
        self._latest: dict[int, tuple[Tiles, Version, Kept]] = {}

    def __iter__(self) -> Iterator[Version]:
        return iter(self._all)

    def kept(self, tiles: Tiles, sites: int, knows: Callable[[Lease], bool]) -> Kept | None:
        """Returns the handle of exactly these tiles, or None if the present ranks do not have them.

        Args:
            tiles: The sites and boxes; the same object is found without a comparison.
            sites: The number of sites.
            knows: Whether the present ranks have the tiles of a lease.
        """
        latest = self._latest.get(id(tiles))
        if latest is not None and latest[0] is tiles and latest[1].sites == sites:
            if knows(latest[1].lease):
                return latest[2]
            del self._latest[id(tiles)]
        for version in self._all:
            known = version.tiles
            same = version.sites == sites and known.equals(replace(tiles, layout=known.layout))
            if same and knows(version.lease):
                kept = Kept(version.lease.number, version.names)
                self._latest[id(tiles)] = tiles, version, kept
                return kept
        return None

    def add(self, version: Version) -> None:
        """Registers one more placement."""
        self._all.append(version)

    def trim(self) -> None:
        """Forgets the oldest of too many placements; call it after the run that may read it."""
        if len(self._all) > MOST:
            del self._all[1]
            self._latest.clear()
