"""Tensors in files: their type and shape, and copies of their boxes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from einsql.core import boxes
from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import InterfaceError
from einsql.storage.files.mapped import Mapped, RegularFile, refusing
from einsql.storage.widened_fields import check_fits

AT_ONCE = 2**24
"""Bytes that are copied between two calls of `tick`."""

Tick = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1; raises to cancel."""

Pieces = Iterator[tuple[np.ndarray, np.ndarray]]
"""Boxes, int64 (axes, 2), with their elements."""

Box = np.ndarray | Sequence[slice]
"""int64 (axes, 2), an interval for each axis; or slices without a step."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The CRC-32 of a range of bytes from the file's header."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The type, shape and location of a tensor in a file.

    Attributes:
        member: The tensor's name, in formats with names.
        dtype: The type of the elements.
        shape: The shape of the tensor.
        boxes: int64 (tiles, axes, 2), disjoint boxes that cover the tensor.
        tiles: The array of each box, mapped if possible: it may be unaligned, in another byte
            order, or of a narrower type (see `widened_fields.wider`).
        checksum: The checksum in the file, or None.
        decode: Returns the array of a tensor that cannot be read in parts; then there are no
            tiles.
        parts: Returns the elements of a box in pieces of the format; then there are no tiles.
    """

    member: str | None
    dtype: DType
    shape: tuple[int, ...]
    boxes: np.ndarray
    tiles: tuple[np.ndarray, ...]
    checksum: Checksum | None = None
    decode: Callable[[Tick], np.ndarray] | None = None
    parts: Callable[[np.ndarray], Pieces] | None = None


def unmapped(
    member: str | None,
    dtype: DType,
    shape: tuple[int, ...],
    *,
    decode: Callable[[Tick], np.ndarray] | None = None,
    parts: Callable[[np.ndarray], Pieces] | None = None,
) -> Content:
    """A tensor that cannot be mapped; `parts` or `decode` reads its elements."""
    return Content(
        member=member,
        dtype=dtype,
        shape=shape,
        boxes=np.empty((0, 0, 2)),
        tiles=(),
        decode=decode,
        parts=parts,
    )


def no_tick(fraction: float) -> None:
    """Ignores progress and never cancels."""


def single(
    member: str | None, dtype: DType, array: np.ndarray, checksum: Checksum | None = None
) -> Content:
    """A tensor in one mapped array."""
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
        InterfaceError: The box has other axes than the tensor, a step, or wrong bounds.
    """
    if not isinstance(wanted, np.ndarray):
        if any(s.step not in (None, 1) for s in wanted) or len(wanted) != len(shape):
            raise InterfaceError(f"Slices do not fit the shape {tuple(shape)}: {wanted}")
        pairs = [s.indices(n)[:2] for s, n in zip(wanted, shape, strict=True)]
        wanted = np.array([(lo, max(lo, hi)) for lo, hi in pairs], np.int64).reshape(-1, 2)
    inside = wanted.shape == (len(shape), 2) and bool(
        np.all(wanted[:, 0] >= 0)
        and np.all(wanted[:, 0] <= wanted[:, 1])
        and np.all(wanted[:, 1] <= np.array(shape, np.int64))
    )
    if not inside:
        raise InterfaceError(f"A box does not fit the shape {tuple(shape)}: {wanted.tolist()}")
    return wanted


def slices(box: np.ndarray) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(int(lo), int(hi)) for lo, hi in box)


@dataclass(frozen=True, slots=True)
class Description:
    """A description of a tensor in a file for other processes; `files.reopen` opens it.

    Attributes:
        path: The absolute path.
        member: The name of the array, in formats with names.
        dtype: The type of the elements.
        shape: The shape of the tensor.
        size: The file's size in bytes.
        mtime_ns: The time of the file's last change in nanoseconds.
        suffix: The suffix of the format, such as ".npy".
    """

    path: str
    member: str | None
    dtype: DType
    shape: tuple[int, ...]
    size: int
    mtime_ns: int
    suffix: str


class FileTensor:
    """A tensor in an open file.

    Attributes:
        dtype: The type of the elements.
        shape: The shape of the tensor.
        nbytes: The size of all elements in memory, in bytes.
    """

    def __init__(self, file: RegularFile, content: Content, suffix: str) -> None:
        self._file = file
        self._suffix = suffix
        self._content = content
        self._decoded: np.ndarray | None = None
        self.dtype, self.shape = content.dtype, content.shape
        self.nbytes = prod(content.shape) * content.dtype.numpy.itemsize

    @property
    def description(self) -> Description:
        """The description with which another process opens the same tensor."""
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

        Only pages with elements of the box are read. A checksum is verified if the box is the
        whole tensor.

        Args:
            box: int64 (axes, 2), or a slice without a step for each axis.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.

        Raises:
            OperationalError: The file has changed since it was opened, does not fit in memory, or
                has a wrong checksum or BOOLEAN.
            InterfaceError: The box does not fit the tensor.
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
                if elements.dtype.name == "uint64":
                    check_fits(elements, where[:, 0])
                result[slices(where - wanted[:, :1])] = elements
                done += elements.size
                tick(done / max(1, result.size))
            self._check_booleans(result)
            self._file.check_current()
        return result

    def _pieces(self, wanted: np.ndarray, tick: Tick) -> Pieces:
        content = self._content
        if content.parts is not None:
            yield from content.parts(wanted)
            return
        tiles, where = content.tiles, content.boxes
        if content.decode is not None:
            tiles, where = (self._decode(tick),), whole(self.shape)[None]
        most = max(1, AT_ONCE // self.dtype.numpy.itemsize)
        shared = boxes.common(where, wanted)
        for n in np.flatnonzero((shared[..., 0] < shared[..., 1]).all(axis=-1)):
            by_columns = tiles[n].flags.f_contiguous  # Fortran order
            for part in boxes.runs(shared[n][::-1] if by_columns else shared[n], most):
                box = part[::-1] if by_columns else part
                yield box, tiles[n][slices(box - where[n][:, :1])]

    def _decode(self, tick: Tick) -> np.ndarray:
        """Decodes the array of a tensor that cannot be read in parts, once."""
        if self._decoded is None:
            assert self._content.decode is not None
            self._file.require_inflated(self.nbytes)
            self._decoded = self._content.decode(tick)
        return self._decoded

    @property
    def array(self) -> np.ndarray:
        """The tensor as from `loaded`, without progress."""
        return self.loaded(no_tick)

    def loaded(self, tick: Tick) -> np.ndarray:
        """The whole tensor, read-only; mapped if the file has its memory layout.

        A mapped array must be copied before it is returned to the user: after a truncation of the
        file, reading a missing page kills the process.

        Raises:
            OperationalError: As `read`.
        """
        content = self._content
        if content.decode is not None:
            with refusing(self._file.path):
                self._file.check_current()
                array = self._decode(tick)
                self._check_booleans(array)
                self._file.check_current()
            return array
        tile = content.tiles[0] if len(content.tiles) == 1 else None
        is_mapped = tile is not None and tile.flags.aligned and tile.dtype == self.dtype.numpy
        if tile is None or not is_mapped:
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
        """Refuses bytes other than 0 and 1, which NumPy treats inconsistently."""
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise self._file.refusal("is damaged: a BOOLEAN is neither 0 nor 1")
