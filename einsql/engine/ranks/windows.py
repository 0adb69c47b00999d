"""Parts of relations on ranks: windows whose offsets are known when a statement runs.

A part may be whole along the keys of its windows, in tiles with about as many elements as the
relation. Then each rank cuts it from tiles that are whole along these keys too, so a stored
tensor is not moved, whatever the offsets. The tiles of any other part are sent from rank to rank
by each statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from einsql.core.boxes import volumes
from einsql.core.schema import Schema
from einsql.ir.layout import Tiles
from einsql.storage.fields import Fields, LocalFields, WindowFields
from einsql.storage.objects import Tensor

SMALL = 2**22
"""Keys of a relation of which every rank may have all."""


class CacheableFields(LocalFields):
    """Fields of a stored tensor in this process that ranks may keep.

    Attributes:
        stored: The fields, as the tensor has them.
        name: The tensor, in small letters.
        schema: Its keys and fields.
    """

    def __init__(self, stored: Fields, name: str, schema: Schema) -> None:
        super().__init__(stored)
        self.stored = stored
        self.name = name
        self.schema = schema

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> WindowFields:
        """A part, which is sent when it is read; see `Fields.window`."""
        return WindowFields(self, at, axes)


def lent(tensor: Tensor) -> Fields:
    """The fields of a tensor as plans for ranks read them."""
    fields = tensor.relation.fields
    if tensor.borrowed or not fields.is_local:
        return fields
    return CacheableFields(fields, tensor.name.lower(), tensor.relation.schema)


@dataclass(frozen=True, slots=True, eq=False)
class WindowTiles:
    """How tiles of a part are cut from tiles of the whole.

    Attributes:
        tiles: Those of the whole, at the same sites.
        at: The part of each of them along its axes; None for all of it.
    """

    tiles: Tiles
    at: tuple[slice | None, ...]


def cacheable_tiles(
    part: WindowFields, schema: Schema, tiles: Tiles, is_kept: Callable[[Tiles], bool]
) -> WindowTiles | None:
    """Tiles of the whole that contain the tiles of any such part, if ranks may keep them.

    Args:
        part: A part.
        schema: Keys and fields of the whole.
        tiles: The wanted tiles of the part.
        is_kept: True for tiles of the whole that the ranks have already.
    """
    boxes = tiles.boxes.copy()
    at = list[slice | None]([None] * len(part.at))
    filled = volumes(boxes) > 0
    for n in part.axes:
        key, span = schema.keys[n], part.at[n]
        if (boxes[filled, n] != (0, span.stop - span.start)).any():
            return None
        boxes[:, n] = key.lo, key.hi
        at[n] = span
    wanted = Tiles(tiles.sites, boxes, tiles.copies)
    if not is_kept(wanted) and int(wanted.volumes.sum()) > max(schema.size, SMALL):
        return None
    return WindowTiles(wanted, tuple(at))


def tiles_of_whole(part: WindowFields, schema: Schema | None, tiles: Tiles) -> Tiles:
    """The wanted tiles of a part by the keys of the whole.

    Args:
        part: The part.
        schema: Keys of the whole; None for a file, whose keys begin at 0.
        tiles: The wanted tiles.
    """
    boxes = tiles.boxes.copy()
    for n in part.axes:
        boxes[:, n] += part.at[n].start + (0 if schema is None else schema.keys[n].lo)
    return Tiles(tiles.sites, boxes, tiles.copies)
