"""NumPy's .npz format: a ZIP archive of .npy files."""

from __future__ import annotations

import io
import zipfile
import zlib
from math import prod

import numpy as np

from einsql.errors import Error
from einsql.storage.files import npy
from einsql.storage.files.mapped import Mapped, pick
from einsql.storage.files.tensor import AT_ONCE, Checksum, Content, Tick, single, unmapped
from einsql.storage.widened_fields import widened, wider

MOST_DEFLATED = 1100
"""Bound of the ratio of deflate, which decodes two bits to at most 258 bytes."""
LONGEST = 2**22
"""Greatest size in bytes of an archive's directory, which Python reads entry by entry."""
_LOCAL = 30
"""Bytes of the fixed part of a local header, which ends with the lengths of the other parts."""


def find(file: Mapped, member: str | None) -> Content:
    """Finds an array of an .npz archive; a compressed array is decompressed completely.

    Raises:
        OperationalError: The archive is damaged or has no such member.
    """
    if file.memory[:2] != b"PK":
        raise file.refusal("is no .npz file: its first bytes are wrong")
    try:
        with _Short(file.path) as source, zipfile.ZipFile(source) as archive:
            names = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
            if len(names) < len(archive.infolist()):
                raise file.refusal("is damaged: it has two arrays of one name")
            name = pick(file, list(names), member)
            return _member(file, archive, name, names[name])
    except (Error, MemoryError):
        raise
    except Exception as error:  # zipfile may raise any exception on a damaged archive
        raise file.refusal(f"is no .npz archive, or a damaged one: {error}") from error


class _Short(io.FileIO):
    """A file that refuses long reads, as of a directory with too many entries."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads as FileIO does.

        Raises:
            ValueError: The size is that of a directory with too many entries.
        """
        if size is not None and size > LONGEST:
            raise ValueError(f"its directory has {size} bytes, more than {LONGEST}")
        return super().read(-1 if size is None else size) or b""


def _member(file: Mapped, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> Content:
    if not info.filename.endswith(".npy"):
        raise file.refusal("holds a file that is no array")
    with archive.open(info) as text:
        dtype, shape, fortran = npy.header(file, text)
        head = text.tell()
        if info.compress_type == zipfile.ZIP_STORED:
            start = _data(file, info.header_offset)
            end = start + info.compress_size
            kind, array = npy.placed(file, start + head, end, dtype, shape, fortran)
            checksum = Checksum(start, info.compress_size, info.CRC)
            return single(name, kind, array, checksum)
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise file.refusal(f"is damaged: {name} is compressed in a way that NumPy never uses")
        kind = file.tensor_type(dtype)
        file.check_shape(shape)
        size = prod(shape) * dtype.itemsize
        most = MOST_DEFLATED * (min(info.compress_size, file.size) + 64)
        if info.file_size != head + size or size > most:
            raise file.refusal(f"is truncated or damaged: {name} has not the size of its shape")

    def inflated(tick: Tick) -> np.ndarray:
        elements = _inflated(file, info, head, size, tick)
        array = np.ndarray(shape, dtype, elements, order="F" if fortran else "C")
        return (
            array.astype(kind.numpy, copy=False) if wider(dtype) is None else widened(array, kind)
        )

    return unmapped(name, kind, shape, decode=inflated)


def _inflated(file: Mapped, info: zipfile.ZipInfo, head: int, size: int, tick: Tick) -> bytearray:
    """The elements of a compressed member, bounded by the declared size."""
    elements = bytearray(size)
    done = 0
    try:
        with zipfile.ZipFile(file.path) as archive, archive.open(info) as text:
            text.read(head)
            with memoryview(elements) as room:
                while part := text.read(AT_ONCE):  # the last read verifies the checksum
                    if done + len(part) > size:
                        break
                    room[done : done + len(part)] = part
                    done += len(part)
                    tick(done / max(1, size))
            over = bool(part)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise file.refusal(f"is truncated or damaged: {error}") from error
    if over or done != size:
        raise file.refusal(
            f"is truncated or damaged: {info.filename} has not the size of its shape"
        )
    return elements


def _data(file: Mapped, offset: int) -> int:
    """The offset of a member's bytes after its local header, which zipfile has checked."""
    lengths = file.memory[offset + _LOCAL - 4 : offset + _LOCAL]
    return offset + _LOCAL + sum(int.from_bytes(lengths[n : n + 2], "little") for n in (0, 2))
