"""Where an Arrow file says its batches are: pyarrow reads one as often as the footer says.

https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format; tables of FlatBuffers begin
with the distance to what says where their fields are.
"""

from __future__ import annotations

import mmap
import struct
from typing import IO

import numpy as np

from einsql.engine.files.mapped import Found

LONGEST = 2**27
"""Bytes of a footer."""
_END = 10
"""Bytes behind the footer: its length, and the format's name."""
_DICTIONARIES, _BATCHES = 2, 3
"""Fields of the footer."""
_BLOCK = np.dtype([("start", "<i8"), ("metadata", "<i4"), ("", "<i4"), ("body", "<i8")])


def check_blocks(file: Found, data: IO[bytes] | mmap.mmap) -> None:
    """Refuses a file whose batches overlap, which could be any number of them.

    Args:
        file: For messages.
        data: Its bytes.

    Raises:
        OperationalError: It is damaged.
    """
    try:
        data.seek(max(0, file.size - _END))
        (length,) = struct.unpack("<i", data.read(4))
        start = file.size - _END - length
        if not 0 <= length <= LONGEST or start < 0:
            raise ValueError(f"its footer cannot have {length} bytes")
        data.seek(start)
        footer = data.read(length)
        for number in (_DICTIONARIES, _BATCHES):
            blocks = np.sort(_blocks(footer, number), order="start")
            ends = blocks["start"] + blocks["metadata"] + blocks["body"]
            sizes = min(blocks["metadata"].min(initial=0), blocks["body"].min(initial=0))
            inside = sizes >= 0 and ends.max(initial=0) <= start
            if not inside or (blocks["start"][1:] < ends[:-1]).any():
                raise ValueError("its batches overlap, or lie beyond it")
    except (struct.error, ValueError, OverflowError) as error:
        raise file.refusal(f"is truncated or damaged: {error}") from error


def _blocks(footer: bytes, number: int) -> np.ndarray:
    """The blocks in a field of the footer."""
    (table,) = struct.unpack_from("<I", footer, 0)
    (back,) = struct.unpack_from("<i", footer, table)
    fields = table - back
    if fields < 0:
        raise ValueError("its footer is wrong")
    (size,) = struct.unpack_from("<H", footer, fields)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", footer, fields + at) if at < size else (0,)
    if not offset:
        return np.empty(0, _BLOCK)
    (ahead,) = struct.unpack_from("<I", footer, table + offset)
    (count,) = struct.unpack_from("<I", footer, table + offset + ahead)
    return np.frombuffer(footer, _BLOCK, count, table + offset + ahead + 4)
