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

    @property
    def is_partial(self) -> bool:
        """True if rows are omitted."""
        return len(self.head) + len(self.tail) < self.total


def draw_box(
    columns: Sequence[Column], rows: Excerpt, *, null: str, width: int | None, more: str = ""
) -> Iterator[str]:
    """The lines of a table with a line for each row, and of its footer.

    Args:
        columns: The columns, in order.
        rows: The rows to show; three rows of dots separate the head from the tail.
        null: The text of NULL.
        width: The largest width of a line in characters; None for no limit.
        more: The end of the footer of a table that omits something.
    """
    head, tail = (_cells(part, columns, null) for part in (rows.head, rows.tail))
    titles = [
        [format_cell(c.name, "", "") for c in columns],
        [c.displayed_type for c in columns],
    ]
    table = _Table([*titles, *head, *tail], width)
    right = [n is not None and columns[n].is_numeric for n in table.shown]
    yield from _head([table.pick(line) for line in titles], table.widths)
    if rows.total:
        yield _rule("├┼┤", table.widths)
    dots = [["·"] * len(right)] * 3 if rows.is_partial else []
    for line in (*map(table.pick, head), *dots, *map(table.pick, tail)):
        yield _line(list(map(padded, line, table.widths, right)))
    yield _rule("└┴┘", table.widths)
    names = (len(columns), sum(n is not None for n in table.shown))
    yield from _footer(rows, names, table.is_cut, more)


def draw_columns(
    columns: Sequence[Column], rows: Excerpt, *, null: str, width: int | None, more: str = ""
) -> Iterator[str]:
    """The lines of a table with a line for each column of the result, and of its footer.

    Args:
        columns: The columns, in order.
        rows: The rows to show; a column of dots separates the head from the tail.
        null: The text of NULL.
        width: The largest width of a line in characters; None for no limit.
        more: The end of the footer of a table that omits something.
    """
    head, tail = (_cells(part, columns, null) for part in (rows.head, rows.tail))
    last = rows.total - len(tail) + 1
    dots = [["·"] * (len(columns) + 1)] if rows.is_partial else []
    upright = [
        ["Column", *(format_cell(c.name, "", "") for c in columns)],
        ["Type", *(c.displayed_type for c in columns)],
        *([f"Row {n}", *cells] for n, cells in enumerate(head, 1)),
        *dots,
        *([f"Row {n}", *cells] for n, cells in enumerate(tail, last)),
    ]
    lines = [list(line) for line in zip(*upright, strict=True)]
    table = _Table(lines, width)
    right = [n is not None and n > 1 for n in table.shown]
    yield from _head([table.pick(lines[0])], table.widths)
    yield _rule("├┼┤", table.widths)
    for line in map(table.pick, lines[1:]):
        yield _line(list(map(padded, line, table.widths, right)))
    yield _rule("└┴┘", table.widths)
    first = 2 + len(head)
    gaps = range(first, first + len(dots))
    drawn = sum(n is not None and n > 1 and n not in gaps for n in table.shown)
    kept = Excerpt([()] * drawn, [], rows.total)
    yield from _footer(kept, (len(columns), len(columns)), table.is_cut, more)


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
        placed = zip(cells, widths, columns, strict=True)
        yield _line([padded(t, w, c.is_numeric) for t, w, c in placed])
    yield _rule("└┴┘", widths)


def _cells(rows: list[Row], columns: Sequence[Column], null: str) -> list[list[str]]:
    return [
        [format_cell(v, c.type, null) for v, c in zip(row, columns, strict=True)] for row in rows
    ]


def _footer(rows: Excerpt, columns: tuple[int, int], is_cut: bool, more: str) -> Iterator[str]:
    """The line about the rows and columns that a table omits.

    Args:
        rows: The rows that are drawn.
        columns: The number of columns, and of those that are drawn.
        is_cut: Whether texts are cut.
        more: The end of the line if something is omitted.
    """
    shown = len(rows.head) + len(rows.tail)
    parts = []
    if rows.is_partial or not rows.total:
        parts.append(f"{rows.total} rows" + (f" ({shown} shown)" if rows.is_partial else ""))
    if columns[1] < columns[0]:
        parts.append(f"{columns[0]} columns ({columns[1]} shown)")
    if is_cut:
        parts.append("texts cut at …")
    if parts:
        omits = rows.is_partial or is_cut or columns[1] < columns[0]
        yield "  " + ", ".join(parts) + (more if omits else "")


class _Table:
    """The columns of a table that fit a width.

    Attributes:
        shown: The numbers of the columns to show, with None for a gap in the middle.
        widths: Their widths in cells.
        is_cut: Whether a text is wider than its column.
    """

    def __init__(self, lines: Sequence[Sequence[str]], width: int | None) -> None:
        needed = [max(display_width(line[n]) for line in lines) for n in range(len(lines[0]))]
        self.shown, self.widths = _fit(needed, width)
        pairs = zip(self.shown, self.widths, strict=True)
        self.is_cut = any(n is not None and needed[n] > width for n, width in pairs)

    def pick(self, line: Sequence[str]) -> list[str]:
        """The texts of a line in the columns to show."""
        pairs = zip(self.shown, self.widths, strict=True)
        return ["…" if n is None else cut(line[n], width) for n, width in pairs]


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
        yield _line([centred(t, w) for t, w in zip(line, widths, strict=True)])


def _rule(corners: str, widths: list[int]) -> str:
    return corners[0] + corners[1].join("─" * (w + 2) for w in widths) + corners[2]


def _line(cells: list[str]) -> str:
    return "│ " + " │ ".join(cells) + " │"


def padded(text: str, width: int, right: bool) -> str:
    """The text with blanks up to a width in cells, before it if it is right-aligned."""
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def centred(text: str, width: int) -> str:
    """The text in the middle of a width in cells."""
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
