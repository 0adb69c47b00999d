"""Stores and codecs for zarr with checks of links and of the sizes of files and chunks.

Imported only when a store is opened, as zarr is an optional dependency.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
from collections.abc import Iterable
from math import prod
from typing import Any

import pyarrow as pa
from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.registry import register_codec
from zarr.storage import LocalStore

CHECKED = ("gzip", "zstd", "blosc")


class ConfinedStore(LocalStore):
    """A local store that refuses links out of its directory, irregular files and long files."""

    most = 2**24
    """Greatest size in bytes of a file that is read completely."""

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Checks the file and reads it as LocalStore does."""
        self._check(key, byte_range)
        return await super().get(key, prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Checks the files and reads them as LocalStore does."""
        pairs = list(key_ranges)
        for key, byte_range in pairs:
            self._check(key, byte_range)
        return await super().get_partial_values(prototype, pairs)

    def _check(self, key: str, byte_range: ByteRequest | None) -> None:
        checked_file(str(self.root), key)
        try:
            size = os.stat(os.path.join(self.root, key)).st_size
        except OSError:
            return  # a missing chunk has the fill value
        if byte_range is None and size > self.most:
            raise ValueError(f"{key} has {size} bytes, more than a chunk")
        if isinstance(byte_range, RangeByteRequest) and not (
            0 <= byte_range.start <= byte_range.end <= size
        ):
            raise ValueError(f"{key} has an index that points beyond its end")


def checked_file(root: str, key: str) -> None:
    """Refuses irregular files and links out of a store; missing files are permitted.

    Raises:
        ValueError: The key is a link out of the store, or not a regular file.
    """
    store, path = os.path.realpath(root), os.path.realpath(os.path.join(root, key))
    if os.path.commonpath([store, path]) != store:
        raise ValueError(f"{key} is a link that leads out of the store")
    try:
        status = os.stat(path)
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{key} is no regular file")


def _most(spec: ArraySpec) -> int:
    """Greatest decompressed size of a chunk in bytes, with its checksums."""
    size = prod(spec.shape) * int(spec.dtype.to_native_dtype().itemsize)
    return size + size // 8 + 2**16


def _bounded(stream: Any, spec: ArraySpec) -> Buffer:
    most = _most(spec)
    chunk = stream.read(most + 1)
    if len(chunk) > most:
        raise ValueError(f"a chunk inflates to more than {most} bytes")
    return spec.prototype.buffer.from_bytes(chunk)


class CheckedGzip(GzipCodec):
    """gzip with a bound on the size of the chunk."""

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return _bounded(gzip.GzipFile(fileobj=io.BytesIO(chunk_bytes.to_bytes())), chunk_spec)


class CheckedZstd(ZstdCodec):
    """zstd with a bound on the size of the chunk."""

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        stream = pa.CompressedInputStream(pa.BufferReader(chunk_bytes.to_bytes()), "zstd")
        return _bounded(stream, chunk_spec)


class CheckedBlosc(BloscCodec):
    """Blosc with checks of the sizes in its header."""

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        packed = chunk_bytes.to_bytes()
        size, block, compressed = (int.from_bytes(packed[n : n + 4], "little") for n in (4, 8, 12))
        if len(packed) < 16 or compressed != len(packed):
            raise ValueError("a chunk of Blosc is truncated or damaged")
        if size > _most(chunk_spec) or block > max(size, 2**16):
            raise ValueError(f"a chunk inflates to {size} bytes")
        return super()._decode_sync(chunk_bytes, chunk_spec)


_CLASSES = {"gzip": CheckedGzip, "zstd": CheckedZstd, "blosc": CheckedBlosc}
for _name, _class in _CLASSES.items():
    register_codec(_name, _class)

CONFIG = {f"codecs.{name}": f"{c.__module__}.{c.__qualname__}" for name, c in _CLASSES.items()}
"""The configuration with which zarr uses these codecs."""
