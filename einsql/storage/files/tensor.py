"""A tensor in a file: what it is, and copies of its boxes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.core import boxes
from einsql.core.buffer_pool import empty
from einsql.core.schema import DType
from einsql.errors import InterfaceError
from einsql.storage.files.mapped import Found, Mapped, refusing

AT_ONCE = 2**24
"""Bytes that are copied between two ticks."""

Tick = Callable[[float], None]
"""Told the fraction that is done; raises to cancel."""

Pieces = Iterator[tuple[np.ndarray, np.ndarray]]
"""Boxes, int64 (axes, 2), and the elements in them."""

Box = np.ndarray | Sequence[slice]
"""int64 (axes, 2), an interval for each axis; or slices without a step."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The CRC-32 of a range of bytes, as the file gives it."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The place of a tensor in a file.

    Attributes:
        member: Its name, in formats that have names.
        dtype: Type of its elements.
        shape: Extents of the whole tensor.
        boxes: int64 (tiles, axes, 2); they cover the tensor and no two of them overlap.
        tiles: The array of each box, as it lies in the file: perhaps not aligned and in
            another byte order; or in memory where it cannot be mapped.
        checksum: What the format gives, else None.
        whole: Makes the one array of a tensor that can only be read as a whole; there are
            no tiles then.
        parts: Makes the elements of a box, cut as it suits the format; no tiles either.
    """

    member: str | None
    dtype: DType
    shape: tuple[int, ...]
    boxes: np.ndarray
    tiles: tuple[np.ndarray, ...]
    checksum: Checksum | None = None
    whole: Callable[[Tick], np.ndarray] | None = None
    parts: Callable[[np.ndarray], Pieces] | None = None


def unmapped(
    member: str | None,
    dtype: DType,
    shape: tuple[int, ...],
    *,
    whole: Callable[[Tick], np.ndarray] | None = None,
    parts: Callable[[np.ndarray], Pieces] | None = None,
) -> Content:
    """A tensor that cannot be mapped; `parts` or `whole` decodes its elements."""
    return Content(
        member=member,
        dtype=dtype,
        shape=shape,
        boxes=np.empty((0, 0, 2)),
        tiles=(),
        whole=whole,
        parts=parts,
    )


def no_tick(fraction: float) -> None:
    """Ignores progress and never cancels."""


def single(
    member: str | None, dtype: DType, array: np.ndarray, checksum: Checksum | None = None
) -> Content:
    """A tensor that is one array."""
    return Content(
        member=member,
        dtype=dtype,
        shape=array.shape,
        boxes=whole(array.shape)[None],
        tiles=(array,),
        checksum=checksum,
    )


def whole(shape: Sequence[int]) -> np.ndarray:
    """The box of all elements."""
    return np.array([(0, n) for n in shape], np.int64).reshape(-1, 2)


def box_of(shape: Sequence[int], wanted: Box) -> np.ndarray:
    """A box as int64 (axes, 2).

    Raises:
        InterfaceError: It has other axes than the tensor, a step, or lies beyond it.
    """
    if not isinstance(wanted, np.ndarray):
        if any(s.step not in (None, 1) for s in wanted) or len(wanted) != len(shape):
            raise InterfaceError(f"No slices of a tensor of shape {tuple(shape)}: {wanted}")
        pairs = [s.indices(n)[:2] for s, n in zip(wanted, shape, strict=True)]
        wanted = np.array([(lo, max(lo, hi)) for lo, hi in pairs], np.int64).reshape(-1, 2)
    inside = wanted.shape == (len(shape), 2) and bool(
        np.all(wanted[:, 0] >= 0)
        and np.all(wanted[:, 0] <= wanted[:, 1])
        and np.all(wanted[:, 1] <= np.array(shape, np.int64))
    )
    if not inside:
        raise InterfaceError(f"No box of a tensor of shape {tuple(shape)}: {wanted.tolist()}")
    return wanted


def slices(box: np.ndarray) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(int(lo), int(hi)) for lo, hi in box)


@dataclass(frozen=True, slots=True)
class Description:
    """A description of a tensor in a file for other processes; `files.reopen` opens it.

    Attributes:
        path: Absolute.
        member: Name of the array, in formats that have names.
        dtype: Type of its elements.
        shape: Extents of the whole tensor.
        size: Bytes in the file.
        mtime_ns: When the file was last changed, in nanoseconds.
        suffix: Of the format, as in ".npy".
    """

    path: str
    member: str | None
    dtype: DType
    shape: tuple[int, ...]
    size: int
    mtime_ns: int
    suffix: str


class FileTensor:
    """A tensor in an open file."""

    def __init__(self, file: Found, content: Content, suffix: str) -> None:
        self._file = file
        self._suffix = suffix
        self._content = content
        self._made: np.ndarray | None = None

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self._content.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the whole tensor."""
        return self._content.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory."""
        return prod(self.shape) * self.dtype.numpy.itemsize

    @property
    def description(self) -> Description:
        """The description by which another process opens the same tensor."""
        content, file = self._content, self._file
        return Description(
            path=file.absolute,
            member=content.member,
            dtype=self.dtype,
            shape=self.shape,
            size=file.size,
            mtime_ns=file.mtime_ns,
            suffix=self._suffix,
        )

    def read(self, box: Box, tick: Tick = no_tick) -> np.ndarray:
        """A copy of a box: aligned, contiguous, in the machine's byte order.

        Only pages with elements of the box are read. What a format's checksum covers is
        checked when everything is read.

        Args:
            box: int64 (axes, 2), or a slice without a step for each axis.
            tick: Told the fraction done; raises to cancel.

        Raises:
            OperationalError: The file has changed since it was opened, does not fit in
                memory, or holds what is no value of the type.
            InterfaceError: The tensor has no such box.
        """
        wanted = box_of(self.shape, box)
        with refusing(self._file.path):
            self._file.check_current()
            if np.array_equal(wanted, whole(self.shape)):
                self._check_sum(tick)
            shape = tuple(boxes.extents(wanted).tolist())
            self._file.require(prod(shape) * self.dtype.numpy.itemsize)
            result = empty(shape, self.dtype.numpy)
            done = 0
            for where, elements in self._pieces(wanted, tick):
                result[slices(where - wanted[:, :1])] = elements
                done += elements.size
                tick(done / max(1, result.size))
            self._check_booleans(result)
            self._file.check_current()
        return result

    def _pieces(self, wanted: np.ndarray, tick: Tick) -> Pieces:
        """The elements of a box, a part at a time."""
        content = self._content
        if content.parts is not None:
            yield from content.parts(wanted)
            return
        tiles, where = content.tiles, content.boxes
        if content.whole is not None:
            tiles, where = (self._whole(tick),), whole(self.shape)[None]
        most = max(1, AT_ONCE // self.dtype.numpy.itemsize)
        shared = boxes.common(where, wanted)
        for n in np.flatnonzero((shared[..., 0] < shared[..., 1]).all(axis=-1)):
            turned = tiles[n].flags.f_contiguous  # Fortran order: copied by columns
            for part in boxes.runs(shared[n][::-1] if turned else shared[n], most):
                box = part[::-1] if turned else part
                yield box, tiles[n][slices(box - where[n][:, :1])]

    def _whole(self, tick: Tick) -> np.ndarray:
        """The array of a tensor that is read as a whole, made once."""
        if self._made is None:
            assert self._content.whole is not None
            self._file.require_inflated(self.nbytes)
            self._made = self._content.whole(tick)
        return self._made

    @property
    def array(self) -> np.ndarray:
        """As `loaded`, without progress."""
        return self.loaded(no_tick)

    def loaded(self, tick: Tick) -> np.ndarray:
        """The whole tensor, read-only; mapped if the file has its memory layout.

        Whoever hands out what is computed from it copies what is still mapped: reading a
        page that the file no longer has kills the process.

        Raises:
            OperationalError: As `read`.
        """
        content = self._content
        if content.whole is not None:
            with refusing(self._file.path):
                self._file.check_current()
                array = self._whole(tick)
                self._check_booleans(array)
                self._file.check_current()
            return array
        tile = content.tiles[0] if len(content.tiles) == 1 else None
        if tile is None or not (tile.flags.aligned and tile.dtype.isnative):
            with self._file.lending(self.nbytes):
                return self.read(whole(self.shape), tick)
        with refusing(self._file.path):
            self._file.check_current()
            self._check_sum(tick)
            self._check_booleans(tile)
        return tile

    def _check_sum(self, tick: Tick) -> None:
        wanted = self._content.checksum
        if wanted is None:
            return
        assert isinstance(self._file, Mapped)
        crc, end = 0, wanted.offset + wanted.size
        with memoryview(self._file.memory) as memory:
            for start in range(wanted.offset, end, AT_ONCE):
                tick(0.0)
                crc = zlib.crc32(memory[start : min(end, start + AT_ONCE)], crc)
        if crc != wanted.crc:
            raise self._file.refusal("is damaged: its checksum is wrong")

    def _check_booleans(self, array: np.ndarray) -> None:
        """Other bytes than 0 and 1 would be true at one place and false at another."""
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise self._file.refusal("is damaged: a BOOLEAN is neither 0 nor 1")
