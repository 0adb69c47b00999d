"""Parses Thrift's compact protocol, as far as Parquet's metadata use it.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md. pyarrow aborts
the process on some damaged metadata of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEEPEST = 16
"""Greatest nesting of structures; it limits the recursion, and Parquet needs less."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

Wanted = Mapping[int, Any]
"""The fields of a structure to be read, by number: None for numbers and bytes, or the fields of a
structure or of each structure in a list."""


class Compact:
    """Reads structures of the compact protocol; a read beyond the end raises IndexError.

    Attributes:
        at: The offset of the next byte.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def structure(self, wanted: Wanted, depth: int = 0) -> dict[int, Any]:
        """The wanted fields of the next structure; absent ones are omitted.

        Raises:
            IndexError: The text ends before it.
            ValueError: The structure is wrong.
        """
        if depth > _DEEPEST:
            raise ValueError("structures nest too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self._number()
            if kind in (_TRUE, _FALSE):  # the type of a field is its value
                continue
            if field in wanted:
                fields[field] = self._read(kind, wanted[field], depth)
            else:
                self._pass(kind, depth)
        return fields

    def _read(self, kind: int, wanted: Wanted | None, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._number()
        if kind == _BINARY:
            size = self._varint()
            self._past(size)
            return self._text[self.at - size : self.at]
        if kind == _STRUCT:
            return self.structure(wanted or {}, depth + 1)
        if kind in (_LIST, _SET):
            inner, count = self._list()
            return [self._read(inner, wanted, depth + 1) for _ in range(count)]
        raise ValueError(f"a field has the type {kind}")

    def _pass(self, kind: int, depth: int) -> None:
        """Skips a value in the encoding of list elements."""
        if kind in (_TRUE, _FALSE, _BYTE):
            self._past(1)
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self._past(8)
        elif kind == _BINARY:
            self._past(self._varint())
        elif kind in (_LIST, _SET):
            inner, count = self._list()
            for _ in range(count):
                self._pass(inner, depth + 1)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._pass(kinds >> 4, depth + 1)
                self._pass(kinds & 15, depth + 1)
        elif kind == _STRUCT:
            self.structure({}, depth + 1)
        else:
            raise ValueError(f"there is no type {kind}")

    def _list(self) -> tuple[int, int]:
        head = self._byte()
        return head & 15, self._varint() if head >> 4 == 15 else head >> 4

    def _byte(self) -> int:
        self.at += 1
        return self._text[self.at - 1]

    def _past(self, size: int) -> None:
        self.at += size
        if self.at > len(self._text):
            raise IndexError

    def _varint(self) -> int:
        if (byte := self._text[self.at]) < 128:  # most are
            self.at += 1
            return byte
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def _number(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
