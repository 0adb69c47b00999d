"""Result tables drawn with box characters and truncated to the width of the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile

from einsql.core.records import dataclass
from einsql.storage.results.value_text import Column, format_cell

_NARROWEST = 20
"""The least width of a truncated column; if this is too wide, columns are omitted."""

Row = Sequence[object]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first and last rows of a result, and the total number of rows."""

    head: list[Row]
    tail: list[Row]
    total: int


def draw_box(
    columns: Sequence[Column], rows: Excerpt, *, null: str, types: bool, width: int | None
) -> Iterator[str]:
    """The lines of a table.

    Args:
        columns: The columns, in order.
        rows: The rows to show; three rows of dots separate the head from the tail.
        null: The text of NULL.
        types: Whether the table has a line of types below the names, and a footer with the
            number of rows if rows are omitted.
        width: The largest width of a line in characters; None for no limit.
    """
    head, tail = (_cells(part, columns, null) for part in (rows.head, rows.tail))
    titles = [[format_cell(c.name, "", "") for c in columns]]
    if types:
        titles.append([c.displayed_type for c in columns])
    body = [*titles, *head, *tail]
    widths = [max(display_width(line[n]) for line in body) for n in range(len(columns))]
    shown, widths = _fit(widths, width)

    def pick(line: list[str]) -> list[str]:
        return ["…" if n is None else cut(line[n], w) for n, w in zip(shown, widths, strict=True)]

    right = [n is not None and columns[n].is_numeric for n in shown]
    yield from _head([pick(line) for line in titles], widths)
    if rows.total or not types:
        yield _rule("├┼┤", widths)
    dots = [["·"] * len(shown)] * 3 if len(rows.head) + len(rows.tail) < rows.total else []
    for line in (*map(pick, head), *dots, *map(pick, tail)):
        yield _line([_pad(t, w, r) for t, w, r in zip(line, widths, right, strict=True)])
    yield _rule("└┴┘", widths)
    if types:
        yield from _footer(rows, len(columns), sum(n is not None for n in shown))


_ROOM = {"FLOAT": 13, "DOUBLE": 22, "VARCHAR": 24}
"""The width of a column by its type, for rows that are not known in advance; default 10."""


def draw_growing(columns: Sequence[Column], rows: Iterable[Row], *, null: str) -> Iterator[str]:
    """The lines of a table whose rows arrive one by one; the column widths are constant.

    Args:
        columns: The columns, in order.
        rows: The rows.
        null: The text of NULL.
    """
    names = [format_cell(c.name, "", "") for c in columns]
    types = [c.displayed_type for c in columns]
    widths = [
        max(display_width(n), len(t), _ROOM.get(c.type, 10))
        for c, n, t in zip(columns, names, types, strict=True)
    ]
    yield from _head([names, types], widths)
    yield _rule("├┼┤", widths)
    for row in rows:
        (cells,) = _cells([row], columns, null)
        padded = zip(cells, widths, columns, strict=True)
        yield _line([_pad(t, w, c.is_numeric) for t, w, c in padded])
    yield _rule("└┴┘", widths)


def _cells(rows: list[Row], columns: Sequence[Column], null: str) -> list[list[str]]:
    return [
        [format_cell(v, c.type, null) for v, c in zip(row, columns, strict=True)] for row in rows
    ]


def _footer(rows: Excerpt, columns: int, columns_shown: int) -> Iterator[str]:
    shown = len(rows.head) + len(rows.tail)
    parts = []
    if shown < rows.total or not rows.total:
        parts.append(f"{rows.total} rows" + (f" ({shown} shown)" if shown < rows.total else ""))
    if columns_shown < columns:
        parts.append(f"{columns} columns ({columns_shown} shown)")
    if parts:
        yield "  " + ", ".join(parts)


def _fit(widths: list[int], limit: int | None) -> tuple[list[int | None], list[int]]:
    """The numbers of the columns to show, with None for a gap in the middle, and their widths."""
    everything: list[int | None] = list(range(len(widths)))
    if limit is None or _total(widths) <= limit:
        return everything, widths
    cap = max(widths)
    while cap > _NARROWEST and _total([min(w, cap) for w in widths]) > limit:
        cap -= 1
    widths = [min(w, cap) for w in widths]
    shown, chosen = everything, widths
    for keep in range(len(widths) - 1, 1, -1):
        if _total(chosen) <= limit:
            break
        first = (keep + 1) // 2
        shown = [*everything[:first], None, *everything[len(widths) - keep + first :]]
        chosen = [1 if n is None else widths[n] for n in shown]
    return shown, chosen


def _total(widths: list[int]) -> int:
    return sum(widths) + 3 * len(widths) + 1


def _head(titles: Sequence[Sequence[str]], widths: list[int]) -> Iterator[str]:
    yield _rule("┌┬┐", widths)
    for line in titles:
        yield _line([_centre(t, w) for t, w in zip(line, widths, strict=True)])


def _rule(corners: str, widths: list[int]) -> str:
    return corners[0] + corners[1].join("─" * (w + 2) for w in widths) + corners[2]


def _line(cells: list[str]) -> str:
    return "│ " + " │ ".join(cells) + " │"


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def _centre(text: str, width: int) -> str:
    space = width - display_width(text)
    return " " * (space // 2) + text + " " * (space - space // 2)


def display_width(text: str) -> int:
    """The width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(_char_width(c) for c in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The text; a text wider than `width` cells is truncated and ends in …."""
    if display_width(text) <= width:
        return text
    ends = accumulate(map(_char_width, text))
    return text[: sum(1 for _ in takewhile(lambda end: end < width, ends))] + "…"
