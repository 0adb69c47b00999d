"""Output modes of padded columns, which need all rows in advance: column, table, box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from einsql.core.records import dataclass
from einsql.frontends.console.style import Style, texts
from einsql.storage.results.box import Row, centred, display_width, padded
from einsql.storage.results.value_text import Column, format_cell


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


def table(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """A table of ASCII characters."""
    return _framed(columns, rows, style, TABLE)


def column(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """Columns without a frame."""
    grid = _Grid(columns, rows, style)
    if style.headers:
        yield "  ".join(grid.placed(grid.names)).rstrip()
        yield "  ".join("-" * width for width in grid.widths)
    for cells in grid.cells:
        yield "  ".join(grid.placed(cells)).rstrip()


def _framed(
    columns: Sequence[Column], rows: Iterable[Row], style: Style, frame: Frame
) -> Iterator[str]:
    grid = _Grid(columns, rows, style)
    left, between, right = frame.edges
    above, below, end = (_rule(rule, grid.widths) for rule in frame.rules)
    names = map(centred, grid.names, grid.widths)
    yield above
    yield left + between.join(names) + right
    yield below
    for cells in grid.cells:
        yield left + between.join(grid.placed(cells)) + right
    yield end


def _rule(rule: str, widths: Sequence[int]) -> str:
    return rule[0] + rule[2].join(rule[1] * (width + 2) for width in widths) + rule[3]


class _Grid:
    """The texts of a result with the width and the alignment of each column."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row], style: Style) -> None:
        self.names = [format_cell(c.name, "", "") for c in columns]
        self.cells = [texts(columns, row, style) for row in rows]
        count = len(columns)
        wanted = [*style.widths[:count], *[0] * (count - len(style.widths))]
        self.widths = [
            max(abs(least), *(display_width(line[n]) for line in (self.names, *self.cells)))
            for n, least in enumerate(wanted)
        ]
        self._right = [
            least < 0 or (least == 0 and c.is_numeric)
            for least, c in zip(wanted, columns, strict=True)
        ]

    def placed(self, cells: Sequence[str]) -> Iterator[str]:
        """The cells, padded to the widths of their columns."""
        return map(padded, cells, self.widths, self._right)
