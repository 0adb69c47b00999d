"""Checksums and statistics of elements: of units in C order, on several threads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import TypeVar

import numpy as np

from einsql.core.schema import DType
from einsql.storage.database.tiles.tile_statistics import Observed, merged, nothing, observe

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 2**20
"""Bytes per checksum in format 1."""
_FEW = 4
"""Up to this number of chunks one thread computes all checksums."""


def checksums(chunks: Sequence[memoryview]) -> list[int]:
    """The CRC-32 of each chunk, on several threads: zlib releases the interpreter lock."""
    return each_on_threads(zlib.crc32, chunks)


def each_on_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of a function that releases the interpreter lock, on several threads."""
    threads = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        threads = len(os.sched_getaffinity(0))
    if len(items) <= _FEW or threads == 1:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor  # imported when used: few statements need it

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items, chunksize=max(1, len(items) // (4 * threads))))


class RunningUnits:
    """Computes checksums and statistics of the units of bytes that arrive in pieces.

    Attributes:
        checksums: The checksum of each completed unit.
        observed: The statistics of each; none without a type.
    """

    def __init__(self, sizes: Iterable[int], dtype: DType | None = None) -> None:
        """Starts before the first byte.

        Args:
            sizes: The bytes of each unit, in order.
            dtype: The type of the elements, of which statistics are computed; None for none.
        """
        self.checksums: list[int] = []
        self.observed: list[Observed] = []
        self._sizes = iter(sizes)
        self._dtype = dtype
        self._rest = self._open = 0
        self._some = None if dtype is None else nothing(dtype)

    def feed(self, data: memoryview, present: np.ndarray | None = None) -> None:
        """Adds the next bytes.

        Args:
            data: The bytes of complete elements.
            present: The flags of the existing keys of the elements; None if every key exists.
        """
        cuts, at = [], 0
        while at < len(data):
            size = self._rest if at == 0 and self._rest else next(self._sizes)
            end = min(at + size, len(data))
            cuts.append((at, end))
            self._rest = size - (end - at)
            at = end
        each = each_on_threads(lambda cut: self._unit(data, present, *cut), cuts)
        for n, (crc, some) in enumerate(each):
            if n == 0 and some is not None and self._some is not None:
                some = merged(self._some, some)
            self._open, self._some = crc, some
            if n < len(cuts) - 1 or not self._rest:
                self._complete()

    def _unit(
        self, data: memoryview, present: np.ndarray | None, lo: int, hi: int
    ) -> tuple[int, Observed | None]:
        """The checksum and the statistics of a unit, or of a part of it."""
        piece = data[lo:hi]
        crc = zlib.crc32(piece, 0 if lo else self._open)
        if self._dtype is None:
            return crc, None
        stored, width = self._dtype.numpy, self._dtype.numpy.itemsize
        flags = None if present is None else present[lo // width : hi // width]
        return crc, observe(np.frombuffer(piece, stored), self._dtype, flags)

    def _complete(self) -> None:
        self.checksums.append(self._open)
        if self._dtype is not None and self._some is not None:
            self.observed.append(self._some)
            self._some = nothing(self._dtype)
        self._open = 0

    def finish(self) -> None:
        """Adds the units without bytes that are left."""
        for _ in self._sizes:
            self._complete()


def chunks_of(shape: Sequence[int], itemsize: int, box: np.ndarray) -> np.ndarray:
    """Numbers of the chunks that contain a box of an array in C order.

    Args:
        shape: The array's shape.
        itemsize: Size of an element in bytes.
        box: int64 (axes, 2), within the shape.

    Returns:
        int64, increasing; may include further chunks where a chunk contains several rows.
    """
    if not prod(int(hi) - int(lo) for lo, hi in box):
        return np.zeros(0, np.int64)
    steps = [itemsize * prod(shape[n + 1 :]) for n in range(len(shape))]
    # Rows shorter than a chunk are verified together with the bytes between them.
    apart = sum(step >= CHUNK for step in steps)
    if all(tuple(pair) == (0, extent) for pair, extent in zip(box, shape, strict=True)):
        apart = 0
    first = sum(int(lo) * step for (lo, _), step in zip(box[apart:], steps[apart:], strict=True))
    last = sum((int(hi) - 1) * s for (_, hi), s in zip(box[apart:], steps[apart:], strict=True))
    spans = [np.arange(lo, hi) * s for (lo, hi), s in zip(box[:apart], steps[:apart], strict=True)]
    return _numbers(map(sum, product(*spans)), first, last + itemsize)


def _numbers(starts: Iterable[int], first: int, end: int) -> np.ndarray:
    numbers = [
        np.arange((int(at) + first) // CHUNK, (int(at) + end - 1) // CHUNK + 1) for at in starts
    ]
    return np.unique(np.concatenate(numbers)).astype(np.int64)
