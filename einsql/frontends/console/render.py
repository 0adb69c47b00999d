"""Output modes: a result's rows as lines of text; rows are fetched while lines are printed."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from einsql.core.records import dataclass
from einsql.storage.results.box import Excerpt, Row, draw_box, draw_growing
from einsql.storage.results.value_text import (
    ESCAPES,
    Column,
    format_cell,
    format_json,
    format_value,
)


@dataclass(frozen=True, slots=True)
class Style:
    """The settings of a mode.

    Attributes:
        null: The text of NULL; None for the mode's default.
        maxrows: The largest number of rows in a table; 0 for no limit.
        width: The largest width of a table's line in characters; None for no limit.
        total: The number of rows; -1 if unknown.
        headers: Whether `csv` and `list` begin with the column names.
    """

    null: str | None = None
    maxrows: int = 40
    width: int | None = None
    total: int = -1
    headers: bool = True


_LONG = 1_000_000
"""The number of rows above which a table shows only the first rows."""

Mode = Callable[[Sequence[Column], Iterable[Row], Style], Iterator[str]]
"""A function that returns the lines of a result, without line ends."""


def _duckbox(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    shown = excerpt(rows, style.maxrows, style.total)
    return draw_box(columns, shown, null=_null(style), types=True, width=style.width)


def _box(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    everything = list(rows)
    shown = Excerpt(everything, [], len(everything))
    return draw_box(columns, shown, null=_null(style), types=False, width=None)


def _growing(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    return draw_growing(columns, rows, null=_null(style))


def _csv(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    null = style.null or ""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="")
    texts = (
        [format_value(v, c.type, null) for v, c in zip(row, columns, strict=True)] for row in rows
    )
    for fields in chain([[c.name for c in columns]] if style.headers else [], texts):
        writer.writerow(fields)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _json(columns: Sequence[Column], rows: Iterable[Row], _: Style) -> Iterator[str]:
    # A line is written after the next row arrives: only then its comma is known.
    line = "["
    for n, document in enumerate(_documents(columns, rows)):
        if n:
            yield line + ","
            line = ""
        line += document
    yield line + "]"


def _jsonlines(columns: Sequence[Column], rows: Iterable[Row], _: Style) -> Iterator[str]:
    return _documents(columns, rows)


def _documents(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[str]:
    names = [json.dumps(c.name, ensure_ascii=False) for c in columns]
    for row in rows:
        values = (format_json(v, c.type) for v, c in zip(row, columns, strict=True))
        yield "{" + ",".join(f"{n}:{v}" for n, v in zip(names, values, strict=True)) + "}"


def _markdown(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    yield line(c.name for c in columns)
    yield "|" + "|".join("--:" if c.is_numeric else "---" for c in columns) + "|"
    for row in rows:
        yield line(_texts(columns, row, style))


def _line(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    width = max(len(c.name) for c in columns)
    for n, row in enumerate(rows):
        if n:
            yield ""
        for c, text in zip(columns, _texts(columns, row, style), strict=True):
            yield f"{c.name:>{width}} = {text}"


def _list(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    if style.headers:
        yield "|".join(c.name for c in columns)
    for row in rows:
        texts = (format_value(v, c.type, _null(style)) for v, c in zip(row, columns, strict=True))
        yield "|".join(text.translate(ESCAPES) for text in texts)


MODES: dict[str, Mode] = {
    "duckbox": _duckbox,
    "box": _box,
    "csv": _csv,
    "json": _json,
    "jsonlines": _jsonlines,
    "markdown": _markdown,
    "line": _line,
    "list": _list,
}

GROWING = {"duckbox": "growing", "box": "growing"}
"""The modes that need all rows in advance, with the streaming mode that replaces each."""

_VERBATIM = MODES.keys() - {"json", "jsonlines"}
"""The modes that print a plan verbatim, as text or HTML."""


def render(
    mode: str, columns: Sequence[Column], rows: Iterable[Row], style: Style
) -> Iterator[str]:
    """The lines of a result; a plan is printed unchanged unless the mode is JSON."""
    if mode in _VERBATIM and [c.name for c in columns] == ["explain"]:
        return (str(row[0]) for row in rows)
    return (_growing if mode == "growing" else MODES[mode])(columns, rows, style)


def excerpt(rows: Iterable[Row], limit: int, known_total: int = -1) -> Excerpt:
    """The first and last rows of a result, together `limit` rows; 0 for no limit.

    The last rows of a long result are omitted because fetching all rows would take seconds.
    """
    if limit and known_total > _LONG:
        return Excerpt(list(islice(rows, limit)), [], known_total)
    head: list[Row] = []
    tail: deque[Row] = deque(maxlen=limit // 2)
    total = 0
    for total, row in enumerate(rows, 1):
        if limit == 0 or total <= limit:
            head.append(row)
        else:
            tail.append(row)
    if len(head) == total:
        return Excerpt(head, [], total)
    kept = limit - limit // 2
    last = [*head[kept:], *tail][-(limit // 2) :] if limit > 1 else []
    return Excerpt(head[:kept], last, total)


def _texts(columns: Sequence[Column], row: Row, style: Style) -> list[str]:
    return [format_cell(v, c.type, _null(style)) for v, c in zip(row, columns, strict=True)]


def _null(style: Style) -> str:
    return "NULL" if style.null is None else style.null
