"""Output modes of padded columns, which need all rows in advance: column, table, box."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from einsql.core.records import dataclass
from einsql.frontends.console.style import Style, texts
from einsql.storage.results.box import Row, centred, display_width, padded
from einsql.storage.results.value_text import Column, format_cell

_NARROWEST = 12
"""The least width to which the texts of a column are folded, in cells."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The lines around the cells of a grid.

    Attributes:
        edges: The texts left of, between and right of cells.
        rules: The left end, the filling, the crossing and the right end of the rule above the
            names, of the one below them and of the one below the rows.
    """

    edges: tuple[str, str, str]
    rules: tuple[str, str, str]


BOX = Frame(("│ ", " │ ", " │"), ("┌─┬┐", "├─┼┤", "└─┴┘"))
TABLE = Frame(("| ", " | ", " |"), ("+-++", "+-++", "+-++"))


def box(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """A table with box characters, of all rows."""
    return _framed(columns, rows, style, BOX)


def typed_box(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """A table with box characters, of all rows, with a line of types."""
    return _framed(columns, rows, style, BOX, types=True)


def table(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """A table of ASCII characters."""
    return _framed(columns, rows, style, TABLE)


def column(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """Columns without a frame."""
    grid = _Grid(columns, rows, style, 2 * (len(columns) - 1))
    if style.headers:
        yield from ("  ".join(line).rstrip() for line in grid.lines(grid.heads[0]))
        yield "  ".join("-" * width for width in grid.widths)
    for cells in grid.cells:
        yield from ("  ".join(line).rstrip() for line in grid.lines(cells))


def _framed(
    columns: Sequence[Column], rows: Iterable[Row], style: Style, frame: Frame, types: bool = False
) -> Iterator[str]:
    grid = _Grid(columns, rows, style, 3 * len(columns) + 1, types)
    left, between, right = frame.edges
    above, below, end = (_rule(rule, grid.widths) for rule in frame.rules)
    yield above
    for head in grid.heads:
        for line in grid.lines(head, centred):
            yield left + between.join(line) + right
    yield below
    for cells in grid.cells:
        for line in grid.lines(cells):
            yield left + between.join(line) + right
    yield end


def _rule(rule: str, widths: Sequence[int]) -> str:
    return rule[0] + rule[2].join(rule[1] * (width + 2) for width in widths) + rule[3]


class _Grid:
    """The texts of a result with the width and the alignment of each column.

    On a terminal, the texts of wide columns continue on further lines, so that nothing is cut.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Iterable[Row],
        style: Style,
        between: int,
        types: bool = False,
    ) -> None:
        """Reads the rows.

        Args:
            columns: The columns, in order.
            rows: The rows.
            style: The settings of the mode.
            between: The width of a line without its cells.
            types: Whether the types are below the names.
        """
        self.heads = [[format_cell(c.name, "", "") for c in columns]]
        if types:
            self.heads.append([c.displayed_type for c in columns])
        self.cells = [texts(columns, row, style) for row in rows]
        count = len(columns)
        wanted = [*style.widths[:count], *[0] * (count - len(style.widths))]
        needed = [
            max(abs(least), *(display_width(line[n]) for line in (*self.heads, *self.cells)))
            for n, least in enumerate(wanted)
        ]
        self.widths = needed if style.width is None else _fitted(needed, style.width - between)
        self._right = [
            least < 0 or (least == 0 and c.is_numeric)
            for least, c in zip(wanted, columns, strict=True)
        ]

    def lines(
        self, cells: Sequence[str], place: Callable[[str, int], str] | None = None
    ) -> Iterator[list[str]]:
        """The lines of a row, each with the padded texts of all columns.

        Args:
            cells: The texts of the row.
            place: The function that pads a text; None for the alignment of its column.
        """
        for line in zip_longest(*map(folded, cells, self.widths), fillvalue=""):
            if place is None:
                yield list(map(padded, line, self.widths, self._right))
            else:
                yield list(map(place, line, self.widths))


def _fitted(widths: list[int], room: int) -> list[int]:
    """The widths, of which the greatest are reduced until their sum fits."""
    cap = max(widths)
    while cap > _NARROWEST and sum(min(width, cap) for width in widths) > room:
        cap -= 1
    return [min(width, cap) for width in widths]


def folded(text: str, width: int) -> list[str]:
    """The text in lines of at most this width in cells, which end between words if possible."""
    if display_width(text) <= width:
        return [text]
    lines, line = list[str](), ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if display_width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while display_width(word) > width:
            start = next(n for n in range(len(word), 0, -1) if display_width(word[:n]) <= width)
            lines.append(word[:start])
            word = word[start:]
        line = word
    return [*lines, line]
