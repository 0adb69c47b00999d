"""Output modes of fields between separators, and of SQL literals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from einsql.core.quoting import literal as text_literal
from einsql.core.quoting import name_of
from einsql.frontends.console.style import Mode, Style
from einsql.storage.results.box import Row
from einsql.storage.results.value_text import ESCAPES, Column, format_value, literal

SEPARATORS = {"csv": ",", "list": "|", "tabs": "\t", "quote": ",", "ascii": "\x1f", "tcl": " "}
"""The modes with a separator between fields, and the default separator of each."""

ROW_ENDS = {"ascii": "\x1e"}
"""The modes whose rows end in another text than a line end."""


def csv(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """Comma-separated values, quoted as RFC 4180 prescribes."""
    separator, null = _separator("csv", style), style.null or ""

    def line(fields: list[str]) -> str:
        if fields == [""]:
            return '""'  # an empty line would be no row
        return separator.join(_csv_field(text, separator) for text in fields)

    if style.headers:
        yield line([c.name for c in columns])
    for row in rows:
        yield line([format_value(v, c.type, null) for v, c in zip(row, columns, strict=True)])


def _csv_field(text: str, separator: str) -> str:
    if separator in text or any(c in text for c in '"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def fields(mode: str, header: Callable[[str], str], field: Callable[[str], str]) -> Mode:
    """A mode that prints fields between separators.

    Args:
        mode: The name of the mode.
        header: The spelling of a column's name.
        field: The spelling of a value's text.
    """

    def lines(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
        separator = _separator(mode, style)
        if style.headers:
            yield separator.join(header(c.name) for c in columns)
        for row in rows:
            pairs = zip(row, columns, strict=True)
            yield separator.join(field(format_value(v, c.type, style.null_text)) for v, c in pairs)

    return lines


def quote(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """SQL literals between separators."""
    separator = _separator("quote", style)
    if style.headers:
        yield separator.join(text_literal(c.name) for c in columns)
    for row in rows:
        yield separator.join(literal(v, c.type) for v, c in zip(row, columns, strict=True))


def insert(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """An INSERT statement for each row."""
    names = ",".join(name_of(c.name) for c in columns)
    for row in rows:
        values = ",".join(literal(v, c.type) for v, c in zip(row, columns, strict=True))
        yield f"INSERT INTO {style.table}({names}) VALUES({values});"


def one_line(text: str) -> str:
    """The text with escapes in place of control characters."""
    return text.translate(ESCAPES)


def tcl_word(text: str) -> str:
    """The text as a word of Tcl, in double quotes."""
    word = json.dumps(text, ensure_ascii=False)
    return word.replace("$", "\\$").replace("[", "\\[")


def _separator(mode: str, style: Style) -> str:
    return SEPARATORS[mode] if style.separator is None else style.separator
