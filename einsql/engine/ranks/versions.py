"""The placements in which ranks keep one relation: its own, and those of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import Kept
from einsql.engine.ranks.shipping import covers
from einsql.engine.ranks.storage import Holders
from einsql.errors import OperationalError
from einsql.ir.layout import Tiles, ranks_of
from einsql.storage.fields import PlacedFields

MOST = 4
"""Greatest number of placements of a tensor that ranks keep, its own included."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """Tiles of a relation on ranks.

    Attributes:
        tiles: The sites and boxes of the tiles.
        sites: The number of sites; sites are distributed over the ranks, so it sets the rank of
            each site.
        lease: The lease that keeps the tiles on the ranks.
        names: The names of the fields on the ranks.
    """

    tiles: Tiles
    sites: int
    lease: Lease
    names: Mapping[str, str]

    def has(self, tiles: Tiles, sites: int) -> bool:
        """Whether these are exactly the given tiles."""
        return self.sites == sites and self.tiles.equals(replace(tiles, layout=self.tiles.layout))

    def holders(self) -> Holders | None:
        """Returns the holders of one copy, combined from several copies; None if tiles are lost."""
        tiles, now = self.tiles, np.array(self.lease.group.now)
        ranks = now[ranks_of(tiles.sites, self.sites, len(now))]
        there = (ranks >= 0).reshape(tiles.copies, -1)
        if not there.any(axis=0).all():
            return None
        numbers = there.argmax(axis=0) * tiles.once + np.arange(tiles.once)
        return Holders(
            handle=self.lease.number,
            names=self.names,
            numbers=numbers,
            ranks=ranks[numbers],
            boxes=tiles.boxes[numbers],
        )

    def covers(self, schema: Schema) -> bool:
        """Whether one copy of the tiles covers a relation, each key once."""
        return covers(self.tiles, schema)


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
            if version.has(tiles, sites) and knows(version.lease):
                kept = Kept(version.lease.number, version.names)
                self._latest[id(tiles)] = tiles, version, kept
                return kept
        return None

    def add(self, version: Version) -> None:
        """Registers one more placement."""
        self._all.append(version)

    def trim(self) -> None:
        """Forgets the oldest of too many placements; call it once a run that reads it is sent."""
        if len(self._all) > MOST:
            del self._all[1 : len(self._all) - MOST + 1]
            self._latest.clear()


class VersionedFields(PlacedFields):
    """Fields whose tiles are on ranks, in one placement or several."""

    title = ""

    def __init__(
        self,
        cluster: Cluster,
        lease: Lease,
        schema: Schema,
        tiles: Tiles,
        sites: int,
        names: Mapping[str, str] | None,
    ) -> None:
        self.cluster = cluster
        self.lease = lease
        self.schema = schema
        self.tiles = tiles
        self.sites = sites
        self.names = names or {f.name: f.name for f in schema.fields}
        self._versions = Versions(Version(tiles, sites, lease, self.names))
        self._waiting: list[Callable[[], None]] = []

    def settle(self) -> None:
        """Waits for the run that computes the tiles."""
        if self.pending:
            self.cluster.hear(all_runs=True)

    def when_known(self, act: Callable[[], None]) -> None:
        """Calls a function once the tiles are known to exist."""
        if self.pending:
            self._waiting.append(act)
        else:
            act()

    def known(self) -> None:
        """Records that the tiles exist."""
        self.pending = False
        while self._waiting:
            self._waiting.pop()()

    def version(self, tiles: Tiles, sites: int) -> Kept | None:
        """Returns the handle of exactly these tiles, or None if the present ranks do not have them.

        Args:
            tiles: The sites and boxes.
            sites: The number of sites; sites are distributed over the ranks, so it sets the
                rank of each site.
        """
        return self._versions.kept(tiles, sites, self.cluster.knows)

    def add(self, tiles: Tiles, sites: int, lease: Lease) -> None:
        """Registers that ranks also have the relation in other tiles, under its own field names."""
        self._versions.add(Version(tiles, sites, lease, {name: name for name in self.names}))

    def trim(self) -> None:
        """Releases tiles if ranks have too many; see `Versions.trim`."""
        self._versions.trim()

    def holders(self) -> Holders:
        """Returns the holders of one copy, combined from several copies after ranks ended.

        Raises:
            OperationalError: Some tiles are lost.
        """
        for n, version in enumerate(self._versions):
            holders = version.holders()
            if holders is not None and (n == 0 or version.covers(self.schema)):
                return holders
        what = f'The tensor "{self.title}"' if self.title else "The result"
        raise OperationalError(
            f"{what} was lost with {self.lease.group.reason}",
            hint=f"CREATE OR REPLACE TENSOR {self.title} AS … creates it again."
            if self.title
            else "Run its statement again.",
        )
