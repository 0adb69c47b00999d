"""Checks the batches of an Arrow file: their offsets and decompressed sizes.

pyarrow trusts the number of batches in the footer and the declared sizes of compressed buffers.
https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format; a table of FlatBuffers begins
with the distance to its vtable, which has the offsets of the fields.
"""

from __future__ import annotations

import mmap
import struct
from typing import IO

import numpy as np

from einsql.storage.files.mapped import RegularFile

LONGEST = 2**27
"""Greatest size of a footer in bytes."""
_END = 10
"""Bytes after the footer: its length and the format's name."""
_DICTIONARIES, _BATCHES = 2, 3
"""Numbers of fields of the footer."""
_PREFIX = 8
"""Bytes of a compressed buffer with its decompressed size; -1 if it is not compressed."""
_HEADER_TYPE, _HEADER = 1, 2
"""Numbers of fields of a message."""
_DICTIONARY_BATCH, _DATA = 2, 1
"""A type of header, and the number of its field with a record batch."""
_BUFFERS, _COMPRESSION = 2, 3
"""Numbers of fields of a record batch."""
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_BLOCK = np.dtype([("start", "<i8"), ("metadata", "<i4"), ("", "<i4"), ("body", "<i8")])


def check_blocks(file: RegularFile, data: IO[bytes] | mmap.mmap) -> list[int]:
    """Refuses a file whose batches overlap, as a small file could then have any number of them.

    Args:
        file: The file, for messages.
        data: The bytes of the file.

    Returns:
        The decompressed size in bytes of each compressed batch and dictionary.

    Raises:
        OperationalError: The file is damaged.
    """
    try:
        data.seek(max(0, file.size - _END))
        (length,) = struct.unpack("<i", data.read(4))
        start = file.size - _END - length
        if not 0 <= length <= LONGEST or start < 0:
            raise ValueError(f"its footer cannot have {length} bytes")
        data.seek(start)
        footer = data.read(length)
        sizes: list[int] = []
        for number in (_DICTIONARIES, _BATCHES):
            blocks = np.sort(_blocks(footer, number), order="start")
            ends = blocks["start"] + blocks["metadata"] + blocks["body"]
            least = min(blocks["metadata"].min(initial=0), blocks["body"].min(initial=0))
            inside = least >= 0 and ends.max(initial=0) <= start
            if not inside or (blocks["start"][1:] < ends[:-1]).any():
                raise ValueError("its batches overlap, or are beyond its end")
            for begin, metadata, _, body in blocks.tolist():
                size = _inflated(data, begin, metadata, body)
                sizes += [] if size is None else [size]
    except (struct.error, ValueError, OverflowError) as error:
        raise file.refusal(f"is truncated or damaged: {error}") from error
    return sizes


def _inflated(data: IO[bytes] | mmap.mmap, start: int, metadata: int, body: int) -> int | None:
    """The decompressed size of a batch in bytes; None if it is not compressed.

    Args:
        data: The bytes of the file.
        start: The offset of the batch.
        metadata: The size of the batch's message in bytes.
        body: The size in bytes of the buffers after the message.
    """
    if metadata > LONGEST:
        raise ValueError(f"the message of a batch cannot have {metadata} bytes")
    data.seek(start)
    text = data.read(metadata)
    # In old files there is no mark before the size.
    at = 8 if text[:4] == b"\xff\xff\xff\xff" else 4
    (table,) = struct.unpack_from("<I", text, at)
    message = at + table
    kind, header = _field(text, message, _HEADER_TYPE), _table(text, message, _HEADER)
    if kind and text[kind] == _DICTIONARY_BATCH:
        header = _table(text, header, _DATA)
    if not _field(text, header, _COMPRESSION):
        return None
    total = 0
    for offset, length in _vector(text, header, _BUFFERS, _BUFFER).tolist():
        if length == 0:
            continue
        if not (0 <= offset <= body - length and length >= _PREFIX):
            raise ValueError("a buffer is beyond its batch")
        data.seek(start + metadata + offset)
        (size,) = struct.unpack("<q", data.read(_PREFIX))
        if size < -1:
            raise ValueError(f"a buffer cannot have {size} bytes")
        total += length if size == -1 else size
    return total


def _blocks(footer: bytes, number: int) -> np.ndarray:
    (table,) = struct.unpack_from("<I", footer, 0)
    return _vector(footer, table, number, _BLOCK)


def _field(text: bytes, table: int, number: int) -> int:
    """The offset of a field of a table; 0 if it is absent."""
    (back,) = struct.unpack_from("<i", text, table)
    fields = table - back
    if table <= 0 or fields < 0:
        raise ValueError("its metadata are wrong")
    (size,) = struct.unpack_from("<H", text, fields)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", text, fields + at) if at < size else (0,)
    return table + offset if offset else 0


def _table(text: bytes, table: int, number: int) -> int:
    field = _field(text, table, number)
    if not field:
        raise ValueError("its metadata are wrong")
    (ahead,) = struct.unpack_from("<I", text, field)
    return field + int(ahead)


def _vector(text: bytes, table: int, number: int, dtype: np.dtype) -> np.ndarray:
    if not _field(text, table, number):
        return np.empty(0, dtype)
    vector = _table(text, table, number)
    (count,) = struct.unpack_from("<I", text, vector)
    return np.frombuffer(text, dtype, count, vector + 4)
