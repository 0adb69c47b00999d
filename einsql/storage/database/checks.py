"""Checksums of elements: CRC-32 of units in C order, on several threads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

import numpy as np

CHUNK = 2**20
"""Bytes per checksum in format 1."""
_FEW = 4
"""Up to this number of chunks one thread computes all checksums."""


def checksums(chunks: Sequence[memoryview]) -> list[int]:
    """The CRC-32 of each chunk, on several threads: zlib releases the interpreter lock."""
    threads = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        threads = len(os.sched_getaffinity(0))
    if len(chunks) <= _FEW or threads == 1:
        return [zlib.crc32(c) for c in chunks]
    from concurrent.futures import ThreadPoolExecutor  # imported when used: few statements need it

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(zlib.crc32, chunks, chunksize=max(1, len(chunks) // (4 * threads))))


class RunningChecksums:
    """Computes checksums of bytes that arrive in pieces.

    Attributes:
        checksums: One checksum for each completed unit.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        """Starts before the first byte.

        Args:
            sizes: The bytes of each unit, in order.
        """
        self.checksums: list[int] = []
        self._sizes = iter(sizes)
        self._open = self._rest = 0

    def feed(self, data: memoryview) -> None:
        """Adds the next bytes."""
        at, complete = 0, list[memoryview]()
        while at < len(data):
            if not self._rest:
                size = next(self._sizes)
                if 0 < size <= len(data) - at:
                    complete.append(data[at : at + size])
                    at += size
                    continue
                self.checksums += checksums(complete)
                complete, self._open, self._rest = [], 0, size
            piece = data[at : at + self._rest]
            self._open = zlib.crc32(piece, self._open)
            at, self._rest = at + len(piece), self._rest - len(piece)
            if not self._rest:
                self.checksums.append(self._open)
        self.checksums += checksums(complete)

    def finish(self) -> None:
        """Adds the checksums of the units without bytes that are left."""
        self.checksums += [0 for _ in self._sizes]


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
