"""Parts of relations on ranks: windows whose offsets are known when a statement runs.

A part may be whole along the keys of its windows, in tiles with about as many elements as the
relation. Then each rank cuts it from tiles that are whole along these keys too, so a stored
tensor is not moved, whatever the offsets. The tiles of any other part are sent from rank to rank
by each statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from einsql.core.boxes import volumes
from einsql.core.schema import Schema
from einsql.engine.ranks.messages import Kept
from einsql.ir.layout import Tiles
from einsql.storage.objects import Tensor
from einsql.storage.relation import DistantFields, Fields

if TYPE_CHECKING:
    from einsql.storage.files import FilePart

SMALL = 2**22
"""Keys of a relation of which every rank may have all."""


class RankTensor(Protocol):
    """Fields on ranks, as far as a part of them needs to know."""

    @property
    def schema(self) -> Schema:
        """Keys and fields."""

    @property
    def sites(self) -> int:
        """How many sites there are."""

    def part(self, names: Sequence[str], box: np.ndarray) -> dict[str, np.ndarray]:
        """Fetches some fields over a box of keys."""

    def version(self, tiles: Tiles, sites: int) -> Kept | None:
        """The handle of exactly these tiles if the ranks keep them."""

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...


TensorT = TypeVar("TensorT", bound=RankTensor)


class RankPart(DistantFields, Generic[TensorT]):
    """A box of fields on ranks.

    Attributes:
        whole: The fields.
        box: int64 (keys, 2), within the bounds of their keys.
        windows: Numbers of the keys that the part counts from 0, wherever the box begins.
    """

    def __init__(self, whole: TensorT, box: np.ndarray, windows: Sequence[int]) -> None:
        self.whole = whole
        self.box = box
        self.windows = windows

    def __getitem__(self, name: str) -> np.ndarray:
        return self.whole.part([name], self.box)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


class CacheableFields(dict[str, np.ndarray]):
    """Fields of a stored tensor in this process that ranks may keep.

    Attributes:
        given: The fields, as the tensor has them.
        name: The tensor, in small letters.
        schema: Its keys and fields.
    """

    def __init__(self, given: dict[str, np.ndarray], name: str, schema: Schema) -> None:
        super().__init__(given)
        self.given = given
        self.name = name
        self.schema = schema

    def within(self, box: np.ndarray, windows: Sequence[int]) -> CacheablePart:
        """A part, which is sent when it is read.

        Args:
            box: int64 (keys, 2), within the bounds of the keys.
            windows: Numbers of the keys that the part counts from 0, wherever the box begins.
        """
        return CacheablePart(self, box, windows)


class CacheablePart(DistantFields):
    """A box of such fields; `whole`, `box` and `windows` as for `RankPart`."""

    def __init__(self, whole: CacheableFields, box: np.ndarray, windows: Sequence[int]) -> None:
        self.whole = whole
        self.box = box
        self.windows = windows

    def __getitem__(self, name: str) -> np.ndarray:
        ends = zip(self.box.tolist(), self.whole.schema.keys, strict=True)
        return self.whole[name][tuple(slice(lo - k.lo, hi - k.lo) for (lo, hi), k in ends)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def lent(tensor: Tensor) -> Fields:
    """The fields of a tensor as plans for ranks read them."""
    fields = tensor.relation.fields
    if tensor.borrowed or type(fields) is not dict:
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


def cacheable_tiles(part: RankPart[Any] | CacheablePart, tiles: Tiles) -> WindowTiles | None:
    """Tiles of the whole that contain the tiles of any such part, if ranks may keep them.

    Args:
        part: A part.
        tiles: The tiles of it that are wanted.
    """
    boxes, at = tiles.boxes.copy(), list[slice | None]([None] * len(part.box))
    filled = volumes(boxes) > 0
    for n in part.windows:
        key, (lo, hi) = part.whole.schema.keys[n], part.box[n].tolist()
        if (boxes[filled, n] != (0, hi - lo)).any():
            return None
        boxes[:, n] = key.lo, key.hi
        at[n] = slice(lo - key.lo, hi - key.lo)
    wanted = Tiles(tiles.sites, boxes, tiles.copies)
    known = isinstance(part, RankPart) and part.whole.version(wanted, part.whole.sites) is not None
    if not known and int(wanted.volumes.sum()) > max(part.whole.schema.size, SMALL):
        return None
    return WindowTiles(wanted, tuple(at))


def tiles_of_whole(part: RankPart[Any] | FilePart, tiles: Tiles) -> Tiles:
    """The wanted tiles of a part by the keys of the whole."""
    boxes = tiles.boxes.copy()
    for n in part.windows:
        boxes[:, n] += part.box[n, 0]
    return Tiles(tiles.sites, boxes, tiles.copies)
