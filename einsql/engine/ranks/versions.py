"""The placements in which ranks keep one relation: its own, and those of its readers.

Of a sparse tensor, and of a tensor in the files of a database, ranks keep the tiles of its readers
only. The session keeps the tensor, so that a commit, a change and a fetch do what they do without
ranks. Ranks map the files themselves. A sparse result is collected in the session when its run
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar
from weakref import ReferenceType, ref

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.core.sparse.matrix import sparse_of
from einsql.engine.exchange import Held
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import (
    Collect,
    Command,
    FilesApartError,
    Kept,
    Mapped,
    Sent,
    Tiled,
)
from einsql.engine.ranks.shipping import Then, covers, sliced
from einsql.engine.ranks.storage import Holders
from einsql.engine.sparse.stored_elements import whole_of
from einsql.engine.step import Arrays
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import Input
from einsql.ir.layout import Tiles, ranks_of
from einsql.ir.spmd.program import Load
from einsql.storage.database.payload_fields import PayloadFiles
from einsql.storage.fields import Fields, PlacedFields, as_fields
from einsql.storage.sparse_fields import as_shown

T = TypeVar("T")

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
        return self.sites == sites and self.tiles.same_places(tiles)

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


class KeptTiles:
    """The tiles that the ranks of a cluster keep of tensors in the session, by the tensor's fields.

    Only fields whose elements stay unchanged are kept. Their tiles are released once nothing else
    refers to the fields.

    Attributes:
        files_are_apart: Whether a rank has not found the files of a database, which the session
            then reads for all ranks.
    """

    def __init__(self) -> None:
        self.files_are_apart = False
        self._known: dict[int, tuple[ReferenceType[Arrays], Versions]] = {}

    @classmethod
    def of(cls, cluster: Cluster) -> KeptTiles:
        """Returns the tiles on the ranks of a cluster."""
        if not isinstance(cluster.kept_tiles, cls):
            cluster.kept_tiles = cls()
        return cluster.kept_tiles

    def kept(
        self, fields: Arrays, tiles: Tiles, sites: int, knows: Callable[[Lease], bool]
    ) -> Kept | None:
        """Returns the handle of exactly these tiles, or None if the ranks do not have them."""
        self._release()
        known = self._known.get(id(fields))
        return None if known is None else known[1].kept(tiles, sites, knows)

    def add(self, fields: Arrays, schema: Schema, tiles: Tiles, sites: int, lease: Lease) -> None:
        """Records tiles that the ranks have stored."""
        version = Version(tiles, sites, lease, {f.name: f.name for f in schema.fields})
        if id(fields) in self._known:
            versions = self._known[id(fields)][1]
            versions.add(version)
            versions.trim()
        else:
            self._known[id(fields)] = ref(fields), Versions(version)

    def _release(self) -> None:
        """Forgets the tiles of fields that are no longer in use."""
        for key in [key for key, (fields, _) in self._known.items() if fields() is None]:
            del self._known[key]


def kept_sources(
    cluster: Cluster,
    step: Load,
    fields: Arrays,
    numbers: Sequence[Sequence[int]],
    sites: int,
    then: Then,
) -> Sequence[Tiled]:
    """Returns the source of each rank's tiles of an input that stays in this process.

    Args:
        cluster: The ranks.
        step: The step that loads the tiles.
        fields: The fields of the input, which are sparse or in the files of a database.
        numbers: For each rank the numbers of its tiles.
        sites: The number of sites.
        then: The callbacks of the run; one records that the ranks have stored the tiles.
    """
    known, few, schema = KeptTiles.of(cluster), sparse_of(fields), step.source.schema
    kept = known.kept(fields, step.tiles, sites, cluster.knows)
    if kept is not None:
        return [kept] * cluster.ranks
    files = None if known.files_are_apart else payload_files(step.source, fields)
    if files is None and (few is None or not few.is_constant):
        return [Sent(sliced(step, fields, own), None) for own in numbers]
    lease, boxes = cluster.tiles(), step.tiles.boxes
    then.done.append(partial(known.add, fields, schema, step.tiles, sites, lease))
    if files is not None:
        return [Mapped(files, {n: boxes[n] for n in own}, lease.number) for own in numbers]
    return [Sent(sliced(step, fields, own), lease.number) for own in numbers]


def with_files(cluster: Cluster, attempt: Callable[[], T]) -> T:
    """Tries a run, and once more with tiles from the session if a rank does not find its files."""
    try:
        return attempt()
    except FilesApartError:
        KeptTiles.of(cluster).files_are_apart = True
    return attempt()


def payload_files(source: Input, fields: Arrays) -> PayloadFiles | None:
    """Returns the files of a committed tensor; None for one that is not in files, or changed."""
    stored = as_fields(fields)
    if stored.directory is None or stored.layout is None:
        return None
    return PayloadFiles(stored.directory, stored.layout, source.schema, source.name)


def collected(fields: VersionedFields) -> Fields:
    """Returns a sparse result of ranks, in this process.

    Raises:
        Error: See `Cluster.call`.
    """
    cluster, tiles, keys = fields.cluster, fields.tiles, fields.schema.keys
    ranks = ranks_of(tiles.sites[: tiles.once], fields.sites, cluster.ranks)
    numbers = {int(r): np.flatnonzero(ranks == r).tolist() for r in np.unique(ranks)}
    commands: dict[int, Command] = {
        r: Collect(fields.lease.number, own) for r, own in numbers.items()
    }
    answers = zip(numbers.values(), cluster.call(commands), strict=True)
    tiles_here: Held = {n: tile for own, sent in answers for n, tile in zip(own, sent, strict=True)}
    boxes = {n: tiles.boxes[n] for n in tiles_here}
    every_key = np.array([(k.lo, k.hi) for k in keys], np.int64).reshape(-1, 2)
    return as_fields(as_shown(whole_of(tiles_here, boxes, every_key)))
