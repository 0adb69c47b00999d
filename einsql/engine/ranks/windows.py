"""Parts of relations on ranks: windows whose offsets are known when a statement runs.

A part may contain all keys of its windows, in tiles with about as many elements as the relation.
Each rank then cuts the part from tiles that contain all these keys, so no stored tensor moves,
for any offsets. For other parts each statement sends tiles from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import ReferenceType, ref

from einsql.core.boxes import volumes
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.engine.ranks.messages import Slice
from einsql.engine.ranks.versions import VersionedFields
from einsql.ir.layout import Tiles
from einsql.ir.tile_copies import keepable
from einsql.storage.fields import Fields, LocalFields, WindowFields
from einsql.storage.objects import Tensor

MOST_PARTS = 2**12
"""Greatest number of parts of tensors whose sources a program keeps for its next runs."""


class CacheableFields(LocalFields):
    """Fields of a stored tensor in this process that ranks may cache.

    Attributes:
        stored: The fields of the tensor.
        name: The tensor's lower-case name.
        schema: The tensor's keys and fields.
    """

    def __init__(self, stored: Fields, name: str, schema: Schema) -> None:
        super().__init__(stored)
        self.stored = stored
        self.name = name
        self.schema = schema

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> WindowFields:
        """Returns a part, which is sent when it is read; see `Fields.window`."""
        return WindowFields(self, at, axes)


def lent(tensor: Tensor) -> Fields:
    """Returns the fields of a tensor for plans on ranks."""
    fields = tensor.relation.fields
    if tensor.borrowed or not fields.is_local:
        return fields
    return CacheableFields(fields, tensor.name.lower(), tensor.relation.schema)


@dataclass(frozen=True, slots=True, eq=False)
class WindowTiles:
    """The cut of a part's tiles from tiles of the relation.

    Attributes:
        tiles: The tiles of the relation, at the same sites.
        at: The part of each tile along its axes.
    """

    tiles: Tiles
    at: tuple[slice, ...]


def cacheable_tiles(
    part: WindowFields, schema: Schema, tiles: Tiles, is_kept: Callable[[Tiles], bool]
) -> WindowTiles | None:
    """Returns tiles of the relation that contain the tiles of any such part, if cacheable.

    Args:
        part: The part.
        schema: The keys and fields of the relation.
        tiles: The tiles of the part.
        is_kept: Returns whether the ranks already have given tiles of the relation.
    """
    boxes = tiles.boxes.copy()
    at = [slice(None)] * len(part.at)
    filled = volumes(boxes) > 0
    for n in part.axes:
        key, span = schema.keys[n], part.at[n]
        if (boxes[filled, n] != (0, span.stop - span.start)).any():
            return None
        boxes[:, n] = key.lo, key.hi
        at[n] = span
    wanted = Tiles(tiles.sites, boxes, tiles.copies)
    if not is_kept(wanted) and int(wanted.volumes.sum()) > keepable(schema.size):
        return None
    return WindowTiles(wanted, tuple(at))


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a part of a tensor at all ranks.

    Attributes:
        tensor: The tensor.
        wanted: The tiles of the part, which the entry keeps alive for its key.
        tiles: The tiles of the tensor that contain them.
        sources: The source at each rank.
    """

    tensor: ReferenceType[VersionedFields]
    wanted: Tiles
    tiles: Tiles
    sources: Sequence[Slice]


class Windows:
    """The tiles of windows by the tiles of their parts, which are the same objects in each run."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Tiles, Schema, WindowTiles]] = {}
        self._sources: dict[tuple[object, ...], _Sources] = {}

    def sources(
        self, part: WindowFields, tensor: VersionedFields, tiles: Tiles, sites: int
    ) -> Sequence[Slice] | None:
        """Returns the sources of the same part in an earlier run, or None if they do not apply.

        Args:
            part: The part.
            tensor: The tensor.
            tiles: The tiles of the part.
            sites: The number of sites.
        """
        known = self._sources.get(_key(part, tensor, tiles))
        if known is None or known.tensor() is not tensor:
            return None
        same = tensor.version(known.tiles, sites) is known.sources[0].source
        return known.sources if same else None

    def keep(
        self,
        part: WindowFields,
        tensor: VersionedFields,
        tiles: Tiles,
        kept: Tiles,
        sources: Sequence[Slice],
    ) -> None:
        """Registers the sources of a part, which are tiles that ranks keep."""
        if len(self._sources) >= MOST_PARTS:
            self._sources.clear()
        self._sources[_key(part, tensor, tiles)] = _Sources(ref(tensor), tiles, kept, sources)

    def of(
        self, part: WindowFields, schema: Schema, tiles: Tiles, is_kept: Callable[[Tiles], bool]
    ) -> WindowTiles | None:
        """As `cacheable_tiles`; the tiles of windows of one extent are the same object."""
        extents = tuple(part.at[n].stop - part.at[n].start for n in part.axes)
        key = id(tiles), id(schema), *part.axes, *extents  # the values keep both objects
        known = self._known.get(key)
        if known is None:
            cut = cacheable_tiles(part, schema, tiles, is_kept)
            if cut is not None:
                self._known[key] = tiles, schema, cut
            return cut
        at = tuple(s if n in part.axes else slice(None) for n, s in enumerate(part.at))
        return WindowTiles(known[2].tiles, at)


def _key(part: WindowFields, tensor: VersionedFields, tiles: Tiles) -> tuple[object, ...]:
    at = part.at
    return id(tiles), id(tensor), part.axes, *[(at[n].start, at[n].stop) for n in part.axes]


def tiles_of_whole(part: WindowFields, schema: Schema | None, tiles: Tiles) -> Tiles:
    """Returns the tiles of a part with the keys of the relation.

    Args:
        part: The part.
        schema: The keys of the relation; None for a file, whose keys begin at 0.
        tiles: The tiles of the part.
    """
    boxes = tiles.boxes.copy()
    for n in part.axes:
        boxes[:, n] += part.at[n].start + (0 if schema is None else schema.keys[n].lo)
    return Tiles(tiles.sites, boxes, tiles.copies)
