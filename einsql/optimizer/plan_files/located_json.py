"""JSON with the position of every value, so that errors name a line and a column."""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import TypeAlias

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError

MAX_DEPTH = 16
"""Most nested objects and lists; a plan file has at most seven."""

MOST_VALUES = 2**22
"""Most commas and opening brackets of a text: each value takes about 200 bytes of memory."""

_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Item:
    """A value of a JSON text.

    Attributes:
        value: The value; members of objects and lists are items.
        at: The offset of the value's first character.
        names: The offset of each name of an object.
    """

    value: Value
    at: int
    names: dict[str, int] = field(default_factory=dict)


Value: TypeAlias = "bool | int | float | str | list[Item] | dict[str, Item] | None"


@dataclass(frozen=True, slots=True)
class Document:
    """A file with a JSON text.

    Attributes:
        path: The file's name, for errors.
    """

    path: str
    text: str

    def wrong(self, at: int, reason: str, hint: str = "") -> ProgrammingError:
        """An error with the line and the column of an offset, both from 1."""
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return ProgrammingError(f"'{self.path}', line {line}, column {column}: {reason}", hint=hint)

    def parse(self) -> Item:
        """Parses the text.

        Raises:
            ProgrammingError: The text is no JSON, nests too deeply, or has a name twice.
        """
        if sum(map(self.text.count, ",[{")) > MOST_VALUES:
            raise self.wrong(0, f"it has more than {MOST_VALUES:,} values")
        item, end = _Parser(self).value(self._skip(0), 0)
        end = self._skip(end)
        if end < len(self.text):
            raise self.wrong(end, "nothing may follow the plan")
        return item

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self.text, at)
        assert blank is not None, "the pattern matches the empty text"
        return blank.end()


class _Parser:
    """A recursive descent; `json` parses strings, numbers and words."""

    def __init__(self, document: Document) -> None:
        self._document, self._text = document, document.text
        self._decoder = json.JSONDecoder(parse_constant=self._refuse)

    def value(self, at: int, depth: int) -> tuple[Item, int]:
        """The value at an offset, and the offset behind it."""
        if depth > MAX_DEPTH:
            raise self._document.wrong(at, f"it nests deeper than {MAX_DEPTH} lists and objects")
        first = self._text[at : at + 1]
        if first == "{":
            return self._object(at, depth)
        if first == "[":
            return self._list(at, depth)
        scalar, end = self._scalar(at)
        return Item(scalar, at), end

    def _object(self, start: int, depth: int) -> tuple[Item, int]:
        members: dict[str, Item] = {}
        names: dict[str, int] = {}
        at = self._skip(start + 1)
        while self._text[at : at + 1] != "}":
            if members:
                at = self._expect(",", at, "or } ")
            if self._text[at : at + 1] != '"':
                raise self._document.wrong(at, "expected a name in double quotes")
            name, end = self._scalar(at)
            assert isinstance(name, str), "it begins with a quote"
            if name in members:
                raise self._document.wrong(at, f'"{name}" is there twice')
            names[name] = at
            members[name], at = self.value(self._expect(":", self._skip(end), ""), depth + 1)
            at = self._skip(at)
        return Item(members, start, names), at + 1

    def _list(self, start: int, depth: int) -> tuple[Item, int]:
        items: list[Item] = []
        at = self._skip(start + 1)
        while self._text[at : at + 1] != "]":
            if items:
                at = self._expect(",", at, "or ] ")
            item, at = self.value(at, depth + 1)
            items.append(item)
            at = self._skip(at)
        return Item(items, start), at + 1

    def _scalar(self, at: int) -> tuple[bool | int | float | str | None, int]:
        try:
            scalar, end = self._decoder.raw_decode(self._text, at)
            if isinstance(scalar, str):
                scalar.encode()  # refuses half of a surrogate pair
        except json.JSONDecodeError as error:
            raise self._document.wrong(error.pos, f"it is no JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise self._document.wrong(at, f"it is no JSON: {error}") from None
        assert not isinstance(scalar, list | dict), "their brackets were handled before"
        return scalar, end

    def _expect(self, mark: str, at: int, otherwise: str) -> int:
        if self._text[at : at + 1] != mark:
            raise self._document.wrong(at, f"it is no JSON: expected {mark} {otherwise}".rstrip())
        return self._skip(at + 1)

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        assert blank is not None, "the pattern matches the empty text"
        return blank.end()

    @staticmethod
    def _refuse(name: str) -> None:
        raise ValueError(f"{name} is no number")
