"""How large the pages of a Parquet column are once they are decompressed.

pyarrow allocates what a page's header says and has no limit for it. Headers are structures of
Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md,
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from einsql.engine.files.mapped import Found

if TYPE_CHECKING:
    from pyarrow import parquet as pq

_AHEAD = 2**12
"""Bytes that are read for a header; statistics may make it longer."""
_LONGEST = 2**24
"""Bytes of a header, as for pyarrow."""
_DEEPEST = 8
_UNCOMPRESSED, _COMPRESSED = 2, 3
"""Fields of a header."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def check_pages(file: Found, metadata: pq.FileMetaData, names: Iterable[str]) -> None:
    """Refuses pages that do not fit into memory once they are decompressed.

    Args:
        file: The file.
        metadata: Its footer.
        names: Of the columns that will be read, as the footer's paths begin.

    Raises:
        OperationalError: One does not fit.
    """
    wanted = set(names)
    with file.open() as data:
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            for c in range(group.num_columns):
                column = group.column(c)
                if column.path_in_schema.partition(".")[0] in wanted:
                    places = (column.dictionary_page_offset, column.data_page_offset)
                    start = min(p for p in places if p)
                    end = start + column.total_compressed_size
                    file.require_inflated(_largest(data, start, min(end, file.size)))


def _largest(data: IO[bytes], start: int, end: int) -> int:
    """Bytes of the largest page in a range of a file; it ends where pyarrow would fail."""
    largest = 0
    while start < end:
        header = _header(data, start, end)
        if header is None:
            break
        length, sizes = header
        largest = max(largest, sizes.get(_UNCOMPRESSED, 0))
        start += length + max(0, sizes.get(_COMPRESSED, 0))
    return largest


def _header(data: IO[bytes], start: int, end: int) -> tuple[int, dict[int, int]] | None:
    """The length of a header, and its numbers by their fields; None if there is none."""
    ahead = _AHEAD
    while True:
        data.seek(start)
        reader = _Compact(data.read(min(ahead, end - start)))
        try:
            numbers = reader.structure()
        except IndexError:  # it goes on
            if ahead >= min(_LONGEST, end - start):
                return None
            ahead *= 16
        except ValueError:
            return None
        else:
            return reader.at, numbers


class _Compact:
    """Reads a structure of Thrift's compact protocol.

    Attributes:
        at: Bytes that are read.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def structure(self, depth: int = 0) -> dict[int, int]:
        """Passes over a structure; its whole numbers by their fields.

        Raises:
            IndexError: The text ends before it.
            ValueError: It is none.
        """
        if depth > _DEEPEST:
            raise ValueError("structures nest too deeply")
        numbers: dict[int, int] = {}
        field = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self._number()
            if kind in (_I16, _I32, _I64):
                numbers[field] = self._number()
            elif kind not in (_TRUE, _FALSE):  # a field's type says which one
                self._value(kind, depth)
        return numbers

    def _value(self, kind: int, depth: int) -> None:
        """Passes over a value, as elements of lists are written."""
        if kind in (_TRUE, _FALSE, _BYTE):
            self._past(1)
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self._past(8)
        elif kind == _BINARY:
            self._past(self._varint())
        elif kind in (_LIST, _SET):
            head = self._byte()
            self._values(self._varint() if head >> 4 == 15 else head >> 4, (head & 15,), depth)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            self._values(count, (kinds >> 4, kinds & 15), depth)
        elif kind == _STRUCT:
            self.structure(depth + 1)
        else:
            raise ValueError(f"there is no type {kind}")

    def _values(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                self._value(kind, depth + 1)

    def _byte(self) -> int:
        self.at += 1
        return self._text[self.at - 1]

    def _past(self, size: int) -> None:
        self.at += size
        if self.at > len(self._text):
            raise IndexError

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 63:
                raise ValueError("a number is too long")

    def _number(self) -> int:
        """The next number, which has a sign."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
