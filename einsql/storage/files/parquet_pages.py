"""Checks the pages of a Parquet file: their offsets and decompressed sizes.

pyarrow allocates the sizes in the headers of pages, and aborts the process on some footers when a
column's metadata are read. DuckDB invalidates its database if pages are beyond the file's end. So
this module reads footers and headers of pages:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Collection
from typing import IO

from einsql.core.records import dataclass
from einsql.storage.files.mapped import RegularFile
from einsql.storage.files.thrift_compact import Compact

_END = 8
"""Bytes after the footer: its length and the format's name."""
_AHEAD = 2**12
"""Bytes of the first read of a page's header; statistics may make it longer."""
_LONGEST = 2**24
"""Greatest size of a page's header in bytes, as in pyarrow."""

_PATH, _VALUES, _SIZE, _DATA, _DICTIONARY = 3, 5, 7, 9, 11
_FOOTER = {4: {1: {3: dict.fromkeys((_PATH, _VALUES, _SIZE, _DATA, _DICTIONARY))}}}
"""The fields with the location of the pages, for each row group and column."""
_UNCOMPRESSED, _COMPRESSED = 2, 3
_HEADER = dict.fromkeys((_UNCOMPRESSED, _COMPRESSED))
"""The fields with the sizes of a page."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a column in a row group; `start` and `size` are in bytes."""

    path: str
    start: int
    size: int


def chunks(file: RegularFile) -> list[Chunk]:
    """The pages of all columns, checked to be within the file.

    Raises:
        OperationalError: The footer is damaged, or places pages beyond the file's end.
    """
    with file.open() as data:
        data.seek(max(0, file.size - _END))
        length = int.from_bytes(data.read(4), "little")
        data.seek(max(0, file.size - _END - length))
        footer = data.read(length)
    pages = []
    try:
        for group in Compact(footer).structure(_FOOTER).get(4, []):
            for column in group.get(1, []):
                metadata = column.get(3, {})
                path = b".".join(metadata[_PATH]).decode(errors="replace")
                starts = metadata[_DATA], metadata.get(_DICTIONARY, 0)
                size = metadata[_SIZE]
                if min(*starts, size, metadata[_VALUES]) < 0 or max(*starts, size) > file.size:
                    raise file.refusal(f"is damaged: {path} is beyond its end")
                pages.append(Chunk(path, min(s for s in (*starts, file.size) if s), size))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise file.refusal(f"is truncated or damaged: its footer is wrong: {error}") from error
    return pages


def check_pages(file: RegularFile, columns: Collection[str]) -> None:
    """Refuses pages whose decompressed size does not fit into memory.

    Args:
        file: The file.
        columns: The names of the columns to be read.

    Raises:
        OperationalError: A page does not fit, or the footer is damaged.
    """
    read = [c for c in chunks(file) if c.path.partition(".")[0] in columns]
    with file.open() as data:
        for chunk in read:
            end = min(chunk.start + chunk.size, file.size)
            file.require_inflated(_largest(data, chunk.start, end))


def _largest(data: IO[bytes], start: int, end: int) -> int:
    """The size in bytes of the largest page in a range, up to a page that pyarrow refuses."""
    largest = 0
    while start < end:
        header = _header(data, start, end)
        if header is None:
            break
        length, uncompressed, compressed = header
        largest = max(largest, uncompressed)
        start += length + max(0, compressed)
    return largest


def _header(data: IO[bytes], start: int, end: int) -> tuple[int, int, int] | None:
    """The length of a page's header and the page's sizes; None without a valid header."""
    ahead = _AHEAD
    while True:
        data.seek(start)
        reader = Compact(data.read(min(ahead, end - start)))
        try:
            numbers = reader.structure(_HEADER)
            return reader.at, int(numbers[_UNCOMPRESSED]), int(numbers[_COMPRESSED])
        except IndexError:  # the header is longer
            if ahead >= min(_LONGEST, end - start):
                return None
            ahead *= 16
        except (ValueError, KeyError, TypeError):
            return None
