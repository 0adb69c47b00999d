"""Checks the pages of a Parquet file: their offsets and decompressed sizes.

pyarrow allocates what a page's header says, ends the process at some footers when it is asked for
a column's metadata, and DuckDB gives up its whole database at pages beyond the file. So both are
read here: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import IO

from einsql.storage.files.mapped import Found
from einsql.storage.files.thrift_compact import Compact

_END = 8
"""Bytes behind the footer: its length, and the format's name."""
_AHEAD = 2**12
"""Bytes that are read for a page's header; statistics may make it longer."""
_LONGEST = 2**24
"""Bytes of such a header, as for pyarrow."""

_PATH, _VALUES, _SIZE, _DATA, _DICTIONARY = 3, 5, 7, 9, 11
_FOOTER = {4: {1: {3: dict.fromkeys((_PATH, _VALUES, _SIZE, _DATA, _DICTIONARY))}}}
"""Of each row group and each of its columns: where its pages are."""
_UNCOMPRESSED, _COMPRESSED = 2, 3
_HEADER = dict.fromkeys((_UNCOMPRESSED, _COMPRESSED))
"""Of each page: its sizes."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a column in a row group; `start` and `size` are bytes."""

    path: str
    start: int
    size: int


def chunks(file: Found) -> list[Chunk]:
    """The pages of all columns, none of them beyond the file.

    Raises:
        OperationalError: The footer is damaged, or says that they are beyond the file.
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
                facts = column.get(3, {})
                path = b".".join(facts[_PATH]).decode(errors="replace")
                starts = facts[_DATA], facts.get(_DICTIONARY, 0)
                size = facts[_SIZE]
                if min(*starts, size, facts[_VALUES]) < 0 or max(*starts, size) > file.size:
                    raise file.refusal(f"is damaged: {path} lies beyond it")
                pages.append(Chunk(path, min(s for s in (*starts, file.size) if s), size))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise file.refusal(f"is truncated or damaged: its footer is wrong: {error}") from error
    return pages


def check_pages(file: Found, columns: Collection[str]) -> None:
    """Refuses pages that do not fit into memory once they are decompressed.

    Args:
        file: The file.
        columns: Which ones will be read.

    Raises:
        OperationalError: One does not fit, or the footer is damaged.
    """
    wanted = [c for c in chunks(file) if c.path.partition(".")[0] in columns]
    with file.open() as data:
        for chunk in wanted:
            end = min(chunk.start + chunk.size, file.size)
            file.require_inflated(_largest(data, chunk.start, end))


def _largest(data: IO[bytes], start: int, end: int) -> int:
    """Bytes of the largest page in a range of a file, up to where pyarrow would fail."""
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
    """The length of a page's header, and the page's sizes; None if there is no header."""
    ahead = _AHEAD
    while True:
        data.seek(start)
        reader = Compact(data.read(min(ahead, end - start)))
        try:
            numbers = reader.structure(_HEADER)
            return reader.at, int(numbers[_UNCOMPRESSED]), int(numbers[_COMPRESSED])
        except IndexError:  # it goes on
            if ahead >= min(_LONGEST, end - start):
                return None
            ahead *= 16
        except (ValueError, KeyError, TypeError):
            return None
