"""The driver's requests for tiles on ranks, and for files that ranks read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import common, extents, volumes
from einsql.core.records import dataclass
from einsql.engine.exchange import slices
from einsql.engine.ranks.call import Tick
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.messages import (
    Change,
    Command,
    Count,
    Fetch,
    Fill,
    Handle,
    Paste,
    Piece,
    Read,
    Write,
)
from einsql.engine.spmd_executor import ALONG
from einsql.ir.layout import Tiles
from einsql.storage import files
from einsql.storage.fields import Term


@dataclass(frozen=True, slots=True, eq=False)
class Holders:
    """One copy of a relation: its tiles and their ranks.

    Attributes:
        handle: The handle of the tiles on the ranks.
        names: The names of the fields on the ranks.
        numbers: int64 (tiles,), the number of each tile under that handle.
        ranks: int64 (tiles,), the rank of each tile.
        boxes: int64 (tiles, keys, 2), the keys of each tile.
    """

    handle: Handle
    names: Mapping[str, str]
    numbers: np.ndarray
    ranks: np.ndarray
    boxes: np.ndarray

    def by_rank(self) -> Mapping[int, np.ndarray]:
        """Positions of each rank's tiles."""
        return {int(r): np.flatnonzero(self.ranks == r) for r in np.unique(self.ranks)}


def fetch(
    cluster: Cluster, holders: Holders, dtypes: Mapping[str, np.dtype], box: np.ndarray
) -> dict[str, np.ndarray]:
    """Fetches fields over a box of keys from all ranks that have part of it.

    Parts that are contiguous in the result are received in place.

    Args:
        cluster: The ranks.
        holders: The rank of each tile.
        dtypes: The dtype of each field, by its name on the ranks.
        box: int64 (keys, 2).

    Raises:
        Error: See `Cluster.call`.
    """
    shape = tuple(extents(box))
    fields = {name: np.empty(shape, dtype) for name, dtype in dtypes.items()}
    shared = common(holders.boxes, box)
    some = volumes(shared) > 0
    commands: dict[int, Command] = {}
    into: dict[int, list[np.ndarray]] = {}
    for rank, tiles in holders.by_rank().items():
        meeting = tiles[some[tiles]]
        if not len(meeting):
            continue
        parts = [
            (int(holders.numbers[n]), slices(shared[n], holders.boxes[n, :, 0])) for n in meeting
        ]
        commands[rank] = Fetch(holders.handle, tuple(dtypes), parts)
        into[rank] = [a[slices(shared[n], box[:, 0])] for n in meeting for a in fields.values()]
    answers = cluster.call(commands, into=into) if commands else []
    for targets, arrays in zip(into.values(), answers, strict=True):
        for target, array in zip(targets, arrays, strict=True):
            if not np.may_share_memory(target, array):
                target[...] = array
    return fields


def count(cluster: Cluster, holders: Holders, terms: Sequence[Term]) -> int:
    """Counts the keys that satisfy all terms.

    Raises:
        Error: See `Cluster.call`.
    """
    commands: dict[int, Command] = {
        rank: Count(holders.handle, holders.numbers[tiles].tolist(), tuple(terms))
        for rank, tiles in holders.by_rank().items()
    }
    return sum(cluster.call(commands))


def reads(
    cluster: Cluster, file: files.Description, name: str, tiles: Tiles, sites: int
) -> list[Read]:
    """Returns the part of a file that each rank reads.

    Args:
        cluster: The ranks.
        file: The file.
        name: The field.
        tiles: The tiles of all ranks.
        sites: The number of sites.
    """
    ranks = tiles.sites * cluster.ranks // sites
    return [
        Read(file, name, {int(n): tiles.boxes[n] for n in np.flatnonzero(ranks == r)})
        for r in range(cluster.ranks)
    ]


def load(cluster: Cluster, handle: Handle, sources: Sequence[Read], tick: Tick) -> None:
    """Makes every rank read its tiles of a file.

    Raises:
        OperationalError: The file has changed, or a rank cannot read it.
        Error: See `Cluster.call`.
    """
    fills: dict[int, Command] = {r: Fill(handle, s) for r, s in enumerate(sources)}
    cluster.call(fills, tick)


def pieces(
    boxes: np.ndarray,
    ranks: np.ndarray,
    count: int,
    box: np.ndarray,
    values: Mapping[str, np.ndarray],
) -> list[dict[int, Piece]]:
    """Returns the new values of each rank's tiles in a box of keys.

    Args:
        boxes: int64 (tiles, keys, 2), the keys of each tile.
        ranks: int64 (tiles,), the rank of each tile.
        count: The number of ranks.
        box: int64 (keys, 2).
        values: By field, in the shape of the box.
    """
    pieces: list[dict[int, Piece]] = [{} for _ in range(count)]
    shared = common(boxes, box)
    for n in np.flatnonzero(volumes(shared) > 0).tolist():
        inside = slices(shared[n], box[:, 0])
        new = {k: a[inside] for k, a in values.items()}
        pieces[ranks[n]][n] = slices(shared[n], boxes[n, :, 0]), new
    return pieces


def change(cluster: Cluster, changes: Mapping[int, Sequence[Change]]) -> None:
    """Changes parts of tensors; ranks answer only if the changes are large.

    Args:
        cluster: The ranks.
        changes: The changes at each rank.

    Raises:
        Error: See `Cluster.call` and `Cluster.post`.
    """
    pieces_sent = (p for each in changes.values() for c in each for p in c.pieces.values())
    if sum(a.nbytes for _, values in pieces_sent for a in values.values()) > ALONG:
        cluster.call({rank: Paste(tuple(each)) for rank, each in changes.items()})
    else:
        cluster.post({rank: tuple(each) for rank, each in changes.items()})


def write(
    cluster: Cluster,
    holders: Holders,
    name: str,
    draft: files.Draft,
    axes: tuple[int, ...],
    origin: np.ndarray,
    tick: Tick,
) -> None:
    """Makes every rank write its tiles into a draft.

    Args:
        cluster: The ranks.
        holders: The rank of each tile.
        name: The name of the field on the ranks.
        draft: The file, not yet committed.
        axes: For each axis of the file the axis of the tensor.
        origin: int64 (keys,), the first key of each axis of the tensor.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Raises:
        OperationalError: A rank cannot write.
        Error: See `Cluster.call`.
    """
    boxes = (holders.boxes - origin[:, None])[:, list(axes)]
    commands: dict[int, Command] = {}
    for rank, tiles in holders.by_rank().items():
        own = {int(holders.numbers[n]): boxes[n] for n in tiles if (extents(boxes[n]) > 0).all()}
        commands[rank] = Write(handle=holders.handle, name=name, draft=draft, axes=axes, boxes=own)
    cluster.call(commands, tick)


def renamed_terms(terms: Sequence[Term], names: Mapping[str, str]) -> list[Term]:
    """Returns terms with the names of the fields on the ranks."""
    return [replace(t, name=names[t.name]) for t in terms]
