"""Output modes: a result's rows as lines of text; rows are fetched while lines are printed."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from einsql.frontends.console import grid, markup
from einsql.frontends.console.delimited import csv, fields, insert, one_line, quote, tcl_word
from einsql.frontends.console.style import Mode, Style, texts
from einsql.storage.results.box import Excerpt, Row, draw_box, draw_columns, draw_growing
from einsql.storage.results.value_text import Column, format_json

_LONG = 1_000_000
"""The number of rows above which a table shows only the first rows."""


def _duckbox(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    if not style.cut and not style.columnwise:
        return grid.typed_box(columns, rows, style)
    shown = excerpt(rows, style.maxrows, style.total)
    draw = draw_columns if style.columnwise else draw_box
    width = style.width if style.cut else None
    more = "; .last shows all" if width else ""
    return draw(columns, shown, null=style.null_text, width=width, more=more)


def _growing(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    return draw_growing(columns, rows, null=style.null_text)


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


def _line(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    width = max(len(c.name) for c in columns)
    for n, row in enumerate(rows):
        if n:
            yield ""
        for c, text in zip(columns, texts(columns, row, style), strict=True):
            yield f"{c.name:>{width}} = {text}"


def _trash(columns: Sequence[Column], rows: Iterable[Row], _: Style) -> Iterator[str]:
    deque(rows, maxlen=0)  # they are computed and fetched, as for other modes
    return iter(())


MODES: dict[str, Mode] = {
    "duckbox": _duckbox,
    "ascii": fields("ascii", str, str),
    "box": grid.box,
    "column": grid.column,
    "csv": csv,
    "html": markup.html,
    "insert": insert,
    "json": _json,
    "jsonlines": _jsonlines,
    "latex": markup.latex,
    "line": _line,
    "list": fields("list", str, one_line),
    "markdown": markup.markdown,
    "quote": quote,
    "table": grid.table,
    "tabs": fields("tabs", one_line, one_line),
    "tcl": fields("tcl", tcl_word, tcl_word),
    "trash": _trash,
}

GROWING = dict.fromkeys(("duckbox", "box", "table", "column"), "growing")
"""The modes that need all rows in advance, with the streaming mode that replaces each."""

_VERBATIM = ("duckbox", "box", "table", "column", "csv", "latex", "line", "list", "markdown",
             "ascii", "tabs")  # fmt: skip
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
